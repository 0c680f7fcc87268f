"""The progress that a run writes beside its results (outputs.partial/progress.json), for `orderproof status`."""

from __future__ import annotations

import datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from orderproof.generate.checkpoint_folder import FOLDER
from orderproof.generate.lock import LOCK_FILE, holder_of
from orderproof.job.files import write_atomically

PROGRESS_FILE = "progress.json"


class SavedProgress(BaseModel):
    """How far a run was when it wrote this."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str  # the id that its record will have
    prefect_run: str | None
    prompts: int | None  # None: of a stream, whose length is unknown
    resumed: int  # of them, finished by earlier runs
    done: int  # of them, finished
    rate_req_s: float  # of this run so far
    written_utc: str

    @property
    def seconds_left(self) -> float | None:
        """At this run's rate; None: nothing is finished yet, or the number of prompts is unknown."""
        if self.prompts is None or not self.rate_req_s:
            return None
        return (self.prompts - self.done) / self.rate_req_s


class ActiveRun(BaseModel):
    """A run whose process is alive."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    holder: str  # "process 123 on host"
    since_utc: str
    progress: SavedProgress | None  # None: it waits, validates, or loads its engine


def write_progress(checkpoint: Path, progress: SavedProgress) -> None:
    """Write it whole or not at all, into a checkpoint's folder. Raises OSError."""
    write_atomically(checkpoint / PROGRESS_FILE, progress.model_dump_json(indent=1) + "\n")


def read_progress(checkpoint: Path) -> SavedProgress | None:
    """The newest progress of the last run there, alive or not; None: none that can be read."""
    try:
        return SavedProgress.model_validate_json((checkpoint / PROGRESS_FILE).read_bytes())
    except (OSError, ValidationError):
        return None


def find_active_run(data_dir: Path) -> ActiveRun | None:
    """The run that generates into data/<job> now; None: none, or the file system has no locks."""
    holder = holder_of(data_dir)
    if holder is None:
        return None
    began = datetime.datetime.fromtimestamp((data_dir / LOCK_FILE).stat().st_mtime, datetime.UTC)
    progress = read_progress(data_dir / FOLDER)
    if progress and datetime.datetime.fromisoformat(progress.written_utc) < began:
        progress = None  # of an earlier run that was killed
    return ActiveRun(holder=holder, since_utc=began.isoformat(timespec="seconds"), progress=progress)
