"""Where a job stands: the order it runs in, its last runs, its unfinished generation, and what alpha is left."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path

from pydantic import JsonValue

from orderproof.generate.checkpoint import count_done
from orderproof.generate.checkpoint_folder import FOLDER, RESULTS_FILE, CheckpointError
from orderproof.generate.progress import find_active_run
from orderproof.generate.windowed_ordering import STREAMED_FILE
from orderproof.job.hashing import md5_of
from orderproof.job.paths import Verb
from orderproof.job.spec import Job
from orderproof.measure.trial_history import attempts
from orderproof.measure.trial_store import EvidenceError, History, Trial, read_history
from orderproof.prompts.prompt import PromptError
from orderproof.prompts.prompt_files import find_files
from orderproof.reproduce.record import ReproductionError, read_newest
from orderproof.runs import ledger
from orderproof.runs.dvc import lock_problem
from orderproof.runs.promotion import ORDER_FILE, RECORD_FILE, PromotionError, read_promotion
from orderproof.runs.promotion_record import Promotion
from orderproof.runs.run import Frozen, Run
from orderproof.runs.run_store import RECORD_FILE as RUN_FILE
from orderproof.runs.run_store import RunError, newest_run, verb_folder
from orderproof.runs.sent import sent_as
from orderproof.status.savings import sum_up

VERBS: tuple[Verb, ...] = ("measure", "generate", "reproduce", "plan", "capture", "lossy")


class OrderStatus(Frozen):
    """The order that was chosen for a job."""

    method: str
    promoted: bool
    trial: str | None
    gain: float | None  # of the promotion; fractions
    gain_low: float | None
    gain_high: float | None
    since: str
    demoted: str | None  # when the last promotion was taken back
    stale: bool | None  # promoted for another version of the prompts, so the file's order is used; None: unknown


class RunStatus(Frozen):
    """The newest run of one verb."""

    id: str
    ended: str
    answer: str
    sentence: str
    reason: str
    figures: dict[str, float | None]
    current: bool | None  # it is of the job's prompts as they are now; None: unknown
    sent: bool  # MLflow has it


class CheckpointStatus(Frozen):
    """An unfinished generation."""

    results: int
    prompts: int
    when: str | None  # of the last result


class ActiveStatus(Frozen):
    """The generation that is at work now."""

    who: str  # "process 123 on host"
    since: str
    run: str | None = None  # None: it generates nothing yet (it waits, validates, or its engine loads)
    prefect_run: str | None = None
    prompts: int | None = None  # None: of a stream, whose end is unknown
    done: int | None = None
    rate_req_s: float | None = None
    seconds_left: float | None = None


class JobStatus(Frozen):
    """What lies on disk of a job. Absent things are null, times UTC."""

    schema_version: str = "orderproof/status/2"
    job: str
    prompts: str
    model: str
    order: OrderStatus | None  # null: none was ever chosen, so the job runs in the file's order
    lossy_k0: int | None  # LOSSY routing that params.yaml accepts; null: the model's own routing
    runs: dict[str, RunStatus]  # the newest of each verb
    trials: int  # that can be read, A/A tests left out
    attempts: int  # trials that asked the newest one's question and finished a block, and all that cannot be read
    alpha_left: float  # what another trial of that question may spend: halved by each attempt
    toy: bool  # the newest trial was of the demo's toy model
    checkpoint: CheckpointStatus | None
    active: ActiveStatus | None
    streamed: bool  # the newest outputs are of prompts that came as a stream
    savings: dict[str, JsonValue] | None  # what measuring cost and the order saved; null: nothing ran yet
    incomplete: list[str]  # trials without a verdict: stopped, or being measured now
    problems: list[str]  # what is missing or broken, in words


def read_status(job: Job) -> JobStatus:
    """Read what lies on disk of a job. What cannot be read is among the `problems`, never an error."""
    problems = _missing_inputs(job)
    if problem := lock_problem(job.root):
        problems.append(problem)
    history = _readable_history(job, problems)
    trials = history.trials
    promotion = _readable_promotion(job, problems)
    spent = attempts(history, trials[-1].manifest.question if trials else "")
    runs = {verb: run for verb in VERBS if (run := _newest(job, verb, problems))}
    _check_reproduction(job, problems)
    generated = runs.get("generate")
    return JobStatus(
        job=job.name,
        prompts=job.prompts_name,
        model=job.model,
        order=_order(job, promotion) if promotion else None,
        lossy_k0=job.lossy_k0,
        runs={verb: _run_status(job, run) for verb, run in runs.items()},
        trials=len(trials),
        attempts=spent,
        alpha_left=job.measure.alpha / 2**spent,
        toy=bool(trials and trials[-1].manifest.model.get("toy")),
        checkpoint=_checkpoint(job, problems),
        active=_active(job, problems),
        streamed=bool(generated and _has_md5(job.data_dir / STREAMED_FILE, generated.basis.dataset_md5)),
        savings=_savings(job, problems),
        incomplete=_incomplete(trials),
        problems=problems,
    )


def _missing_inputs(job: Job) -> list[str]:
    problems = []
    if not job.has_remote_prompts:  # those are not asked for: a status waits for no server
        try:
            find_files(job)
        except PromptError as error:
            problems.append(f"prompts: {job.prompts_name} {error.problem}")
    if not (job.model_path / "config.json").is_file():
        problems.append(f"model: {job.model} is missing (no config.json)")
    return problems


def _readable_history(job: Job, problems: list[str]) -> History:
    """As a plan reads it; trials that cannot be read are named among the problems."""
    reports = verb_folder(job, "measure")
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
            f"order: {ORDER_FILE} and {RECORD_FILE} in data/{job.name} are not a pair, so the file's order is used: "
            "`dvc checkout` restores a recorded pair, measuring makes a new one"
        )
    return promotion


def _order(job: Job, promotion: Promotion) -> OrderStatus:
    verdict = promotion.verdict if promotion.promoted else None
    fits = _are_prompts(job, promotion.order.dataset_md5) if promotion.promoted else True
    return OrderStatus(
        method=promotion.order.method,
        promoted=promotion.promoted,
        trial=promotion.trial,
        gain=verdict.gain if verdict else None,
        gain_low=verdict.gain_low if verdict else None,
        gain_high=verdict.gain_high if verdict else None,
        since=promotion.created_utc,
        demoted=promotion.demoted.demoted_utc if promotion.demoted else None,
        stale=None if fits is None else not fits,
    )


def _newest(job: Job, verb: Verb, problems: list[str]) -> Run | None:
    try:
        return newest_run(job, verb)
    except RunError as error:
        problems.append(f"last {verb}: {_first_line(error)}")
        return None


def _check_reproduction(job: Job, problems: list[str]) -> None:
    try:
        read_newest(job)
    except ReproductionError as error:
        problems.append(f"reproduction: {_first_line(error)}")


def _run_status(job: Job, run: Run) -> RunStatus:
    md5 = run.basis.dataset_md5
    return RunStatus(
        id=run.id,
        ended=run.ended_utc,
        answer=run.answer,
        sentence=run.sentence,
        reason=run.reason,
        figures={name: value for figure in run.figures for name, value in figure.flat().items()},
        current=None if md5 is None else _are_prompts(job, md5),
        sent=sent_as(job, run) is not None,
    )


def _checkpoint(job: Job, problems: list[str]) -> CheckpointStatus | None:
    try:
        progress = count_done(job.data_dir / FOLDER)
    except CheckpointError as error:
        problems.append(f"checkpoint: {_first_line(error)}")
        return None
    if progress is None:
        return None
    results = job.data_dir / FOLDER / RESULTS_FILE
    return CheckpointStatus(
        results=progress[0], prompts=progress[1], when=_time_of(results) if results.exists() else None
    )


def _active(job: Job, problems: list[str]) -> ActiveStatus | None:
    try:
        found = find_active_run(job.data_dir)
    except OSError as error:
        problems.append(f"active run: {error}")
        return None
    if found is None:
        return None
    progress = found.progress
    if progress is None:
        return ActiveStatus(who=found.holder, since=found.since_utc)
    return ActiveStatus(
        who=found.holder,
        since=found.since_utc,
        run=progress.run,
        prefect_run=progress.prefect_run,
        prompts=progress.prompts,
        done=progress.done,
        rate_req_s=progress.rate_req_s,
        seconds_left=progress.seconds_left,
    )


def _savings(job: Job, problems: list[str]) -> dict[str, JsonValue] | None:
    try:
        entries = ledger.read(job.data_dir / ledger.FILE)
    except ledger.LedgerError as error:
        problems.append(f"ledger: {_first_line(error)}")
        return None
    return sum_up(entries).as_json() if entries else None


def _incomplete(trials: Sequence[Trial]) -> list[str]:
    return [trial.folder.name for trial in trials if not (trial.folder / RUN_FILE).exists()]


def _are_prompts(job: Job, md5: str) -> bool | None:
    """Whether the job's prompts have this hash; None: they cannot be read, or would have to be fetched."""
    try:
        return None if job.has_remote_prompts else find_files(job).md5() == md5
    except (PromptError, OSError):
        return None


def _has_md5(path: Path, md5: str | None) -> bool | None:
    """Whether a file has this content; None: it cannot be read."""
    try:
        return md5_of(path) == md5
    except OSError:
        return None


def _time_of(path: Path) -> str:
    """When a file was written last."""
    return datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.UTC).isoformat(timespec="seconds")


def _first_line(error: Exception) -> str:
    return str(error).split("\n")[0]
