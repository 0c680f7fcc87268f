"""Where a job stands: the order it runs in today, its last verdict, its trials, its batch and what is left to spend.

In: a `Job`, whose files may be absent or broken. Out: a plain value; what cannot be read is told in words among the
`problems` and is never an error. Knows nothing of engines, MLflow, DVC or Prefect, and recomputes no verdict.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orderproof.generate.checkpoint import count_done
from orderproof.generate.checkpoint_folder import FOLDER, RESULTS_FILE, CheckpointError
from orderproof.generate.progress import find_active_run
from orderproof.generate.record import BatchRecordError, read_runs
from orderproof.generate.windowed_ordering import STREAMED_FILE
from orderproof.job.hashing import md5_of
from orderproof.job.spec import Job
from orderproof.measure.trial_history import attempts
from orderproof.measure.trial_store import VERDICT_FILE, EvidenceError, History, Trial, read_history
from orderproof.measure.verdict import Verdict
from orderproof.reproduce.record import ReproductionError, read_newest
from orderproof.runs.promotion import ORDER_FILE, RECORD_FILE, PromotionError, read_promotion
from orderproof.runs.promotion_record import Promotion

SCHEMA = "orderproof/status/1"


def job_status(job: Job) -> dict[str, Any]:
    """Read what lies on disk of a job.

    Returns:
        The stable shape of `orderproof status --json`; gains are fractions, times UTC, absent things null:

        - `schema`, `job`, `prompts`, `model`: as params.yaml has them
        - `order`: null while no order was ever chosen (the job runs in the file's), or `method`, `promoted`, `trial`,
          `gain`, `gain_low`, `gain_high` (of the promotion), `since`, `demoted` (when the last one was taken back)
        - `stale`: the promoted order is of another version of the prompts, so the file's holds; null: cannot be told
        - `lossy_k0`: null while the model's own routing is kept; of the LOSSY one that params.yaml accepts, which
          `generate` uses if evidence carries it
        - `verdict`: null, or `verdict`, `reason`, `gain`, `gain_low`, `gain_high`, `blocks`, `trial` (null: refused
          before one began), `when`
        - `toy`: the newest trial was of the demo's toy model, whose gain is nobody's
        - `trials`: how many can be read, placebos left out
        - `attempts`: trials that asked what the newest one asked and came to at least one whole block, and all that
          cannot be read any more
        - `alpha_left`: what another trial of that question may spend (halved by each attempt)
        - `checkpoint`: null, or the unfinished batch: `results` kept of `prompts`, the last of them at `when`
        - `underway`: null, or the run of the batch that is at work now: `who`, `since`, and, once it generates, `run`,
          `prefect_run`, `prompts`, `done`, `rate_req_s` (so far), `seconds_left` (at that rate); null before
        - `last_run`: null, or the newest batch that came to its end: `run`, `ended`, `order`, `lossy_k0`, `prompts`,
          `failed`, `throughput_req_s`, `throughput_tok_s`, `replicas`, `imbalance` (the slowest replica's time over
          their mean), `outputs`, `streamed` (its prompts came as a stream, and are kept), `current` (the outputs are of
          the job's own prompts as they are now), `sent` (MLflow has it)
        - `reproduction`: null, or the newest: `run`, `ended`, `answer`, `identical` of `compared` outputs, `scores`
          (their answer), `changes` (how many settings), `current` (of the outputs that the job has now; null: none)
        - `incomplete`: trials without a verdict, which were stopped or are being measured now
        - `problems`: what is missing or broken, in words
    """
    problems = _missing_inputs(job)
    history = _readable_history(job.reports_dir, problems)
    trials = history.trials
    promotion = _readable_promotion(job, problems)
    spent = attempts(history, trials[-1].manifest.question if trials else "")
    return {
        "schema": SCHEMA,
        "job": job.name,
        "prompts": job.prompts,
        "model": job.model,
        "order": _order(promotion) if promotion else None,
        "stale": _stale(job, promotion),
        "lossy_k0": job.lossy_k0,
        "verdict": _last_verdict(job.reports_dir, trials, problems),
        "toy": bool(trials and trials[-1].manifest.model.get("toy")),
        "trials": len(trials),
        "attempts": spent,
        "alpha_left": job.measure.alpha / 2**spent,
        "checkpoint": _checkpoint(job, problems),
        "underway": _underway(job, problems),
        "last_run": _last_run(job, problems),
        "reproduction": _reproduction(job, problems),
        "incomplete": [trial.folder.name for trial in trials if not (trial.folder / VERDICT_FILE).exists()],
        "problems": problems,
    }


def _missing_inputs(job: Job) -> list[str]:
    problems = []
    if not job.prompts_path.is_file():
        problems.append(f"prompts: {job.prompts} is not there")
    if not (job.model_path / "config.json").is_file():
        problems.append(f"model: {job.model} is not there (no config.json)")
    return problems


def _readable_history(reports: Path, problems: list[str]) -> History:
    """As the plan reads it; what is no evidence any more is named among the problems."""
    history = read_history(reports)
    for name in history.unreadable:
        try:
            Trial.read(reports / name)
        except EvidenceError as error:
            problems.append(f"trial {name}: {_first_line(error)}")
    return history


def _readable_promotion(job: Job, problems: list[str]) -> Promotion | None:
    try:
        promotion = read_promotion(job)
    except (PromotionError, OSError, ValueError) as error:
        problems.append(f"order: {_first_line(error)}")
        return None
    if promotion is None and any((job.data_dir / name).exists() for name in (ORDER_FILE, RECORD_FILE)):
        problems.append(
            f"order: {ORDER_FILE} and {RECORD_FILE} in data/{job.name} are not a pair, so the file's order holds: "
            "`dvc checkout` brings a recorded pair back, measuring makes a new one"
        )
    return promotion


def _order(promotion: Promotion) -> dict[str, Any]:
    verdict = promotion.verdict if promotion.promoted else None
    return {
        "method": promotion.order.method,
        "promoted": promotion.promoted,
        "trial": promotion.trial,
        "gain": verdict.gain if verdict else None,
        "gain_low": verdict.gain_low if verdict else None,
        "gain_high": verdict.gain_high if verdict else None,
        "since": promotion.created_utc,
        "demoted": promotion.demoted.demoted_utc if promotion.demoted else None,
    }


def _stale(job: Job, promotion: Promotion | None) -> bool | None:
    if promotion is None or not promotion.promoted:
        return False
    fits = _is(job.prompts_path, promotion.order.dataset_md5)
    return None if fits is None else not fits


def _last_verdict(reports: Path, trials: Sequence[Trial], problems: list[str]) -> dict[str, Any] | None:
    path = reports / VERDICT_FILE
    try:
        text = path.read_bytes()
        verdict = Verdict.model_validate_json(text)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        problems.append(f"verdict: {path} cannot be read: {_first_line(error)}")
        return None
    trial = next((trial for trial in reversed(trials) if _holds(trial.folder / VERDICT_FILE, text)), None)
    return {
        **{key: getattr(verdict, key) for key in ("verdict", "reason", "gain", "gain_low", "gain_high", "blocks")},
        "trial": trial.folder.name if trial else None,
        "when": _ended(trial).isoformat(timespec="seconds") if trial else _time_of(path),
    }


def _checkpoint(job: Job, problems: list[str]) -> dict[str, Any] | None:
    try:
        progress = count_done(job.data_dir / FOLDER)
    except CheckpointError as error:
        problems.append(f"checkpoint: {_first_line(error)}")
        return None
    if progress is None:
        return None
    results = job.data_dir / FOLDER / RESULTS_FILE
    when = _time_of(results) if results.exists() else None
    return {"results": progress[0], "prompts": progress[1], "when": when}


def _underway(job: Job, problems: list[str]) -> dict[str, Any] | None:
    try:
        found = find_active_run(job.data_dir)
    except OSError as error:
        problems.append(f"run under way: {error}")
        return None
    if found is None:
        return None
    told = found.progress
    names = ("run", "prefect_run", "prompts", "done", "rate_req_s", "seconds_left")
    return {"who": found.holder, "since": found.since_utc, **{name: getattr(told, name, None) for name in names}}


def _last_run(job: Job, problems: list[str]) -> dict[str, Any] | None:
    try:
        runs = read_runs(job)
    except BatchRecordError as error:
        problems.append(f"last run: {_first_line(error)}")
        return None
    if not runs:
        return None
    last = runs[-1]
    return {
        **{key: getattr(last, key) for key in ("run", "lossy_k0", "prompts", "failed", "outputs")},
        **{key: getattr(last, key) for key in ("throughput_req_s", "throughput_tok_s", "replicas", "imbalance")},
        "ended": last.ended_utc,
        "order": last.order.method,
        "streamed": bool(_is(job.data_dir / STREAMED_FILE, last.dataset_md5)),
        "current": _is(job.prompts_path, last.dataset_md5),
        "sent": last.mlflow_run is not None,
    }


def _reproduction(job: Job, problems: list[str]) -> dict[str, Any] | None:
    try:
        made = read_newest(job)
    except ReproductionError as error:
        problems.append(f"reproduction: {_first_line(error)}")
        return None
    if made is None:
        return None
    return {
        "run": made.run,
        "ended": made.ended_utc,
        "answer": made.answer,
        "identical": made.outputs.identical,
        "compared": made.outputs.compared,
        "scores": made.scores.answer if made.scores else None,
        "changes": len(made.changes),
        "current": _is(job.root / made.baseline, made.baseline_md5),
    }


def _is(path: Path, md5: str) -> bool | None:
    """Whether a file has this content; None: cannot be told."""
    try:
        return md5_of(path) == md5
    except OSError:
        return None


def _holds(path: Path, content: bytes) -> bool:
    try:
        return path.read_bytes() == content
    except OSError:
        return False


def _time_of(path: Path) -> str:
    """When a file was written last."""
    return datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.UTC).isoformat(timespec="seconds")


def _ended(trial: Trial) -> datetime.datetime:
    """When the trial's last pass ended: unlike a file's time, a checkout does not change it."""
    if not trial.passes:
        return datetime.datetime.fromisoformat(trial.manifest.created_utc)
    last = trial.passes[-1]
    return datetime.datetime.fromisoformat(last.started_utc) + datetime.timedelta(seconds=last.wall_s)


def _first_line(error: Exception) -> str:
    return str(error).split("\n")[0]
