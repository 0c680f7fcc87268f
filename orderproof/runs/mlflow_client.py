"""Connections to MLflow: the local store or a server, the job's experiment, and its pages.

A tracker that is down or refuses is one `TrackingError`; the evidence is on disk before anything is sent.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from filelock import FileLock

from orderproof.job.errors import OrderproofError
from orderproof.job.paths import state_dir
from orderproof.job.spec import Job

if TYPE_CHECKING:
    from mlflow import MlflowClient

HOW_TO_READ = (
    "A trial is a parent run with a child run for each of its passes. To see the answer, select a trial's children and "
    "press Compare; in the box plot, `arm` across and `throughput_req_s` up."
)
# Read by MLflow when it is used; what the user set stands.
# A tracker that is down must not hold up a job whose evidence is on disk, and MLflow's own defaults try for minutes.
ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",  # seconds
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # Two lines per run, and the creation of tables, would hide the command's own output.
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
}
LONGEST_CAUSE_CHARS = 300


class TrackingError(OrderproofError):
    """MLflow did not take a run: why, where the run is kept, and how to send it later."""


def tracking_uri(root: Path) -> str:
    """`MLFLOW_TRACKING_URI`, or the SQLite database in the project's .orderproof/."""
    return os.environ.get("MLFLOW_TRACKING_URI") or _local_uri(root)


def public_uri(root: Path) -> str:
    """`tracking_uri` without its password."""
    return _without_password(tracking_uri(root))


def where_to_see(job: Job, run: str) -> str:
    """Where a run's page is: its address on a server, or how the local pages are opened."""
    uri = tracking_uri(job.root)
    if uri.startswith("http"):
        parts = urlsplit(uri)
        public = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()  # a link carries no credentials
        return f"{public.rstrip('/')}/#/runs/{run}"
    return f"`orderproof ui`, then the experiment orderproof/{job.name}, run {run}"


@contextlib.contextmanager
def connected(job: Job, what: str, where: Path) -> Iterator[tuple[MlflowClient, str]]:
    """A client, and the id of the job's experiment.

    Args:
        what: is sent; for the message.
        where: it is kept on disk; for the message.

    Raises:
        TrackingError: whatever fails on the way or in the block.
    """
    uri = tracking_uri(job.root)
    _set_environment()
    with _as_tracking_error(f"{what} of {job.name}", where, f"orderproof log {job.name}", uri), _locked(job.root, uri):
        _check_database(uri)
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
        raise TrackingError(f"{_database(root)} does not exist yet: `orderproof measure JOB` creates it")
    _set_environment()
    command = [sys.executable, "-m", "mlflow", "ui", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    environment = {
        **os.environ,
        "MLFLOW_BACKEND_STORE_URI": uri,  # not an argument: it may hold a password, and anyone can list those
        "MLFLOW_ARTIFACTS_DESTINATION": str(
            _database(root).parent / "artifacts"
        ),  # by default MLflow takes the current folder
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # a job queue of seven processes that these pages never use
    }
    print(f"http://127.0.0.1:{port}: choose `Model training`, then an experiment orderproof/JOB", file=sys.stderr)
    try:
        return subprocess.run(command, env=environment, check=False).returncode
    except KeyboardInterrupt:
        return 0


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


def _check_database(uri: str) -> None:
    """Raise at once where a database cannot be opened, which MLflow would try again for minutes."""
    if urlsplit(uri).scheme.split("+")[0] not in ("sqlite", "postgresql", "mysql", "mssql"):
        return
    import sqlalchemy

    with sqlalchemy.create_engine(uri, poolclass=sqlalchemy.NullPool).connect() as connection:
        sqlalchemy.inspect(connection).get_table_names()


@contextlib.contextmanager
def _locked(root: Path, uri: str) -> Iterator[None]:
    """One process at a time in the local store: several that open a fresh database at once fail."""
    if uri != _local_uri(root):
        yield
        return
    _database(root).parent.mkdir(parents=True, exist_ok=True)
    with FileLock(_database(root).with_suffix(".lock")):  # the kernel releases it when a process dies
        yield


@contextlib.contextmanager
def _as_tracking_error(what: str, where: Path, later: str, uri: str) -> Iterator[None]:
    """Turn every failure of a tracker into one TrackingError."""
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
    return state_dir(root.resolve()) / "mlflow" / "mlflow.db"


def _without_password(uri: str) -> str:
    password = urlsplit(uri).password
    return uri.replace(f":{password}@", ":***@") if password else uri
