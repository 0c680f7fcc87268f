"""Checks prompts before anything is spent on them, and outputs after: findings as JSON and as a readable page."""

from __future__ import annotations

import dataclasses
import importlib.util
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from orderproof.engines.settings_check import Refusal, check_settings
from orderproof.job.errors import OrderproofError
from orderproof.job.spec import Job
from orderproof.prompts.file_kinds import name_of, row_word
from orderproof.prompts.prompt import PromptError
from orderproof.prompts.prompt_file import read_prompts
from orderproof.prompts.prompt_files import find_files
from orderproof.prompts.request_defaults import RequestDefaults
from orderproof.prompts.tokenization import TokenizedPrompts, tokenize
from orderproof.prompts.tolerance import sufficient, tolerance, tolerates
from orderproof.validation import checks, output_suite, prompt_suite

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger(__name__)

SHOWN_REFUSALS = 10  # of settings, in a message
LEFT_OUT = "left out: "  # begins a notice about single rows


class ValidationFailed(OrderproofError):
    """Prompts or outputs that must not be used. `results` is the content of the JSON file in the folder."""

    def __init__(self, message: str, results: Mapping[str, Any]):
        super().__init__(message)
        self.results = results


def validate_prompts(job: Job, folder: Path) -> TokenizedPrompts:
    """Read, tokenize and check a job's prompts; the error names all flaws of a file at once.

    What should be known about prompts that are used, such as columns that are not read, is logged as warnings and kept
    in `notices`; and so is which rows are left out, as far as the job tolerates that. The folder gets validation.json,
    and validation/index.html where the file could be read.

    Raises:
        ValidationFailed: more rows than are tolerated are no prompts or do not fit the model, an id is used twice, …
        PromptError: the file or the tokenizer cannot be used at all.
        JobError: the model's length is not known.
    """
    flaws, notices = prompt_suite.Flaws(), list[str]()
    about: dict[str, Any] = {"what": "prompts", "job": job.name, "file": job.prompts_name}
    try:
        files = find_files(job)
        prompts = tokenize(job, read_prompts(files, flaws.add, RequestDefaults(job), notices.append), flaws.add)
    except PromptError as error:
        checks.write_findings(folder, "validation", about, str(error), None)
        raise
    frame, suite = prompt_suite.build_frame(job, prompts, flaws), prompt_suite.build_checks(job, flaws)
    report = checks.run_suite("prompts", frame, suite)
    notices += prompts.notices
    path, word, remedy = name_of(files.path), row_word(files.path), ""
    if report.failures and all(finding.check.tolerable for finding in report.failures):
        usable = prompt_suite.usable(job, frame)
        left_out = int((~usable).sum())
        if usable.any() and tolerates(job, left_out, len(frame)):
            notices.append(f"{path}: {left_out} of {len(frame)} {word}s are left out, and {tolerance(job)}")
            notices += [f"{LEFT_OUT}{finding.message(report.rows, word)}" for finding in report.failures]
            report = checks.run_suite("prompts", frame[usable], suite)
            prompts = prompts.take(np.flatnonzero(np.isin(prompts.lines, frame.index[usable])))
            prompts = dataclasses.replace(prompts, rows_left_out=left_out)
        elif usable.any():
            remedy = f"To go on without such {word}s, {sufficient(left_out, len(frame))}: now, {tolerance(job)}"
    about |= {"prompts": len(prompts), "prompt_tokens": int(prompts.offsets[-1]), "notices": notices}
    about |= {"left_out": prompts.rows_left_out}
    _log(job, notices)
    _conclude(folder, "validation", about, report, path, word, remedy)
    return dataclasses.replace(prompts, notices=tuple(notices))


def validate_prompts_and_sampling(job: Job, folder: Path) -> TokenizedPrompts:
    """As `validate_prompts`; where prompts have a sampling of their own, vLLM is asked too: as `validate_settings`."""
    prompts = validate_prompts(job, folder)
    return validate_settings(job, prompts) if any(prompts.samplings) else prompts


def validate_settings(job: Job, prompts: TokenizedPrompts) -> TokenizedPrompts:
    """Ask vLLM what it refuses of the job's engine, adapters and sampling, and of the prompts' own sampling.

    Returns:
        The prompts without those whose sampling it refuses, as far as the job tolerates that; `notices` says so, or why
        vLLM was not asked.

    Raises:
        ValidationFailed: a setting that it refuses.
        EngineError: `engine.command` does not start, or has no vLLM.
    """
    if job.engine.server:
        return _with_notices(job, prompts, "engine and sampling are not checked: the server has its own vLLM")
    if not job.engine.command and importlib.util.find_spec("vllm") is None:
        return _with_notices(job, prompts, "engine.args and sampling are not checked: there is no vLLM here")
    rows = zip(prompts.lines.tolist(), prompts.ids, prompts.samplings, strict=True)
    refusals = check_settings(job, rows)
    if not refusals:
        return prompts
    path, word = job.prompts_path, row_word(job.prompts_path)
    shown = [refusal.message(f"{path}: {word}") for refusal in refusals[:SHOWN_REFUSALS]]
    more = [f"and {len(refusals) - len(shown)} more"] if refusals[len(shown) :] else []
    refused = np.isin(prompts.lines, [row for refusal in refusals for row in refusal.rows])
    left_out, total = prompts.rows_left_out + int(refused.sum()), len(prompts) + prompts.rows_left_out
    if refused.all() or not all(refusal.rows for refusal in refusals):
        raise ValidationFailed("\n".join([*shown, *more]), _as_json(refusals))
    if not tolerates(job, left_out, total):
        remedy = f"To go on without such {word}s, {sufficient(left_out, total)}: now, {tolerance(job)}"
        raise ValidationFailed("\n".join([*shown, *more, remedy]), _as_json(refusals))
    kept = dataclasses.replace(prompts.take(np.flatnonzero(~refused)), rows_left_out=left_out, notices=prompts.notices)
    return _with_notices(job, kept, *(f"{LEFT_OUT}{line}" for line in [*shown, *more]))


def _with_notices(job: Job, prompts: TokenizedPrompts, *notices: str) -> TokenizedPrompts:
    _log(job, notices)
    return dataclasses.replace(prompts, notices=(*prompts.notices, *notices))


def _log(job: Job, notices: Sequence[str]) -> None:
    """Prefect gets what is logged, so words about single rows, which may quote them, only where the owner allows it."""
    for notice in notices:
        if job.reporting.log_text or not notice.startswith(LEFT_OUT):
            logger.warning(notice)


def _as_json(refusals: Sequence[Refusal]) -> dict[str, Any]:
    return {
        "settings": [
            {"where": r.where, "problem": r.problem, "first_row": r.rows[0] if r.rows else None, "rows": len(r.rows)}
            for r in refusals
        ]
    }


def validate_outputs(
    ids: Sequence[str], outputs: pa.Table | pd.DataFrame, folder: Path, *, source: str = "outputs"
) -> None:
    """Check that every prompt has each of its outputs once, in the file's order, and as long as was asked.

    The folder gets outputs_validation.json and outputs_validation/index.html.

    Args:
        ids: of all prompts, in the file's order.
        outputs: one row per output, with the columns id, n_tokens, asked_tokens (null: no limit) and finish_reason;
            where prompts ask for several, also sample (from 0) and n; optionally error: a recorded error of that
            prompt, which is no failure here.
        source: the outputs' name in messages.

    Raises:
        ValidationFailed: a check failed.
    """
    frame = output_suite.build_frame(ids, outputs)
    report = checks.run_suite("outputs", frame, output_suite.build_checks(ids, frame))
    about = {"what": "outputs", "file": source, "prompts": len(ids), "outputs": len(frame)}
    _conclude(folder, "outputs_validation", about, report, source, "row")


def _conclude(
    folder: Path,
    stem: str,
    about: Mapping[str, Any],
    report: checks.Report,
    source: str,
    word: str,
    remedy: str = "",
) -> None:
    """Write the findings, and raise if a check failed."""
    lines = [f"{source}: {finding.message(report.rows, word)}" for finding in report.failures]
    message = "\n".join(lines) + (f". {remedy}" if lines and remedy else "")
    results = checks.write_findings(folder, stem, about, message, report)
    if message:
        raise ValidationFailed(message, results)
