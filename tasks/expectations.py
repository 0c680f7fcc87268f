"""Suites of expectations: prompts before anything is spent on them, outputs after.

In: a job's prompts, or its outputs. Out: the tokenized prompts, or a `ValidationFailed` that names file, line and id;
and in a folder the findings as JSON and as a readable page. Knows nothing of orders, engines or trackers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from orderproof.tasks import checks
from orderproof.tasks.checks import SHOWN_ROWS, Check, Report
from orderproof.tasks.errors import OrderproofError
from orderproof.tasks.jobs import Job, JobError
from orderproof.tasks.models import read_model
from orderproof.tasks.prompt_rows import PromptError, row_word, shown
from orderproof.tasks.prompts import TokenizedPrompts, read_prompts, tokenize

if TYPE_CHECKING:
    import pandas as pd

VLLM_MAX_TOKENS = 16  # what vLLM generates where `max_tokens` is not given
FINISHED = ("stop", "length")  # vLLM's reasons for a request that ended as it should


class ValidationFailed(OrderproofError):
    """Prompts or outputs that must not be used. `results` is what the JSON file in the folder holds."""

    def __init__(self, message: str, results: Mapping[str, Any]):
        super().__init__(message)
        self.results = results


def validate_prompts(job: Job, folder: Path) -> TokenizedPrompts:
    """Read, tokenize and check a job's prompts; all flaws of a file are told at once.

    The folder gets validation.json, and validation/index.html where the file could be read.

    Raises:
        ValidationFailed: a row is no prompt, an id stands twice, a prompt does not fit the model, …
        PromptError: the file or the tokenizer cannot be used at all.
        JobError: the model's length is not known.
    """
    path, flaws = job.prompts_path, _Flaws()
    about: dict[str, Any] = {"what": "prompts", "job": job.name, "file": job.prompts}
    try:
        prompts = tokenize(job, read_prompts(path, flaws.add))
    except PromptError as error:
        checks.write(folder, "validation", about, str(error), None)
        raise
    frame = _prompts_frame(job, prompts, flaws)
    report = checks.run("prompts", frame, _prompt_checks(job, model_tokens(job), flaws))
    about |= {"prompts": len(prompts), "prompt_tokens": int(prompts.offsets[-1])}
    _conclude(folder, "validation", about, report, str(path), row_word(path))
    return prompts


def validate_outputs(
    ids: Sequence[str], outputs: pa.Table | pd.DataFrame, folder: Path, *, source: str = "outputs"
) -> None:
    """Check that every prompt has its output, once, in the file's order, and as long as was asked.

    The folder gets outputs_validation.json and outputs_validation/index.html.

    Args:
        ids: of all prompts, in the file's order.
        outputs: one row per output, with the columns id, n_tokens, asked_tokens (null: no limit) and finish_reason; and
            error, if there is one: what went wrong with that prompt and is on record, so that it is no failure here.
        source: how the outputs are called in messages.

    Raises:
        ValidationFailed: any of that does not hold.
    """
    frame = _outputs_frame(ids, outputs)
    report = checks.run("outputs", frame, _output_checks(ids, frame))
    about = {"what": "outputs", "file": source, "prompts": len(ids), "outputs": len(frame)}
    _conclude(folder, "outputs_validation", about, report, source, "row")


def model_tokens(job: Job) -> int:
    """The longest sequence, prompt and output together, that the job's engine takes: tokens.

    Raises:
        JobError: neither the job nor the model's config.json says it.
    """
    given = job.engine.args.get("max_model_len")
    if isinstance(given, int) and given > 0:
        return given
    found = read_model(job.model_path, job.model).max_position_embeddings
    if found is None:
        raise JobError(
            f"the model in {job.model} does not say how long a sequence may be: set "
            f"jobs.{job.name}.engine.args.max_model_len in params.yaml"
        )
    return found


class _Flaws:
    """What reading found wrong: kind and id of every flawed row, and the first few errors of each kind whole."""

    def __init__(self) -> None:
        self.kinds: dict[int, str] = {}
        self.ids: dict[int, str | None] = {}
        self.first: dict[str, list[PromptError]] = {}

    def add(self, error: PromptError) -> None:
        if error.row is not None:
            self.kinds[error.row], self.ids[error.row] = error.flaw, error.id
        examples = self.first.setdefault(error.flaw, [])
        if len(examples) < SHOWN_ROWS:
            examples.append(error)

    def check(self, kind: str, expectation: str, arguments: Mapping[str, Any], says: str, wrong: str = "") -> Check:
        """A check whose failures are told in the words of the errors of one kind."""
        errors = self.first.get(kind, [])
        problems = {error.row: error.problem for error in errors}
        wrong = wrong or "; ".join(problems.values())
        remedy = "; ".join(dict.fromkeys(error.remedy for error in errors))
        return Check(expectation, arguments, says, wrong, remedy, lambda columns: problems.get(columns["row"], ""))


def _prompts_frame(job: Job, prompts: TokenizedPrompts, flaws: _Flaws) -> pd.DataFrame:
    """One row per line of the file that is not blank, in the file's order. Null: does not apply, or is not known."""
    import pandas as pd

    asked = list(asked_tokens(job, prompts.samplings))
    sound = pd.DataFrame(
        {
            "row": prompts.lines,
            "id": pd.array(prompts.ids, dtype="str"),
            "is_prompt": True,
            "has_id": True,
            "has_text": True,
            "has_label": [label is not None for label in prompts.labels],
            "prompt_tokens": prompts.lengths,
            "asked_tokens": pd.array(asked, dtype="Int64"),
            # without a limit a prompt still needs room for one token
            "total_tokens": prompts.lengths + np.array([0 if n is None else n for n in asked], np.int64),
        }
    )
    kinds = list(flaws.kinds.values())
    flawed = pd.DataFrame(
        {
            "row": list(flaws.kinds),
            "id": pd.array(list(flaws.ids.values()), dtype="str"),
            "is_prompt": [kind != "row" for kind in kinds],
            "has_id": [None if kind == "row" else kind != "id" for kind in kinds],
            "has_text": [False if kind == "text" else None for kind in kinds],
            "has_label": None,
            "prompt_tokens": None,
            "asked_tokens": None,
            "total_tokens": None,
        }
    )
    booleans = dict.fromkeys(("is_prompt", "has_id", "has_text", "has_label"), "boolean")
    counts = dict.fromkeys(("row", "prompt_tokens", "asked_tokens", "total_tokens"), "Int64")
    types = {**booleans, **counts}
    frame = pd.concat([sound.astype(types), flawed.astype(types)]).sort_values("row", ignore_index=True)
    first = frame.loc[frame["id"].duplicated(keep=False) & frame["id"].notna()].groupby("id")["row"].transform("min")
    frame["first_with_id"] = first.reindex(frame.index)
    return frame.set_axis(pd.Index(frame["row"].astype("int64").to_numpy()), axis="index")


def asked_tokens(job: Job, samplings: Iterable[Mapping[str, Any] | None]) -> Iterable[int | None]:
    """Tokens asked of each prompt; None: as many as the model's length leaves."""
    of_job = job.sampling.get("max_tokens", VLLM_MAX_TOKENS)
    if of_job is not None and (not isinstance(of_job, int) or of_job < 1):
        raise JobError(f"jobs.{job.name}.sampling.max_tokens must be a whole number from 1, not {shown(of_job)}")
    return ((own or {}).get("max_tokens", of_job) for own in samplings)


def _prompt_checks(job: Job, limit: int, flaws: _Flaws) -> list[Check]:
    suite = [
        flaws.check("file", "ExpectTableRowCountToBeBetween", {"min_value": 1}, "The file holds prompts"),
        flaws.check("row", *_true("is_prompt"), "Every row can be read as a prompt", "not a prompt"),
        flaws.check("id", *_true("has_id"), "Every prompt has an id", "no id"),
        Check(
            "ExpectColumnValuesToBeUnique",
            {"column": "id"},
            "No two prompts have the same id",
            "an id that stands more than once",
            "Give every prompt its own id",
            _twice(row_word(job.prompts_path)),
        ),
        flaws.check("text", *_true("has_text"), "Every prompt has a text", "no text"),
        Check(
            "ExpectColumnValuesToBeBetween",
            {"column": "prompt_tokens", "min_value": 1},
            "Every prompt has at least one token",
            "a text of no tokens",
            "Give the prompt a text that the tokenizer knows",
        ),
        Check(
            "ExpectColumnValuesToBeBetween",
            {"column": "total_tokens", "max_value": limit},
            f"Prompt and output fit into the model's {limit:,} tokens",
            "too long for the model",
            f"Shorten the prompts, ask for fewer tokens (sampling.max_tokens), or raise engine.args.max_model_len of "
            f"jobs.{job.name}",
            lambda r: f"{r['prompt_tokens']} tokens and {_asked(r['asked_tokens'])} asked make more than {limit}",
        ),
    ]
    if job.order.method == "label":
        suite.append(
            Check(
                *_true("has_label"),
                "Every prompt has a label, by which it is ordered",
                "no label",
                f"Label every prompt, or choose another order.method for jobs.{job.name}",
            )
        )
    return suite


def _true(column: str) -> tuple[str, dict[str, Any]]:
    return "ExpectColumnValuesToBeInSet", {"column": column, "value_set": [True]}


def _twice(word: str) -> Any:
    return lambda r: "the first" if r["row"] == r["first_with_id"] else f"as on {word} {r['first_with_id']}"


def _asked(tokens: int | None) -> str:
    return "at least 1" if tokens is None else str(tokens)


def _outputs_frame(ids: Sequence[str], outputs: pa.Table | pd.DataFrame) -> pd.DataFrame:
    """One row per output, numbered from 1."""
    import pandas as pd

    table = outputs.to_pandas() if isinstance(outputs, pa.Table) else outputs
    place = pd.Series(np.arange(len(ids)), index=pd.Index(list(ids), dtype="str"))
    frame = pd.DataFrame({"id": table["id"].to_numpy()}).astype("str")
    frame["place"] = frame["id"].map(place).astype("Int64")
    frame["has_prompt"] = frame["place"].notna()
    frame["finish_reason"] = table["finish_reason"].to_numpy()
    told = table["error"].notna().to_numpy() if "error" in table else np.zeros(len(frame), bool)
    frame["is_finished"] = frame["finish_reason"].isin(FINISHED) | told
    frame["n_tokens"] = pd.array(table["n_tokens"].tolist(), dtype="Int64")
    frame["asked_tokens"] = pd.array(table["asked_tokens"].tolist(), dtype="Int64")
    short = (frame["n_tokens"] < frame["asked_tokens"]).fillna(False)
    frame["is_cut_short"] = (frame["finish_reason"] == "length") & short & ~told
    return frame.set_axis(pd.RangeIndex(1, len(frame) + 1), axis="index")


def _output_checks(ids: Sequence[str], frame: pd.DataFrame) -> list[Check]:
    again = "Run the batch again: what is finished is kept, and only what is missing is sent"
    there = set(frame["id"])
    missing = [id for id in ids if id not in there]
    named = ", ".join(map(shown, missing[:SHOWN_ROWS])) + (" …" if len(missing) > SHOWN_ROWS else "")
    return [
        Check(
            "ExpectTableRowCountToEqual",
            {"value": len(ids)},
            "There are as many outputs as prompts",
            f"{len(frame)} output{'s' if len(frame) != 1 else ''} for {len(ids)} prompts"
            + (f", none for {named}" if missing else ""),
            again,
        ),
        Check(
            *_true("has_prompt"),
            "Every output belongs to a prompt",
            "an output of no prompt",
            "The prompts changed since the batch began: run it from the start",
        ),
        Check(
            "ExpectColumnValuesToBeUnique", {"column": "id"}, "No prompt has two outputs", "more than one output", again
        ),
        Check(
            "ExpectColumnValuesToBeIncreasing",
            {"column": "place"},
            "Outputs stand in the file's order",
            "not in the file's order",
            "Restore the order: orderproof restore OUT --like IN",
        ),
        Check(
            *_true("is_finished"),
            "Every request finished",
            "not finished",
            again,
            lambda r: f"finish reason {r['finish_reason']!r}",
        ),
        Check(
            "ExpectColumnValuesToBeInSet",
            {"column": "is_cut_short", "value_set": [False]},
            "No output was cut short by the model's length",
            "cut short",
            "Raise engine.args.max_model_len, or ask for less",
            lambda r: f"{r['n_tokens']} of {r['asked_tokens']} tokens",
        ),
    ]


def _conclude(folder: Path, stem: str, about: Mapping[str, Any], report: Report, source: str, word: str) -> None:
    """Keep the findings, and raise if one is a failure."""
    sentences = [f"{source}: {finding.sentence(report.rows, word)}" for finding in report.failures]
    message = "\n".join(sentences)
    results = checks.write(folder, stem, about, message, report)
    if message:
        raise ValidationFailed(message, results)
