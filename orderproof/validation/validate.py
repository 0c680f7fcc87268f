"""Prompts are checked before anything is spent on them, outputs after.

In: a job's prompts, or its outputs. Out: the tokenized prompts, or a `ValidationFailed` that names file, line and id;
and in a folder the findings as JSON and as a readable page. Knows nothing of orders, engines or trackers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from orderproof.job.errors import OrderproofError
from orderproof.job.spec import Job
from orderproof.prompts.prompt import PromptError, row_word
from orderproof.prompts.prompt_file import read_prompts
from orderproof.prompts.request_defaults import RequestDefaults
from orderproof.prompts.tokenization import TokenizedPrompts, tokenize
from orderproof.validation import checks, output_suite, prompt_suite

if TYPE_CHECKING:
    import pandas as pd


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
    path, flaws = job.prompts_path, prompt_suite.Flaws()
    about: dict[str, Any] = {"what": "prompts", "job": job.name, "file": job.prompts}
    try:
        prompts = tokenize(job, read_prompts(path, flaws.add, RequestDefaults(job)))
    except PromptError as error:
        checks.write(folder, "validation", about, str(error), None)
        raise
    frame = prompt_suite.frame_of(job, prompts, flaws)
    report = checks.run("prompts", frame, prompt_suite.checks_of(job, flaws))
    about |= {"prompts": len(prompts), "prompt_tokens": int(prompts.offsets[-1])}
    _conclude(folder, "validation", about, report, str(path), row_word(path))
    return prompts


def validate_outputs(
    ids: Sequence[str], outputs: pa.Table | pd.DataFrame, folder: Path, *, source: str = "outputs"
) -> None:
    """Check that every prompt has each output that it asked for, once, in the file's order, and as long as was asked.

    The folder gets outputs_validation.json and outputs_validation/index.html.

    Args:
        ids: of all prompts, in the file's order.
        outputs: one row per output, with the columns id, n_tokens, asked_tokens (null: no limit) and finish_reason;
            where prompts ask for several, also sample (from 0) and n; and error, if there is one: what went wrong with
            that prompt and is on record, so that it is no failure here.
        source: how the outputs are called in messages.

    Raises:
        ValidationFailed: any of that does not hold.
    """
    frame = output_suite.frame_of(ids, outputs)
    report = checks.run("outputs", frame, output_suite.checks_of(ids, frame))
    about = {"what": "outputs", "file": source, "prompts": len(ids), "outputs": len(frame)}
    _conclude(folder, "outputs_validation", about, report, source, "row")


def _conclude(folder: Path, stem: str, about: Mapping[str, Any], report: checks.Report, source: str, word: str) -> None:
    """Keep the findings, and raise if one is a failure."""
    sentences = [f"{source}: {finding.sentence(report.rows, word)}" for finding in report.failures]
    message = "\n".join(sentences)
    results = checks.write(folder, stem, about, message, report)
    if message:
        raise ValidationFailed(message, results)
