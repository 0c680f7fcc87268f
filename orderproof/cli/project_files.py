"""The files of a user's own project, as this package carries them (or as its checkout has them)."""

from __future__ import annotations

import re
from pathlib import Path

import orderproof
from orderproof.job.errors import OrderproofError
from orderproof.job.files import write_atomically

FILES = ("params.yaml", "dvc.yaml", "infra/prefect.yaml")
FOLDERS = ("flows", "tasks")
DEMO = re.compile(r"^ *# <demo>.*?^ *# </demo>\n\n?", re.MULTILINE | re.DOTALL)  # needs the scripts of infra/demo


class ProjectError(OrderproofError):
    """A folder that a project cannot be written into."""


def write_project(folder: Path) -> tuple[list[str], list[str]]:
    """Write what is not there yet.

    Returns:
        Paths in the folder: those that were written, and those that were there and stay as they are.

    Raises:
        ProjectError: the folder cannot be written.
    """
    source = _source()
    paths = [Path(name) for name in FILES]
    paths += [path.relative_to(source) for name in FOLDERS for path in sorted((source / name).glob("*.py"))]
    written, kept = [], []
    for path in paths:
        if (folder / path).exists():
            kept.append(path.as_posix())
            continue
        try:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / path, DEMO.sub("", (source / path).read_text("utf-8")))
        except OSError as error:
            raise ProjectError(f"{folder / path} cannot be written: {error.strerror}. Name another folder") from None
        written.append(path.as_posix())
    return written, kept


def _source() -> Path:
    """The folder with the files: in an installed package its own, in a checkout the root."""
    package = Path(orderproof.__file__).parent
    return package / "project" if (package / "project").is_dir() else package.parent
