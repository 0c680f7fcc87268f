"""Which runs MLflow has: .orderproof/mlflow/sent/<job>.json. Beside the local store: both can be deleted together."""

from __future__ import annotations

import json
from pathlib import Path

from filelock import FileLock

from orderproof.job.files import write_atomically
from orderproof.job.paths import state_dir
from orderproof.job.spec import Job
from orderproof.runs.mlflow_client import public_uri
from orderproof.runs.run import Run


def mark_sent(job: Job, run: Run, mlflow_run: str) -> None:
    """Write down that the present tracker has a run."""
    path, uri = _path(job), public_uri(job.root)
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        held = _read(path)
        held[uri] = {**held.get(uri, {}), _key(run): mlflow_run}
        write_atomically(path, json.dumps(held, indent=1) + "\n")


def sent_as(job: Job, run: Run) -> str | None:
    """The MLflow run that holds a run; None: the present tracker does not have it yet."""
    return _read(_path(job)).get(public_uri(job.root), {}).get(_key(run))


def _read(path: Path) -> dict[str, dict[str, str]]:
    try:
        held = json.loads(path.read_bytes())
    except (OSError, ValueError):  # sending a run again completes it and doubles nothing
        return {}
    return held if isinstance(held, dict) else {}


def _key(run: Run) -> str:
    return f"{run.verb}/{run.id}"


def _path(job: Job) -> Path:
    return state_dir(job.root) / "mlflow" / "sent" / f"{job.name}.json"
