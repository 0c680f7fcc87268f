"""Where a job stands: the order it runs in today, its last verdict, its trials, its batch and what is left to spend.

In: a `Job`, whose files may be absent or broken. Out: a plain value for machines and lines for a terminal; what cannot
be read is told in words among the `problems` and is never an error. Knows nothing of engines, MLflow, DVC or Prefect,
and recomputes no verdict.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orderproof.tasks.baseline.record import ReproductionError, read_newest
from orderproof.tasks.batch.checkpoint import FOLDER, RESULTS_FILE, CheckpointError, progress_of
from orderproof.tasks.batch.record import BatchRecordError, read_runs
from orderproof.tasks.batch.underway import underway
from orderproof.tasks.evidence import VERDICT_FILE, EvidenceError, History, Trial, read_history
from orderproof.tasks.files import md5_of
from orderproof.tasks.history import attempts
from orderproof.tasks.jobs import Job
from orderproof.tasks.outcome import TOY
from orderproof.tasks.promotion import ORDER_FILE, RECORD_FILE, Promotion, PromotionError, read_promotion
from orderproof.tasks.verdict import Verdict

SCHEMA = "orderproof/status/1"
HEADINGS = ("JOB", "RUNS IN", "LAST VERDICT", "GAIN", "TRIALS", "NOTES")


def job_status(job: Job) -> dict[str, Any]:
    """Read what lies on disk of a job.

    Returns:
        The stable shape of `orderproof status --json`; gains are fractions, times UTC, absent things null:

        - `schema`, `job`, `prompts`, `model`: as params.yaml has them
        - `order`: null while no order was ever chosen (the job runs in the file's), or `method`, `promoted`, `trial`,
          `gain`, `gain_low`, `gain_high` (of the promotion), `since`, `demoted` (when the last one was taken back)
        - `stale`: the promoted order is of another version of the prompts, so the file's holds; null: cannot be told
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
        - `last_run`: null, or the newest batch that came to its end: `run`, `ended`, `order`, `prompts`, `failed`,
          `throughput_req_s`, `throughput_tok_s`, `replicas`, `imbalance` (the slowest replica's time over their mean),
          `outputs`, `current` (the outputs are of the prompts as they are now), `sent` (MLflow has it)
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


def status_lines(told: Sequence[dict[str, Any]]) -> list[str]:
    """A table of several jobs, one a line; of a single job, a short block that leaves nothing out."""
    if len(told) == 1:
        return _block(told[0])
    rows = [HEADINGS, *(_row(one) for one in told)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


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
        except (EvidenceError, OSError) as error:
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
    try:
        return md5_of(job.prompts_path) != promotion.order.dataset_md5
    except OSError:
        return None


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
        progress = progress_of(job.data_dir / FOLDER)
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
        found = underway(job.data_dir)
    except OSError as error:
        problems.append(f"run under way: {error}")
        return None
    if found is None:
        return None
    told = found.progress
    names = ("run", "prefect_run", "prompts", "done", "rate_req_s", "seconds_left")
    return {"who": found.who, "since": found.since_utc, **{name: getattr(told, name, None) for name in names}}


def _last_run(job: Job, problems: list[str]) -> dict[str, Any] | None:
    try:
        runs = read_runs(job)
    except BatchRecordError as error:
        problems.append(f"last run: {_first_line(error)}")
        return None
    if not runs:
        return None
    last = runs[-1]
    try:
        current: bool | None = md5_of(job.prompts_path) == last.dataset_md5
    except OSError:
        current = None
    return {
        **{key: getattr(last, key) for key in ("run", "prompts", "failed", "outputs")},
        **{key: getattr(last, key) for key in ("throughput_req_s", "throughput_tok_s", "replicas", "imbalance")},
        "ended": last.ended_utc,
        "order": last.order.method,
        "current": current,
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
    try:
        current: bool | None = md5_of(job.root / made.baseline) == made.baseline_md5
    except OSError:
        current = None
    return {
        "run": made.run,
        "ended": made.ended_utc,
        "answer": made.answer,
        "identical": made.outputs.identical,
        "compared": made.outputs.compared,
        "scores": made.scores.answer if made.scores else None,
        "changes": len(made.changes),
        "current": current,
    }


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


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    order, verdict = one["order"], one["verdict"]
    promoted = order and order["promoted"] and not one["stale"]
    notes = [
        *(["toy model"] if one["toy"] else []),
        *(["promoted order is of other prompts"] if one["stale"] else []),
        *([f"{len(one['incomplete'])} without a verdict"] if one["incomplete"] else []),
        *(["generating now"] if one["underway"] else ["an unfinished batch"] if one["checkpoint"] else []),
        *(problem.split(":")[0] + " broken or missing" for problem in one["problems"]),
    ]
    return (
        one["job"],
        f"{order['method']} (promoted)" if promoted else "file",
        verdict["verdict"] if verdict else "not measured",
        _gain(verdict) if verdict else "",
        str(one["trials"]),
        ", ".join(dict.fromkeys(notes)),
    )


def _block(one: dict[str, Any]) -> list[str]:
    verdict = one["verdict"]
    facts = [("prompts", one["prompts"]), ("model", one["model"]), ("runs in", _runs_in(one))]
    if verdict:
        said = f"{verdict['verdict']} {_gain(verdict)}".strip()
        trial = f"in {verdict['blocks']} blocks of trial {verdict['trial']}" if verdict["trial"] else "without a trial"
        facts += [("last verdict", f"{said} {trial}, {verdict['when']}"), ("", verdict["reason"])]
    else:
        facts.append(("last verdict", f"none: `orderproof measure {one['job']}` gives one"))
    if one["toy"]:
        facts.append(("", TOY))
    facts.append(("trials", f"{one['trials']}; {one['attempts']} attempts at what the newest one asked"))
    facts.append(("alpha left", f"{one['alpha_left']:g} for another trial of that question"))
    facts += _batch_facts(one)
    facts += [("no verdict", f"{name}: stopped, or being measured now") for name in one["incomplete"]]
    facts += [("problem", problem) for problem in one["problems"]]
    return [one["job"], *(f"  {name:<13} {text}".rstrip() for name, text in facts)]


def _batch_facts(one: dict[str, Any]) -> list[tuple[str, str]]:
    facts, last, kept = [], one["last_run"], one["checkpoint"]
    if last:
        failed = f", {last['failed']} failed" if last["failed"] else ""
        rates = "" if last["throughput_req_s"] is None else f", {last['throughput_req_s']:.2f} req/s"
        rates += f" on {last['replicas']} replicas" if last["replicas"] > 1 else ""
        facts.append(
            ("last run", f"{last['prompts']} outputs{failed} in {last['order']} order{rates}, {last['ended']}")
        )
        if last["current"] is False:
            facts.append(("", f"of another version of the prompts: `orderproof generate {one['job']}` makes new ones"))
        if not last["sent"]:
            facts.append(("", f"not in MLflow yet: `orderproof log {one['job']}` sends it"))
    if made := one["reproduction"]:
        scores = f", scores {made['scores']}" if made["scores"] else ""
        since = f", {made['changes']} settings changed" if made["changes"] else ""
        facts.append(("reproduction", f"{made['identical']} of {made['compared']} outputs identical{scores}{since}, "
                                      f"{made['ended']}"))  # fmt: skip
        if made["current"] is False:
            facts.append(("", "of other outputs than the job has now"))
    if kept:
        newest = f", the newest of {kept['when']}" if kept["when"] else ""
        go_on = "" if one["underway"] else f": `orderproof generate {one['job']}` goes on"
        facts.append(("checkpoint", f"{kept['results']} of {kept['prompts']} results are kept{newest}{go_on}"))
    if one["underway"]:
        facts.append(("at work now", _at_work(one["underway"])))
    return facts


def _at_work(now: dict[str, Any]) -> str:
    said = f"{now['who']}, since {now['since']}"
    if now["run"] is None:
        return f"{said}; it generates nothing yet"
    left = "" if now["seconds_left"] is None else f", {now['seconds_left'] / 60:.0f} min more"
    of_all = "" if now["prompts"] is None else f" of {now['prompts']}"
    return f"{said}; {now['done']}{of_all} prompts, {now['rate_req_s']:.2f} req/s{left}"


def _runs_in(one: dict[str, Any]) -> str:
    order = one["order"]
    if order is None:
        return "the file's own order; none was ever promoted"
    if not order["promoted"]:
        return "the file's own order" + (f", since {order['demoted']} (demoted)" if order["demoted"] else "")
    if one["stale"]:
        return f"the file's own order: the promoted {order['method']} order is of another version of the prompts"
    gain = f" with {_gain(order)}" if order["gain"] is not None else ""
    return f"the {order['method']} order, promoted {order['since']} by trial {order['trial']}{gain}"


def _gain(figures: dict[str, Any]) -> str:
    if figures["gain"] is None:
        return ""
    low, high = figures["gain_low"], figures["gain_high"]
    bounds = "" if low is None or high is None else f" ({low:+.1%} to {high:+.1%})"
    return f"{figures['gain']:+.1%}{bounds}"


def _first_line(error: Exception) -> str:
    return str(error).split("\n")[0]
