"""What becomes of a batch's run when its outputs and its record are there: picture, MLflow, DVC, git.

In: a job and its `BatchRun`. Out: the `BatchRun`, with notes on what did not work. Outputs never wait for any of
this: each step may fail for itself, and what no tracker took waits in the record for `orderproof log`.
"""

from __future__ import annotations

from orderproof.generate.picture import draw_batch
from orderproof.generate.record import BatchRun, reports_of
from orderproof.generate.tracking import log_batch, log_waiting
from orderproof.job.spec import Job
from orderproof.runs.dvc import DvcError
from orderproof.runs.promotion import ORDER_FILE
from orderproof.runs.recording import Inputs, git_revision, noting, record_outputs


def report(job: Job, run: BatchRun) -> BatchRun:
    """Draw a kept run's picture, and send it to MLflow, before those that an earlier tracker did not take."""
    notes: list[str] = []
    with noting(notes, "the picture is missing"):
        draw_batch(run, reports_of(job) / f"{run.run}.png")
    with noting(notes, f"MLflow does not have all runs yet: `orderproof log {job.name}`"):
        revision = git_revision(job.root)
        run = log_batch(job, run, dvc_revision=revision)
        log_waiting(job, dvc_revision=revision)
    return run.noting(*notes)


def record(job: Job, run: BatchRun, inputs: Inputs | None) -> BatchRun:
    """Tell DVC of the outputs, and git as far as the job asks for it.

    Outputs of a stream are none of the stage's, which makes them of the job's file: `inputs` is None, and a note says
    what can be done.

    The outputs are whole whatever DVC says, so its failure is a note; it never records inputs that changed meanwhile.
    """
    if inputs is None:
        return run.noting(
            f"not recorded in DVC: the prompts came as a stream and are kept in {job.prompts}. To version both, give "
            f"that file to a job as its `prompts`, or `dvc add` it with a copy of {run.outputs}"
        )
    try:
        return run.noting(*record_outputs(job, "generate", inputs, {}, run.sentence()))
    except DvcError as error:
        chosen = (job.data_dir / ORDER_FILE).exists()
        missing = "" if chosen else f"; `orderproof measure {job.name}` chooses an order, and the file with it"
        return run.noting(f"not recorded in DVC: {error}{missing}")
