"""Runs that no tracker has taken yet, sent later."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from orderproof.forecast import record as forecast_record
from orderproof.generate import tracking as generate_tracking
from orderproof.job.paths import Verb
from orderproof.job.spec import Job
from orderproof.measure import tracking as measure_tracking
from orderproof.reproduce import steps as reproduce_steps
from orderproof.runs.mlflow_run import Tracking
from orderproof.runs.recorder import Presentation, send
from orderproof.runs.run import Run
from orderproof.runs.run_store import read_runs
from orderproof.runs.sent import sent_as

TRACKING: Mapping[Verb, Callable[[Job, Run], Tracking]] = {
    "measure": measure_tracking.tracking_of,
    "aa": measure_tracking.tracking_of,
    "generate": lambda _, run: generate_tracking.tracking_of(run),
    "reproduce": lambda _, run: reproduce_steps.tracking_of(run),
    "plan": lambda _, run: forecast_record.tracking_of(run),
    "capture": lambda _, __: Tracking(),
    "lossy": lambda _, __: Tracking(),
}


def send_unsent(job: Job) -> list[Run]:
    """Send every run of a job that the present tracker does not have, oldest first. Returns them.

    Raises:
        TrackingError: the tracker is down or refuses; those that it took are marked as sent.
        RunError: a record cannot be read.
    """
    waiting = [run for verb in TRACKING for run in read_runs(job, verb) if sent_as(job, run) is None]
    return [_send(job, run) for run in sorted(waiting, key=lambda run: run.id)]


def _send(job: Job, run: Run) -> Run:
    tracking = TRACKING[run.verb]
    return send(job, run, Presentation(tracking=lambda sent: tracking(job, sent)))
