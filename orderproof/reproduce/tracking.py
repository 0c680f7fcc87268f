"""A reproduction sent to MLflow: one run beside the job's trials and batches.

In: a `Reproduction` on disk. Out: the id of its MLflow run, kept in the record; or a `TrackingError`, and the record
waits for `orderproof log`. Sending it again completes what is there and doubles nothing. Knows nothing of engines or
Prefect.
"""

from __future__ import annotations

from orderproof.generate.mlflow_run import run_of
from orderproof.job.spec import Job
from orderproof.reproduce.record import Reproduction, keep, read_runs, reports_of
from orderproof.runs.mlflow_records import RunRecord
from orderproof.runs.single_run import send

RUN_TAG = "orderproof.baseline"


def log_reproduction(job: Job, made: Reproduction, *, dvc_revision: str | None = None) -> Reproduction:
    """Send a reproduction to the tracker, or complete what an earlier call sent of it; the record keeps the id.

    Raises:
        TrackingError: the tracker is down or refuses.
    """
    record = _record(made, dvc_revision)
    run_id = send(job, "reproduction", reports_of(job), RUN_TAG, record, (made.dataset_md5, made.outputs.outputs))
    sent = made.model_copy(update={"mlflow_run": run_id})
    keep(job, sent)
    return sent


def log_waiting(job: Job, *, dvc_revision: str | None = None) -> list[Reproduction]:
    """Send every reproduction that no tracker has taken yet, oldest first.

    Raises:
        TrackingError: the tracker is down or refuses; those that it took are kept as sent.
    """
    return [log_reproduction(job, made, dvc_revision=dvc_revision) for made in read_runs(job) if not made.mlflow_run]


def _record(made: Reproduction, dvc_revision: str | None) -> RunRecord:
    tags = {
        RUN_TAG: made.run,
        "answer": made.answer,
        "baseline_md5": made.baseline_md5,
        "dvc_revision": dvc_revision,
    }
    params = {
        "changes": "; ".join(made.changes) or ("none" if made.changes_known else "unknown"),
        "batch_invariant": str(made.batch_invariant),
    }
    return run_of(made, f"reproduce {made.started_utc}", tags, params, _metrics(made))


def _metrics(made: Reproduction) -> dict[str, float | None]:
    seen, scores = made.outputs, made.scores
    counts = ("outputs", "compared", "identical", "diverged", "altered", "failed_then", "failed_now")
    figures: dict[str, float | None] = {
        **{name: float(getattr(seen, name)) for name in counts},
        "identical_share": seen.identical_share,
        "first_divergence_median": seen.first_divergence.get("median"),
        "wall_s": made.wall_s,
    }
    if scores:
        figures |= {"score_then": scores.then, "score_now": scores.now}
        figures |= {"score_difference": scores.difference, "score_se": scores.se}
    return figures
