"""The checks that a job's prompts must pass, and the derived columns that they look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from orderproof.job.sampling import asked_tokens, max_model_len
from orderproof.job.spec import Job
from orderproof.prompts.file_kinds import row_word
from orderproof.prompts.prompt import PromptError
from orderproof.prompts.tokenization import CLEARLY_TOO_LONG, TokenizedPrompts
from orderproof.validation.checks import SHOWN_ROWS, Check, is_true

if TYPE_CHECKING:
    import pandas as pd


class Flaws:
    """What reading found wrong: the kind and id of every flawed row, and the first few errors of each kind."""

    def __init__(self) -> None:
        self.kinds: dict[int, str] = {}
        self.ids: dict[int, str | None] = {}
        self._problems: dict[int | None, str] = {}
        self._first: dict[str, list[PromptError]] = {}

    def add(self, error: PromptError) -> None:
        if error.row is not None:
            self.kinds[error.row], self.ids[error.row] = error.flaw, error.id
        first = self._first.setdefault(error.flaw, [])
        if len(first) < SHOWN_ROWS:
            first.append(error)
            self._problems[error.row] = error.problem

    def problem(self, columns: Mapping[str, Any]) -> str:
        """What is wrong with a row of the frame; for a row without number, with the whole file."""
        return self._problems.get(columns.get("row"), "")

    def remedy(self, kind: str) -> str:
        """What to do about the first few flaws of a kind."""
        return "; ".join(dict.fromkeys(error.remedy for error in self._first.get(kind, ())))


def build_frame(job: Job, prompts: TokenizedPrompts, flaws: Flaws) -> pd.DataFrame:
    """One row per line of the file that is not blank, in the file's order, without any text. Null: not known."""
    import pandas as pd

    asked = list(asked_tokens(job, prompts.samplings))
    sound = pd.DataFrame(
        {
            "row": prompts.lines,
            "id": pd.array(prompts.ids, dtype="str"),
            "is_whole": True,
            "is_prompt": True,
            "has_id": True,
            "has_text": True,
            "has_label": [label is not None for label in prompts.labels],
            "prompt_tokens": prompts.lengths,
            "asked_tokens": pd.array(asked, dtype="Int64"),
            # without a limit a prompt still needs room for one token
            "total_tokens": prompts.lengths + np.array([1 if n is None else n for n in asked], np.int64),
        }
    )
    kinds = list(flaws.kinds.values())
    flawed = pd.DataFrame(
        {
            "row": list(flaws.kinds),
            "id": pd.array(list(flaws.ids.values()), dtype="str"),
            "is_whole": [kind != "end" for kind in kinds],
            "is_prompt": [None if kind == "end" else kind != "row" for kind in kinds],
            "has_id": [None if kind in ("end", "row") else kind != "id" for kind in kinds],
            "has_text": [False if kind == "text" else None for kind in kinds],
            "has_label": None,
            "prompt_tokens": None,
            "asked_tokens": None,
            "total_tokens": None,
        }
    )
    booleans = dict.fromkeys(("is_whole", "is_prompt", "has_id", "has_text", "has_label"), "boolean")
    counts = dict.fromkeys(("row", "prompt_tokens", "asked_tokens", "total_tokens"), "Int64")
    types = {**booleans, **counts}
    frame = pd.concat([sound.astype(types), flawed.astype(types)]).sort_values("row", ignore_index=True)
    first = frame.loc[frame["id"].duplicated(keep=False) & frame["id"].notna()].groupby("id")["row"].transform("min")
    frame["first_with_id"] = first.reindex(frame.index)
    return frame.set_axis(pd.Index(frame["row"].astype("int64").to_numpy()), axis="index")


def build_checks(job: Job, flaws: Flaws) -> list[Check]:
    """The suite for a job's prompts. Raises JobError if the model's length is not known."""
    limit, of_rows = max_model_len(job), partial(is_true, tolerable=True)
    label_check = is_true(
        "has_label",
        "Every prompt has a label, by which it is ordered",
        "no label",
        f"Label every prompt, or choose another order.method for jobs.{job.name}",
    )
    return [
        Check(
            "ExpectTableRowCountToBeBetween",
            {"min_value": 1},
            "The file holds prompts",
            problem=flaws.problem({}),
            remedy=flaws.remedy("file"),
        ),
        is_true("is_whole", "The file is whole", "cut off", flaws.remedy("end"), flaws.problem),
        of_rows("is_prompt", "Every row can be read as a prompt", "not a prompt", flaws.remedy("row"), flaws.problem),
        of_rows("has_id", "Every prompt has an id", "no id", flaws.remedy("id"), flaws.problem),
        Check(
            "ExpectColumnValuesToBeUnique",
            {"column": "id"},
            "No two prompts have the same id",
            problem="duplicate id",
            remedy="Give every prompt its own id",
            detail=_first_use(row_word(job.prompts_path)),
        ),
        of_rows("has_text", "Every prompt has a text", "no text", flaws.remedy("text"), flaws.problem),
        Check(
            "ExpectColumnValuesToBeBetween",
            {"column": "prompt_tokens", "min_value": 1},
            "Every prompt has at least one token",
            problem="no tokens",
            remedy="Give the prompt a text that the tokenizer turns into tokens",
            tolerable=True,
        ),
        Check(
            "ExpectColumnValuesToBeBetween",
            {"column": "total_tokens", "max_value": limit},
            f"Prompt and output fit into the model's {limit:,} tokens",
            problem="too long for the model",
            remedy="Shorten the prompts, ask for fewer tokens (sampling.max_tokens), "
            f"or raise engine.args.max_model_len of jobs.{job.name}",
            detail=lambda r: (
                f"{_counted(r['prompt_tokens'], limit)} tokens and {_asked(r['asked_tokens'])} for the output "
                f"exceed {limit}"
            ),
            tolerable=True,
        ),
        *([label_check] if job.order.method == "label" else []),
    ]


def usable(job: Job, frame: pd.DataFrame) -> pd.Series[bool]:
    """Which rows of the frame can be sent; the others get no output but the reason, as far as they are tolerated."""
    faults = ~frame[["is_prompt", "has_id", "has_text"]].fillna(True)
    too_short, too_long = frame["prompt_tokens"] < 1, frame["total_tokens"] > max_model_len(job)
    return ~(faults.any(axis="columns") | too_short.fillna(False) | too_long.fillna(False)).astype(bool)


def _first_use(word: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda r: "first use" if r["row"] == r["first_with_id"] else f"first on {word} {r['first_with_id']}"


def _counted(tokens: int, limit: int) -> str:
    return f"more than {limit}" if tokens > CLEARLY_TOO_LONG * limit else str(tokens)


def _asked(tokens: int | None) -> str:
    return "at least 1" if tokens is None else str(tokens)
