"""A batch that is at work: what its run tells of itself beside its results, for whoever asks from outside.

In: how far a run is. Out: outputs.partial/progress.json; and, for `orderproof status`, an `Underway` while the run is
alive. Knows nothing of engines, trackers or Prefect. Nothing that an output rests on is read from here.
"""

from __future__ import annotations

import datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from orderproof.generate.checkpoint import FOLDER
from orderproof.generate.lock import LOCK_FILE, holder_of
from orderproof.job.files import write_atomically

PROGRESS_FILE = "progress.json"


class HowFar(BaseModel):
    """How far a run is, as it said itself."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str  # the name that its record will have
    prefect_run: str | None
    prompts: int | None  # None: of a stream, whose end nobody knows
    resumed: int  # of them, finished by earlier runs
    done: int  # of them, finished
    rate_req_s: float  # of this run so far
    told_utc: str

    @property
    def seconds_left(self) -> float | None:
        """At this run's rate; None: nothing is finished yet, or nobody knows of how many."""
        if self.prompts is None or not self.rate_req_s:
            return None
        return (self.prompts - self.done) / self.rate_req_s


class Underway(BaseModel):
    """A run that is alive."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    who: str  # "process 123 on host"
    since_utc: str
    progress: HowFar | None  # None: it generates nothing yet (it waits, validates, or its engine loads)


def tell(checkpoint: Path, progress: HowFar) -> None:
    """Write it down, whole or not at all."""
    write_atomically(checkpoint / PROGRESS_FILE, progress.model_dump_json(indent=1) + "\n")


def told(checkpoint: Path) -> HowFar | None:
    """What the run that wrote there last said, alive or not; None: nothing that can be read."""
    try:
        return HowFar.model_validate_json((checkpoint / PROGRESS_FILE).read_bytes())
    except (OSError, ValidationError):
        return None


def underway(data_dir: Path) -> Underway | None:
    """The run that is at work in data/<job> now; None: none is, or none that this file system's locks tell of."""
    who = holder_of(data_dir)
    if who is None:
        return None
    began = datetime.datetime.fromtimestamp((data_dir / LOCK_FILE).stat().st_mtime, datetime.UTC)
    progress = told(data_dir / FOLDER)
    if progress and datetime.datetime.fromisoformat(progress.told_utc) < began:
        progress = None  # of a run before this one, which was killed
    return Underway(who=who, since_utc=began.isoformat(timespec="seconds"), progress=progress)
