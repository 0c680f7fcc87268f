"""What a person sees of a measurement while it runs and when it ends: terminal, Prefect's log and artifacts.

In: a plan, passes as they finish, an outcome. Out: nothing that a verdict could rest on.
"""

from __future__ import annotations

import logging
import sys
import time
from types import TracebackType
from typing import cast
from uuid import UUID

from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    update_progress_artifact,
)
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from orderproof.tasks.errors import OrderproofError
from orderproof.tasks.evidence import CANDIDATE, CONTROL, Trial
from orderproof.tasks.jobs import Job
from orderproof.tasks.outcome import Outcome
from orderproof.tasks.plan import Plan

ARTIFACT_EVERY_S = 15.0  # a run may last hours; a server should not hear of every request


class _WithoutTraceback(logging.Filter):
    """Prefect logs a failed task with its traceback; for a mistake that the user can mend the message says all."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and isinstance(record.exc_info[1], OrderproofError):
            record.exc_info = None
        return True


for _name in ("prefect.flow_runs", "prefect.task_runs"):
    logging.getLogger(_name).addFilter(_WithoutTraceback())


def flow_run_id() -> str | None:
    """The Prefect flow run that this is part of."""
    return str(flow_run.id) if flow_run.id else None


class Reporter:
    """Progress of a trial: a bar on a terminal, a line per pass in the log, a progress artifact in Prefect."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.passes = max(plan.rule.looks) * len(plan.orders) + 1  # the most that the plan can need, warm-up included
        self.done = 0
        self.started = self.told = time.monotonic()
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
            transient=True,
        )

    def __enter__(self) -> Reporter:
        self.bar.start()
        self.row = self.bar.add_task("starting", total=self.passes * len(self.plan.prompts), rate="")
        self.artifact = create_progress_artifact(
            0.0, key=f"progress-{self.plan.job.name}", description="passes of the trial"
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()
        if kind is None:
            update_progress_artifact(cast(UUID, self.artifact), 100.0)

    def progress(self, pass_id: str, finished: int, requests: int) -> None:
        """Called for every finished request, inside the timed region: it must cost next to nothing."""
        if finished < requests and finished % 16:
            return
        now = time.monotonic()
        at = self.done * len(self.plan.prompts) + finished
        rate = at / (now - self.started)
        self.bar.update(self.row, completed=at, description=pass_id, rate=f"{rate:.1f} req/s")
        if finished == requests:
            self.done += 1

    def block(self, trial: Trial, number: int) -> None:
        """Between blocks: what the newest one showed, and how long the rest may take."""
        log = get_run_logger()
        for timed in trial.passes:
            if timed.block == number:
                fault = f", discarded: {'; '.join(timed.invalid)}" if timed.invalid else ""
                log.info(
                    "%s: %.2f req/s, %.0f tok/s, %.1f ms a step%s",
                    timed.pass_id,
                    timed.throughput_req_s,
                    timed.throughput_tok_s,
                    timed.time_per_batch_ms,
                    fault,
                )
        counted = {block.number: block for block in trial.blocks()}
        if number in counted:
            arms = counted[number].passes
            metric = trial.manifest.rule.metric
            gain = getattr(arms[CANDIDATE], metric) / getattr(arms[CONTROL], metric) - 1
            log.info(
                "block %d of at most %d: candidate %+.1f %%; at most %.0f min more",
                number,
                max(self.plan.rule.looks),
                100 * gain,
                self._minutes_left(),
            )
        now = time.monotonic()
        if now - self.told > ARTIFACT_EVERY_S:
            self.told = now
            update_progress_artifact(cast(UUID, self.artifact), min(99.0, 100 * self.done / self.passes))

    def _minutes_left(self) -> float:
        spent_s = time.monotonic() - self.started
        return max(0, self.passes - self.done) * spent_s / max(1, self.done) / 60


def announce(outcome: Outcome, job: Job) -> Outcome:
    """The verdict as Prefect's artifact, and in the log."""
    log = get_run_logger()
    verdict = outcome.verdict
    log.info("%s: %s", outcome.sentence(), verdict.reason)
    for note in outcome.notes:
        log.warning(note)
    create_markdown_artifact(_markdown(outcome), key=f"verdict-{job.name}", description=outcome.sentence())
    if outcome.page:
        create_link_artifact(
            outcome.page.as_uri(), key=f"page-{job.name}", link_text="verdict page", description=outcome.sentence()
        )
    return outcome


def _markdown(outcome: Outcome) -> str:
    shown = {
        key: value
        for key, value in outcome.as_json().items()
        if key not in ("schema", "notes", "reason") and value is not None
    }
    rows = "\n".join(f"| {key} | {value} |" for key, value in shown.items())
    notes = "".join(f"\n- {note}" for note in outcome.notes)
    return f"# {outcome.sentence()}\n\n{outcome.verdict.reason}\n\n| | |\n|---|---|\n{rows}\n{notes}\n"
