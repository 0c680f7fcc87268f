"""Git LFS: files whose content was not fetched, so that a pointer of three lines is in their place."""

from __future__ import annotations

from pathlib import Path

POINTER_START = b"version https://git-lfs.github.com/spec/"
POINTER_PROBLEM = "is a Git LFS pointer, not the file's content"
POINTER_REMEDY = "Run `git lfs pull` in its repository"


def is_pointer(path: Path) -> bool:
    """Whether a file is a pointer of Git LFS; False if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(len(POINTER_START)) == POINTER_START
    except OSError:
        return False
