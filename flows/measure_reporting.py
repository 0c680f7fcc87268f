"""What a person sees of a measurement while it runs and when it ends: terminal, Prefect's log and artifacts.

In: a plan, passes as they finish, an outcome. Out: nothing that a verdict could rest on.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any
from uuid import UUID

from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact

from flows.reporting import (
    ARTIFACT_EVERY_S,
    artifact_key,
    best_effort,
    progress_artifact,
    progress_bar,
    run_logger,
    tell_progress,
)
from orderproof.job.spec import Job
from orderproof.measure.outcome import Outcome
from orderproof.measure.plan import Plan
from orderproof.measure.trial_store import Pass, Trial
from orderproof.outputs.passes import CANDIDATE, CONTROL
from orderproof.runs.trial_tracking import where_to_see


def foretell(plan: Plan) -> None:
    """Before anything is spent: how long it may take, and how little it could see."""
    log, gain, excess = run_logger(), plan.detectable_gain_before, plan.detectable_excess_before
    log.info("at most %d blocks of %d passes", max(plan.rule.looks), len(plan.orders))
    if gain is None:
        log.info("no history: how small a gain they can see is reported afterwards")
    else:
        log.info("the smallest gain that they see with 80 %% power: %+.1f %%", 100 * gain)
    if excess is not None:
        log.info("the smallest excess of changed outputs over reshuffling, likewise: %.1f points", 100 * excess)


class Reporter:
    """Progress of a trial: a bar on a terminal, a line per pass in the log, a progress artifact in Prefect."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.passes = max(plan.rule.looks) * len(plan.orders) + 1  # the most that the plan can need, warm-up included
        self.done = 0
        self.started = self.told = time.monotonic()
        self.artifact: UUID | None = None
        self.bar = progress_bar()

    def __enter__(self) -> Reporter:
        self.bar.start()
        self.row = self.bar.add_task("starting", total=self.passes * len(self.plan.prompts), rate="")
        self.artifact = progress_artifact(0.0, self._key("progress"), "passes of the trial")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()
        if kind is None:
            tell_progress(self.artifact, 100.0)

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
        rows, log = [_row(timed) for timed in trial.passes if timed.block == number], run_logger()
        for row in rows:
            log.info("%(pass)s: %(req/s)s req/s, %(tok/s)s tok/s, %(ms a step)s ms a step; valid: %(valid)s", row)
        gain = _gain(trial, number)
        said = "discarded" if gain is None else f"candidate {100 * gain:+.1f} %"
        most = max(self.plan.rule.looks)
        log.info("block %d of at most %d: %s; at most %.0f min more", number, most, said, self._minutes_left())
        with best_effort("the block's table"):
            create_table_artifact(rows, key=self._key("block"), description=f"block {number} of at most {most}: {said}")
        now = time.monotonic()
        if now - self.told > ARTIFACT_EVERY_S:
            self.told = now
            tell_progress(self.artifact, min(99.0, 100 * self.done / self.passes))

    def _key(self, kind: str) -> str:
        return artifact_key(kind, self.plan.job.name, self.plan.placebo)

    def _minutes_left(self) -> float:
        spent_s = time.monotonic() - self.started
        return max(0, self.passes - self.done) * spent_s / max(1, self.done) / 60


def _row(timed: Pass) -> dict[str, Any]:
    """A pass's figures, for the log and for the block's table."""
    return {
        "pass": timed.pass_id,
        "req/s": f"{timed.throughput_req_s:.2f}",
        "tok/s": f"{timed.throughput_tok_s:.0f}",
        "ms a step": f"{timed.time_per_batch_ms:.1f}",
        "valid": "; ".join(timed.invalid) or "yes",
    }


def _gain(trial: Trial, number: int) -> float | None:
    """What one block alone shows; None if it does not count."""
    metric = trial.manifest.rule.metric
    for block in trial.blocks():
        if block.number == number:
            rates = [float(getattr(block.passes[arm], metric)) for arm in (CANDIDATE, CONTROL)]
            return rates[0] / rates[1] - 1
    return None


def announce(outcome: Outcome, job: Job) -> Outcome:
    """The verdict as Prefect's artifact, and in the log."""
    log = run_logger()
    log.info("%s: %s", outcome.sentence(), outcome.verdict.reason)
    for note in outcome.notes:
        log.warning("%s", note)
    said = outcome.sentence()
    with best_effort("the verdict's artifact"):
        key = artifact_key("verdict", job.name, outcome.placebo)
        create_markdown_artifact(_markdown(outcome, job), key=key, description=said)
    if outcome.page:
        with best_effort("the link to the page"):
            key = artifact_key("page", job.name, outcome.placebo)
            create_link_artifact(outcome.page.as_uri(), key=key, link_text="verdict page", description=said)
    return outcome


def _markdown(outcome: Outcome, job: Job) -> str:
    shown = {
        key: value
        for key, value in outcome.as_json().items()
        if key not in ("schema", "notes", "reason") and value is not None
    }
    rows = "\n".join(f"| {key} | {value} |" for key, value in shown.items())
    seen = f"\nMLflow: {where_to_see(job, outcome.mlflow_run)}\n" if outcome.mlflow_run else ""
    notes = "".join(f"\n- {note}" for note in outcome.notes)
    return f"# {outcome.sentence()}\n\n{outcome.verdict.reason}\n\n| | |\n|---|---|\n{rows}\n{seen}{notes}\n"
