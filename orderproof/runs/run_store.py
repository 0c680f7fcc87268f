"""Where runs are kept: reports/<job>/<verb>/<id>/run.json, one folder a run."""

from __future__ import annotations

import datetime
import re
import zlib
from pathlib import Path

from pydantic import ValidationError

from orderproof.job.errors import OrderproofError
from orderproof.job.files import write_atomically
from orderproof.job.paths import Verb
from orderproof.job.spec import Job
from orderproof.runs.run import Run, RunIdentity

RECORD_FILE = "run.json"
KNOWN_LATER = {"mlflow_run"}  # not in the file: DVC has the folder, and a late tracker must leave it unchanged
RUN_ID = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{4}")


class RunError(OrderproofError):
    """A run's record that cannot be read or written."""


def new_id(started: datetime.datetime) -> str:
    """A sortable name for the run that started then: 20261129T144640Z-3f9a."""
    return f"{started:%Y%m%dT%H%M%SZ}-{zlib.crc32(started.isoformat().encode()) & 0xFFFF:04x}"


def identity_of(job: Job, verb: Verb, started: datetime.datetime) -> RunIdentity:
    """Of a run that ends now."""
    return RunIdentity(
        job=job.name,
        verb=verb,
        id=new_id(started),
        started_utc=started.isoformat(timespec="seconds"),
        ended_utc=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


def verb_folder(job: Job, verb: Verb) -> Path:
    """Where a job's runs of one verb are kept."""
    return job.root / "reports" / job.name / verb


def run_folder(job: Job, verb: Verb, run_id: str) -> Path:
    """Where one run is kept.

    Raises:
        RunError: the id is not one, so it is never made into a path.
    """
    if not RUN_ID.fullmatch(run_id):
        raise RunError(f"{run_id!r} is not the id of a run; they look like 20261129T144640Z-3f9a")
    return verb_folder(job, verb) / run_id


def write_run(job: Job, run: Run) -> Path:
    """Write a run's record, whole or not at all. Returns its folder.

    Raises:
        RunError: it cannot be written.
    """
    folder = run_folder(job, run.verb, run.id)
    path = folder / RECORD_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, run.model_dump_json(indent=1, exclude=KNOWN_LATER) + "\n")
    except OSError as error:
        kept = "".join(f" {name.capitalize()}: {where}." for name, where in run.files.items() if name == "outputs")
        raise RunError(
            f"{path} cannot be written: {error.strerror}.{kept} Fix the folder or its permissions, then run it again"
        ) from None
    return folder


def read_run(path: Path) -> Run:
    """Read a run's record.

    Args:
        path: of its run.json.

    Raises:
        RunError: it is missing or not a record of a run.
    """
    try:
        return Run.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise RunError(
            f"{path} cannot be read as the record of a run: {' '.join(str(error).split())[:200]}. Restore the file "
            "(`dvc checkout`), or move its folder elsewhere"
        ) from None


def read_runs(job: Job, verb: Verb) -> list[Run]:
    """Every run of a verb that came to its end, oldest first. Raises RunError."""
    return [read_run(path) for path in _records(job, verb)]


def newest_run(job: Job, verb: Verb) -> Run | None:
    """The last run of a verb; None without one. Raises RunError."""
    records = _records(job, verb)
    return read_run(records[-1]) if records else None


def _records(job: Job, verb: Verb) -> list[Path]:
    return sorted(verb_folder(job, verb).glob(f"2*/{RECORD_FILE}"))
