"""A trial sent to MLflow: one parent run, one child run per pass, figures and pages beside them.

In: a `Trial` on disk and its `Verdict`. Out: the parent's run id, or a `TrackingError`. Knows nothing of engines,
Prefect or DVC, and decides nothing: all that MLflow holds can be sent again from the trial's folder.

Sending the same trial again completes what is there (tag `orderproof.trial`) and doubles nothing. Runs are written
under explicit ids, because MLflow's active runs belong to a thread.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from filelock import FileLock

from orderproof.job.errors import OrderproofError
from orderproof.job.hashing import canonical_json
from orderproof.job.spec import Job
from orderproof.measure.pass_expert_counts import experts_per_step
from orderproof.measure.trial_store import Trial
from orderproof.measure.verdict import Verdict
from orderproof.runs.mlflow_records import ORIGIN, PASS_TAG, TRIAL_TAG, RunRecord, pass_records, trial_record

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput, Run

FILES = ("verdict.html", "verdict.json", "manifest.json", "passes.jsonl")
HOW_TO_READ = (
    "One parent run per trial, one child run per pass. To see the answer, select a trial's passes and press Compare; "
    "in the box plot, `arm` across and `throughput_req_s` up."
)
# Read by MLflow when it is used; what the user set stands.
# A tracker that is down must not hold up a job whose evidence is on disk, and MLflow's own defaults try for minutes.
ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",  # seconds
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # Two lines per run, and the making of tables, would drown what a command has to say.
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
}
LONGEST_CAUSE_CHARS = 300


class TrackingError(OrderproofError):
    """MLflow did not take a trial or a run: why, what is safe, and how to send it later."""


def tracking_uri(root: Path) -> str:
    """`MLFLOW_TRACKING_URI`, or the SQLite database in the project's .orderproof/."""
    return os.environ.get("MLFLOW_TRACKING_URI") or _local_uri(root)


def log_trial(
    job: Job,
    trial: Trial,
    verdict: Verdict | None,
    *,
    prefect_run: str | None = None,
    dvc_revision: str | None = None,
) -> str:
    """Send a trial to the tracker, or complete what an earlier call sent of it.

    Args:
        job: its `reporting` gives the price and says whether generated text may be sent.
        trial: as read from its folder, whose figures and pages are sent as they lie there.
        verdict: None while blocks are still to come.
        prefect_run, dvc_revision: where the trial came from; kept as tags.

    Returns:
        The id of the parent run.

    Raises:
        TrackingError: the tracker is down or refuses. The evidence stays whole on disk.
    """
    plan, experts = trial.manifest, experts_per_step(job, trial)
    with connected(job, f"trial {plan.trial}", trial.folder, send_later(job, trial)) as (client, experiment):
        known = _known_runs(client, experiment, trial)
        dataset = dataset_input(
            job, plan.dataset_md5, {"prompts": plan.prompts_total, "measured": plan.prompts_measured}
        )
        parent = trial_record(trial, verdict, prefect_run, dvc_revision)
        parent_id = write_run(client, experiment, parent, known.get(""), dataset)
        for child in pass_records(trial, job.reporting.price_per_hour, parent_id, experts):
            child_id = write_run(client, experiment, child, known.get(child.pass_id), dataset)
            client.set_terminated(child_id, end_time=child.end_ms)
        _send_files(client, parent_id, job, trial)
        client.set_terminated(parent_id, end_time=parent.end_ms)  # last: a run that still "runs" was not sent whole
        return parent_id


def send_later(job: Job, trial: Trial) -> str:
    """The command that sends a trial which the tracker did not take."""
    plan = trial.manifest
    return f"orderproof log {job.name} --trial {plan.trial}" + (" --placebo" if plan.placebo else "")


def where_to_see(job: Job, run: str) -> str:
    """Where a run's page is: its address on a server, or how the local pages are opened."""
    uri = tracking_uri(job.root)
    if uri.startswith("http"):
        parts = urlsplit(uri)
        public = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()  # a link carries no credentials
        return f"{public.rstrip('/')}/#/runs/{run}"
    return f"`orderproof ui`, then the experiment orderproof/{job.name}, run {run}"


@contextlib.contextmanager
def connected(job: Job, what: str, where: Path, later: str | None = None) -> Iterator[tuple[MlflowClient, str]]:
    """A client, and the id of the job's experiment.

    Args:
        what, where, later: what is sent, where it lies meanwhile, and the command that sends it later; for the message.

    Raises:
        TrackingError: whatever fails on the way or in the block.
    """
    uri = tracking_uri(job.root)
    _set_environment()
    later = later or f"orderproof log {job.name}"
    with _failing_in_words(f"{what} of {job.name}", where, later, uri), _alone(job.root, uri):
        _reach(uri)
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=uri)
        yield client, _experiment(client, job, uri)


def serve_ui(root: Path, port: int = 5000) -> int:
    """Serve MLflow's pages on loopback until interrupted. Returns the exit status of `mlflow ui`.

    Raises:
        TrackingError: MLFLOW_TRACKING_URI names a server, which has pages of its own, or nothing was logged yet.
    """
    uri = tracking_uri(root)
    if uri.startswith("http"):
        raise TrackingError(f"MLFLOW_TRACKING_URI names a server, so open {_without_password(uri)} in a browser")
    if uri == _local_uri(root) and not _database(root).exists():
        raise TrackingError(f"{_database(root)} does not exist yet: `orderproof measure JOB` makes it")
    _set_environment()
    command = [sys.executable, "-m", "mlflow", "ui", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    environment = {
        **os.environ,
        "MLFLOW_BACKEND_STORE_URI": uri,  # not an argument: it may hold a password, and anyone can list those
        "MLFLOW_ARTIFACTS_DESTINATION": str(
            _database(root).parent / "artifacts"
        ),  # not the folder one happens to be in
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # else seven more processes, for what these pages never use
    }
    print(f"http://127.0.0.1:{port}: choose `Model training`, then an experiment orderproof/JOB", file=sys.stderr)
    try:
        return subprocess.run(command, env=environment, check=False).returncode
    except KeyboardInterrupt:
        return 0


def write_run(
    client: MlflowClient, experiment: str, record: RunRecord, known: Run | None, dataset: DatasetInput
) -> str:
    """Create a run, or complete a known one; what it holds already is not sent again."""
    from mlflow.entities import Metric, Param, RunTag

    run = known or client.create_run(experiment, record.start_ms, dict(record.tags), record.name)
    run_id, held = str(run.info.run_id), run.data
    if not (run.inputs and run.inputs.dataset_inputs):
        client.log_inputs(run_id, [dataset])
    now_ms = time.time_ns() // 10**6  # a figure that changed since (a price) must be the newest
    metrics = [Metric(key, v, now_ms, 0) for key, v in record.metrics.items() if held.metrics.get(key) != v]
    for key, series in record.series.items():
        if key not in held.metrics:  # its step is the percentage of the pass, so that passes lie over each other
            metrics += [Metric(key, v, record.end_ms, 100 * i // len(series)) for i, v in enumerate(series)]
    params = [Param(key, v) for key, v in record.params.items() if key not in held.params]
    first = ORIGIN & held.tags.keys()
    tags = [RunTag(key, v) for key, v in record.tags.items() if held.tags.get(key) != v and key not in first]
    if metrics or params or tags:
        client.log_batch(run_id, metrics, params, tags)
    return run_id


def _send_files(client: MlflowClient, run_id: str, job: Job, trial: Trial) -> None:
    """Pages, figures and evidence; what was generated only where the job lets its text be shown."""
    for path in [*(trial.folder / name for name in FILES), *sorted(trial.folder.glob("*.png"))]:
        if path.exists():
            client.log_artifact(run_id, str(path))
    if job.reporting.log_text:
        client.log_artifacts(run_id, str(trial.folder / "tokens"), "tokens")


def dataset_input(job: Job, md5: str, profile: Mapping[str, int]) -> DatasetInput:
    """The job's prompts as MLflow's dataset."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    dataset = Dataset(
        name=job.prompts,
        digest=md5,  # 32 characters; MLflow keeps 36
        source_type="local",
        source=canonical_json({"uri": job.prompts}),
        profile=canonical_json(profile),
    )
    return DatasetInput(
        dataset, [InputTag("mlflow.data.context", "measured" if "measured" in profile else "generated")]
    )


def _experiment(client: MlflowClient, job: Job, uri: str) -> str:
    from mlflow.exceptions import MlflowException

    name = f"orderproof/{job.name}"
    found = client.get_experiment_by_name(name)
    if found is None:
        local = uri == _local_uri(job.root)
        artifacts = (_database(job.root).parent / "artifacts" / job.name).as_uri() if local else None
        try:
            return str(client.create_experiment(name, artifacts, {"mlflow.note.content": HOW_TO_READ}))
        except MlflowException as error:  # another process was quicker
            found = client.get_experiment_by_name(name)
            if found is None:
                raise error
    if found.lifecycle_stage != "active":
        raise MlflowException(f"the experiment {name} was deleted there: restore it, or clear it with `mlflow gc`")
    return str(found.experiment_id)


def _known_runs(client: MlflowClient, experiment: str, trial: Trial) -> dict[str, Run]:
    """What an earlier call sent of this trial: the parent under "", children under their pass ids."""
    mine = f"tags.`{TRIAL_TAG}` = '{trial.manifest.trial}'"
    runs = client.search_runs([experiment], mine, max_results=5000)
    return {str(run.data.tags.get(PASS_TAG, "")): run for run in runs}


def _reach(uri: str) -> None:
    """Raise at once where a database cannot be opened, which MLflow would try again for minutes."""
    if urlsplit(uri).scheme.split("+")[0] not in ("sqlite", "postgresql", "mysql", "mssql"):
        return
    import sqlalchemy

    with sqlalchemy.create_engine(uri, poolclass=sqlalchemy.NullPool).connect() as connection:
        sqlalchemy.inspect(connection).get_table_names()


@contextlib.contextmanager
def _alone(root: Path, uri: str) -> Iterator[None]:
    """One process at a time in the local store: several that open a fresh database at once fail."""
    if uri != _local_uri(root):
        yield
        return
    _database(root).parent.mkdir(parents=True, exist_ok=True)
    with FileLock(_database(root).with_suffix(".lock")):  # the kernel releases it when a process dies
        yield


@contextlib.contextmanager
def _failing_in_words(what: str, where: Path, later: str, uri: str) -> Iterator[None]:
    """Turn every way in which a tracker fails into one TrackingError."""
    import requests
    import sqlalchemy.exc
    from mlflow.exceptions import MlflowException

    try:
        yield
    except (MlflowException, requests.RequestException, sqlalchemy.exc.SQLAlchemyError, OSError, ImportError) as error:
        public = _without_password(uri)
        cause = " ".join(str(error).replace(uri, public).split())
        cause = cause if len(cause) <= LONGEST_CAUSE_CHARS else cause[:LONGEST_CAUSE_CHARS] + " …"
        raise TrackingError(
            f"MLflow at {public} did not take {what}: {cause}\n"
            f"The evidence is on disk in {where}; `{later}` sends it later."
        ) from error


def _set_environment() -> None:
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def _local_uri(root: Path) -> str:
    return f"sqlite:///{_database(root)}"


def _database(root: Path) -> Path:
    return root.resolve() / ".orderproof" / "mlflow" / "mlflow.db"


def _without_password(uri: str) -> str:
    password = urlsplit(uri).password
    return uri.replace(f":{password}@", ":***@") if password else uri
