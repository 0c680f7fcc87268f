"""A trial's folder: manifest.json, slices.jsonl, passes.jsonl, tokens/<pass>.parquet, verdict.json.

The manifest is written and hashed before the first slice, and every line carries that hash, so that a plan edited
afterwards shows. slices.jsonl gets a line as each slice ends. A block is complete when passes.jsonl has a line for each
arm: one arm's slices of that block taken together, with what they generated beside it. Only complete blocks count.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from orderproof.job.errors import OrderproofError
from orderproof.job.files import append_line, atomic_file, write_atomically
from orderproof.job.hashing import canonical_json, sha256_of
from orderproof.measure.trial_records import TOKENS_SCHEMA, Manifest, Pass, SliceRecord
from orderproof.measure.verdict import Verdict

VERDICT_FILE = "verdict.json"


class EvidenceError(OrderproofError):
    """A trial's folder that cannot carry a verdict."""


@dataclass(frozen=True)
class Block:
    """A complete block."""

    number: int
    passes: Mapping[str, Pass]  # by arm
    slices: Mapping[tuple[str, int], SliceRecord]  # by arm and stratum: the last attempt of each


Line = TypeVar("Line", SliceRecord, Pass)


@dataclass(frozen=True)
class Trial:
    """The whole A/B as it lies in its folder."""

    folder: Path
    manifest: Manifest
    slices: tuple[SliceRecord, ...] = ()
    passes: tuple[Pass, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> Trial:
        """Read a trial. Raises EvidenceError when a file is missing, unreadable, torn, or not of this manifest."""
        try:
            content = (folder / "manifest.json").read_bytes()
            manifest = Manifest.model_validate_json(content)
            # Of the file and not of the model: a field that a later version adds changes no registered trial.
            registered = sha256_of(canonical_json(json.loads(content)))
            slices = _read_lines(folder / "slices.jsonl", SliceRecord)
            passes = _read_lines(folder / "passes.jsonl", Pass)
        except FileNotFoundError as error:
            name = Path(error.filename).name
            raise EvidenceError(f"{folder}: {name} is missing, so this is not a whole trial") from None
        except OSError as error:
            raise EvidenceError(f"{error.filename} cannot be read: {error.strerror}") from None
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise EvidenceError(
                f"{folder}: not readable as a trial: {error.title}: {place + ': ' if place else ''}{first['msg']}"
            ) from None
        except ValueError as error:
            raise EvidenceError(f"{folder}: not readable as a trial: {error}") from None
        lines: tuple[SliceRecord | Pass, ...] = (*slices, *passes)
        for line in lines:
            if line.manifest_sha256 != registered:
                raise EvidenceError(
                    f"{folder}: manifest.json was changed after slices were timed (block {line.block} has another hash)"
                )
        return cls(folder, manifest, slices, passes)

    def blocks(self) -> list[Block]:
        """The complete blocks, in order."""
        return self._blocks

    @cached_property
    def _blocks(self) -> list[Block]:
        passes: dict[tuple[int, int], dict[str, Pass]] = {}
        for recorded in self.passes:
            passes.setdefault((recorded.block, recorded.run), {})[recorded.arm] = recorded
        slices: dict[tuple[int, int], dict[tuple[str, int], SliceRecord]] = {}
        for part in self.slices:
            slices.setdefault((part.block, part.run), {})[part.arm, part.stratum] = part
        complete = {key: arms for key, arms in passes.items() if set(arms) == set(self.manifest.arms)}
        return [Block(key[0], arms, slices.get(key, {})) for key, arms in sorted(complete.items())]

    def attempt_slices(self, number: int, run: int) -> list[SliceRecord]:
        """What was measured in one attempt at a block, complete or not, in the order of time."""
        return [part for part in self.slices if (part.block, part.run) == (number, run)]

    def next_run(self, number: int) -> int:
        """The run of a block that begins now: slices of an interrupted one do not count."""
        return 1 + max((part.run for part in self.slices if part.block == number), default=-1)

    def repeated(self) -> list[SliceRecord]:
        """Slices that were timed and do not count, because their pair was run again or their block never ended."""
        counted = {id(part) for block in self.blocks() for part in block.slices.values()}
        return [part for part in self.slices if id(part) not in counted]

    def tokens(self, pass_id: str, columns: Sequence[str] | None = None) -> pa.Table:
        """What a pass generated, in the order in which it was sent (TOKENS_SCHEMA).

        Raises EvidenceError when its file is missing or not whole.
        """
        path = self.folder / "tokens" / f"{pass_id}.parquet"
        try:
            return pq.read_table(path, columns=columns)
        except FileNotFoundError:
            raise EvidenceError(f"{path} is missing, so nobody can tell what that pass generated") from None
        except (OSError, pa.ArrowException) as error:
            raise EvidenceError(f"{path} cannot be read: {' '.join(str(error).split())}") from None


def _read_lines(path: Path, kind: type[Line]) -> tuple[Line, ...]:
    """Whole lines alone: a crash may tear the last one, and then it was not recorded."""
    return tuple(kind.model_validate_json(line) for line in path.read_text("utf-8").split("\n")[:-1])


def register(folder: Path, manifest: Manifest) -> Trial:
    """Write the manifest of a new trial. Raises FileExistsError if the folder holds one."""
    folder.mkdir(parents=True, exist_ok=False)
    (folder / "tokens").mkdir()
    for name in ("slices.jsonl", "passes.jsonl"):
        write_atomically(folder / name, "")
    write_atomically(folder / "manifest.json", manifest.model_dump_json(indent=1) + "\n")  # last: now it is a trial
    return Trial(folder, manifest)


def record_slice(trial: Trial, part: SliceRecord) -> Trial:
    """Add a slice's figures to the evidence."""
    append_line(trial.folder / "slices.jsonl", part.model_dump_json())
    return replace(trial, slices=(*trial.slices, part))


def record_block(trial: Trial, passes: Sequence[Pass], tokens: Mapping[str, pa.Table]) -> Trial:
    """Complete a block: what each arm generated first, then a line for each arm.

    Args:
        tokens: by arm, TOKENS_SCHEMA.
    """
    for recorded in passes:
        with atomic_file(trial.folder / "tokens" / f"{recorded.pass_id}.parquet") as sink:
            pq.write_table(tokens[recorded.arm].cast(TOKENS_SCHEMA), sink, compression="zstd")
    append_line(trial.folder / "passes.jsonl", "\n".join(recorded.model_dump_json() for recorded in passes))
    return replace(trial, passes=(*trial.passes, *passes))


def repair(trial: Trial) -> Trial:
    """Cut off a line that a crash tore, so that the next one begins on its own."""
    for name, lines in (("slices.jsonl", trial.slices), ("passes.jsonl", trial.passes)):
        whole = "".join(line.model_dump_json() + "\n" for line in lines)
        if (trial.folder / name).read_text("utf-8") != whole:
            write_atomically(trial.folder / name, whole)
    return trial


def write_verdict(trial: Trial, verdict: Verdict) -> None:
    """Keep a verdict in its trial's folder."""
    write_atomically(trial.folder / VERDICT_FILE, verdict.model_dump_json(indent=1) + "\n")


@dataclass(frozen=True)
class History:
    """The trials that a job had."""

    trials: tuple[Trial, ...] = ()  # oldest first
    unreadable: tuple[str, ...] = ()  # names of registered trials that are no evidence any more

    def __len__(self) -> int:
        return len(self.trials) + len(self.unreadable)


def read_history(reports: Path) -> History:
    """Every trial that was registered, whether or not it can be read still: a broken one was seen by somebody."""
    trials, unreadable = [], []
    for manifest in sorted(reports.glob("*/manifest.json")):
        try:
            trials.append(Trial.read(manifest.parent))
        except EvidenceError:
            unreadable.append(manifest.parent.name)
    return History(tuple(trials), tuple(unreadable))


def read_trials(reports: Path) -> list[Trial]:
    """Every readable trial of a job, oldest first; what cannot be read is no evidence and is left alone."""
    return list(read_history(reports).trials)


def find_trial(reports: Path, name: str | None) -> Trial:
    """A job's newest trial, or the one of that name. Raises EvidenceError when there is none."""
    if name is None:
        folders = sorted(path.parent for path in reports.glob("*/manifest.json"))
        if not folders:
            raise EvidenceError(f"{reports} holds no trial: measure the job first")
        return Trial.read(folders[-1])
    known = [path.parent.name for path in reports.glob("*/manifest.json")]
    if name not in known:  # compared, not joined: a name never becomes a path unchecked
        raise EvidenceError(f"{reports} has no trial {name!r}; it has {', '.join(sorted(known)) or 'none'}")
    return Trial.read(reports / name)
