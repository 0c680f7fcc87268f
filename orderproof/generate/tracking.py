"""A batch's run sent to MLflow: one run beside the job's trials.

In: a `BatchRun` on disk. Out: the id of its MLflow run, kept in the record; or a `TrackingError`, and the record
waits for `orderproof log`. Sending it again completes what is there and doubles nothing. Knows nothing of engines or
Prefect.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from orderproof.generate.mlflow_run import run_of
from orderproof.generate.record import BatchRun, keep, read_runs, reports_of
from orderproof.job.hashing import canonical_json
from orderproof.job.spec import Job
from orderproof.runs.mlflow_records import RunRecord
from orderproof.runs.single_run import runs_tagged, send
from orderproof.runs.trial_tracking import TrackingError, connected

if TYPE_CHECKING:
    from mlflow import MlflowClient

RUN_TAG = "orderproof.batch"
METRICS = (
    "prompts",
    "resumed",
    "generated",
    "failed",
    "prompt_tokens",
    "output_tokens",
    "wall_s",
    "load_s",
    "throughput_req_s",
    "throughput_tok_s",
    "time_per_batch_ms",
    "time_per_batch_p95_ms",
    "steps",
    "running_mean",
    "waiting_mean",
    "preempted",
    "replicas",
    "imbalance",
    "cost_per_1k_requests",
)
CURVES = ("step_ms", "running", "waiting")
CURVE_POINTS = 100  # sent of each curve: a step is a percentage of the run, and the record has them all


def log_batch(job: Job, run: BatchRun, *, dvc_revision: str | None = None) -> BatchRun:
    """Send a run to the tracker, or complete what an earlier call sent of it; the record keeps the id.

    Raises:
        TrackingError: the tracker is down or refuses.
    """
    record = _record(run, dvc_revision)
    run_id = send(job, "run", reports_of(job), RUN_TAG, record, (run.dataset_md5, run.prompts))
    sent = run.model_copy(update={"mlflow_run": run_id})
    keep(job, sent)
    return sent


def begin_run(client: MlflowClient, experiment: str, run: str, started: datetime, killed: str | None = None) -> str:
    """The MLflow run of a batch that is at work; `log_batch` completes it. That of a killed run is ended.

    Args:
        run, killed: names of runs as their records have or would have them.
    """
    for one in runs_tagged(client, experiment, RUN_TAG, killed) if killed else ():
        client.set_terminated(one.info.run_id, "KILLED")
    made = client.create_run(experiment, round(started.timestamp() * 1000), {RUN_TAG: run}, _name(started))
    return str(made.info.run_id)


@contextlib.contextmanager
def mark_failed_on_error(job: Job, run: str) -> Iterator[None]:
    """Around what is done between a batch's generation and its record: where that fails, nothing completes its run."""
    try:
        yield
    except Exception:
        with (
            contextlib.suppress(TrackingError),
            connected(job, f"the end of run {run}", reports_of(job)) as (client, experiment),
        ):
            for one in runs_tagged(client, experiment, RUN_TAG, run):
                client.set_terminated(one.info.run_id, "FAILED")
        raise


def log_waiting(job: Job, *, dvc_revision: str | None = None) -> list[BatchRun]:
    """Send every run that no tracker has taken yet, oldest first.

    Raises:
        TrackingError: the tracker is down or refuses; those that it took are kept as sent.
    """
    return [log_batch(job, run, dvc_revision=dvc_revision) for run in read_runs(job) if run.mlflow_run is None]


def _record(run: BatchRun, dvc_revision: str | None) -> RunRecord:
    tags = {
        RUN_TAG: run.run,
        "outputs_md5": run.outputs_md5,
        "model_fingerprint": run.key.get("model"),
        "dvc_revision": dvc_revision,
    }
    params = {
        "engine.args": canonical_json(run.key.get("engine", {}).get("args", {})),
        "sampling": canonical_json(run.key.get("sampling", {})),
    }
    figures = {name: getattr(run, name) for name in METRICS}
    thinned = run.curve[:: max(1, -(-len(run.curve) // CURVE_POINTS))]
    series = {name: [point[k] for point in thinned] for k, name in enumerate(CURVES)} if thinned else {}
    return run_of(run, _name(datetime.fromisoformat(run.started_utc)), tags, params, figures, series)


def _name(started: datetime) -> str:
    return f"generate {started.isoformat(timespec='seconds')}"
