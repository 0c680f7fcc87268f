"""A job's `prompts` → the files that they are in: one, several, a folder, a glob, or any of these in other places."""

from __future__ import annotations

import glob
import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orderproof.job.hashing import md5_of
from orderproof.job.lfs import POINTER_PROBLEM, POINTER_REMEDY, is_pointer
from orderproof.job.spec import Job, is_url
from orderproof.prompts.file_kinds import KINDS, kind_of
from orderproof.prompts.prompt import PromptError
from orderproof.prompts.remote_files import fetch

_PATTERN = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class PromptFiles:
    """The files of one set of prompts, in the order in which they are read."""

    path: Path  # in messages: the file, or what the job's `prompts` says
    files: tuple[Path, ...]

    @classmethod
    def of(cls, source: Path | PromptFiles) -> PromptFiles:
        """A single file, checked; or what was checked before. Raises PromptError."""
        if isinstance(source, PromptFiles):
            return source
        check_prompt_file(source)
        return cls(source, (source,))

    def md5(self) -> str:
        """Of a single file its md5, as DVC has it; of several, the md5 of theirs. Raises OSError."""
        return combined_md5([md5_of(file) for file in self.files])

    def state(self) -> tuple[tuple[int, int, int] | None, ...]:
        """What changes when a file is written or replaced; None for one that is gone."""
        return tuple(map(_state, self.files))


def find_files(job: Job) -> PromptFiles:
    """The files of a job's prompts; those of other places are fetched first, unless the newest version is here.

    Raises:
        PromptError: there are none, or one of them is no prompts file or cannot be fetched.
    """
    files = [file for path in job.prompts_list for file in _files_at(job, path)]
    shown = files[0] if job.has_one_file and len(files) == 1 else job.prompts_path
    for file in files:
        check_prompt_file(file)
    return PromptFiles(shown, tuple(files))


def combined_md5(md5s: Sequence[str]) -> str:
    """One hash of several files' hashes; a single one stays as it is."""
    return md5s[0] if len(md5s) == 1 else hashlib.md5("\n".join(md5s).encode(), usedforsecurity=False).hexdigest()


def check_prompt_file(path: Path) -> None:
    """Raise PromptError for a path that is no prompts file by its name, is not there, or is a Git LFS pointer."""
    if not os.path.lexists(path):
        raise PromptError(path, "does not exist", "Check the path of the prompts", flaw="file")
    if not os.path.isfile(path):
        problem = "is a folder, not a file" if os.path.isdir(path) else "is not a file, or cannot be reached"
        raise PromptError(path, problem, f"Name a file of {', '.join(KINDS)}", flaw="file")
    if kind_of(path) is None:
        remedy = f"Give JSON lines, one object per line, named .jsonl, or another file of {', '.join(KINDS)}"
        raise PromptError(path, f"is of an unknown kind ({path.suffix or 'no extension'})", remedy, flaw="file")
    if is_pointer(path):
        raise PromptError(path, POINTER_PROBLEM, POINTER_REMEDY, flaw="file")


def _files_at(job: Job, path: str) -> list[Path]:
    if is_url(path):
        return fetch(path, job.root / ".orderproof" / "prompts")
    place = job.path_of(path)
    if place.is_dir():
        return _files_in(place)
    if place.exists() or not _PATTERN.search(path):
        return [place]
    found = sorted(Path(name) for name in glob.glob(str(place), recursive=True) if os.path.isfile(name))
    if not found:
        raise PromptError(place, "matches no file", "Check the path of the prompts", flaw="file")
    return found


def _files_in(folder: Path) -> list[Path]:
    """The prompts files in a folder, at any depth, by name; hidden ones are none."""
    inside = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    names = sorted(name for name in inside if kind_of(name) and not any(part[0] in "._" for part in name.parts))
    if not names:
        problem = f"is a folder without files of {', '.join(KINDS)}"
        raise PromptError(folder, problem, "Check the path of the prompts", flaw="file")
    if len(kinds := sorted({str(kind_of(name)) for name in names})) > 1:
        remedy = f"Name those that are prompts, such as {folder.name}/*{kinds[-1]}"
        raise PromptError(folder, f"is a folder with files of {' and '.join(kinds)}", remedy, flaw="file")
    return [folder / name for name in names]


def _state(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
