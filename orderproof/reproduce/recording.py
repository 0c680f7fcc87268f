"""What becomes of a reproduction: record, picture, MLflow, DVC, git.

In: a job and its `Reproduction`. Out: the `Reproduction`, with notes on what did not work. Each step may fail for
itself: the comparison is on disk before any of them.
"""

from __future__ import annotations

from orderproof.job.spec import Job
from orderproof.reproduce.picture import draw_divergence
from orderproof.reproduce.record import Reproduction, keep, keep_newest, reports_of
from orderproof.reproduce.tracking import log_reproduction, log_waiting
from orderproof.runs.dvc import DvcError
from orderproof.runs.recording import Inputs, git_revision, noting, record_outputs


def report(job: Job, made: Reproduction, prefect_run: str | None) -> Reproduction:
    """Keep the record, draw its picture, and send it to MLflow before those that no tracker took."""
    made = made.model_copy(update={"prefect_run": prefect_run})
    keep(job, made)
    keep_newest(job, made)
    notes: list[str] = []
    with noting(notes, "the picture is missing"):
        draw_divergence(made, reports_of(job) / f"{made.run}.png")
    with noting(notes, f"MLflow does not have all reproductions yet: `orderproof log {job.name}`"):
        revision = git_revision(job.root)
        made = log_reproduction(job, made, dvc_revision=revision)
        log_waiting(job, dvc_revision=revision)
    return made.noting(*notes)


def record(job: Job, made: Reproduction, inputs: Inputs) -> Reproduction:
    """Tell DVC of baseline.json, and git as far as the job asks for it; never of inputs that changed meanwhile."""
    baseline = {made.baseline: made.baseline_md5}
    try:
        return made.noting(*record_outputs(job, "baseline", inputs, baseline, made.sentence()))
    except DvcError as error:
        return made.noting(f"not recorded in DVC: {error}")
