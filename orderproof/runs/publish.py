"""Commit and push a stage that dvc.lock records.

Several workers may push to one branch. A worker whose push is rejected rebases on the others' commits and tries again.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from orderproof.runs.dvc import DvcError, inside_a_stage, lock_entry, run_dvc, run_tool

_REBASE_FOLDERS = ("rebase-merge", "rebase-apply")
_NO_IDENTITY = ("auto-detect email address", "empty ident name", "no email was given", "no name was given")
MAX_PUSHES = 5  # when others push at the same time


@dataclass(frozen=True)
class Published:
    """What was committed and pushed."""

    commit: str | None = None  # None: nothing to commit
    pushed: bool = False
    notes: tuple[str, ...] = ()  # for the user: why nothing was published, or what the commit does not contain


def publish(
    root: Path, stage: str, how: Literal["none", "commit", "push"], message: str, also: Sequence[str] = ()
) -> Published:
    """Commit only a recorded stage to git; with "push" also push its data and then the commit.

    The commit contains dvc.lock and the .gitignore files that DVC wrote for the stage's outputs, as they are on disk.
    Files that the user staged stay staged and are not in it. Data is pushed first, so that no pushed commit lacks it.

    Args:
        also: further files of text that git should have, such as the job's ledger.

    Raises:
        DvcError: nothing is recorded, or git or DVC failed. The message says which steps are done.
    """
    if how == "none":
        return Published()
    if running := inside_a_stage():
        return Published(notes=(f"not published: DVC records {running} only when its command ends",))
    entry = lock_entry(root, stage)
    if entry is None:
        raise DvcError(f"{root / 'dvc.lock'} has no entry for {stage}, so there is nothing to publish. Record it first")
    there = [path for path in also if (root / path).exists()]
    commit = _commit_only(root, ["dvc.lock", *_ignore_files(root, entry), *there], message)
    notes = _uncommitted_inputs(root, entry)
    if how == "commit":
        return Published(commit, notes=notes)
    try:
        run_dvc(root, "push", stage)
        _push(root)
    except DvcError as error:
        state = f"committed {commit[:12]}, but not pushed" if commit else "not pushed"
        raise DvcError(f"{state}: {error}. Fix it, then: dvc push {stage} && git push") from None
    return Published(_head(root) if commit else None, pushed=True, notes=notes)


def _push(root: Path) -> None:
    """Push the branch; if others pushed first, rebase on their commits."""
    for last in (False,) * (MAX_PUSHES - 1) + (True,):
        try:
            _git(root, "push", "--quiet")
            return
        except DvcError:
            if last or not _others_pushed(root):
                raise
        _rebase(root)


def _others_pushed(root: Path) -> bool:
    _git(root, "fetch", "--quiet")
    try:
        return _git(root, "rev-list", "--count", "HEAD..@{upstream}").strip() != "0"
    except DvcError:  # no upstream branch: the error of `git push` explains it better
        return False


def _rebase(root: Path) -> None:
    """Rebase the local commits on the others'. dvc.lock is merged stage by stage, not line by line.

    Raises:
        DvcError: git refuses (uncommitted edits), or both sides recorded the same stage. The branch is unchanged.
    """
    driver = f'"{sys.executable}" -m orderproof.runs.lock_merge %O %A %B'
    with tempfile.NamedTemporaryFile(suffix=".gitattributes") as attributes:
        attributes.write(_own_attributes(root) + b"\ndvc.lock merge=dvc-lock\n")
        attributes.flush()
        settings = ("-c", f"core.attributesFile={attributes.name}", "-c", f"merge.dvc-lock.driver={driver}")
        try:
            run_tool(root, "git", ["git", *settings], ["rebase", "--quiet", "@{upstream}"])
        except DvcError as error:
            if not _rebasing(root):
                raise
            conflicting = ", ".join(_git(root, "diff", "--name-only", "--diff-filter=U").split())
            _git(root, "rebase", "--abort")
            raise DvcError(
                f"others pushed in the meantime, and their commits conflict with this one in "
                f"{conflicting or 'some files'} ({error}). Run `git pull --rebase` and resolve the conflict"
            ) from None


def _own_attributes(root: Path) -> bytes:
    """The user's own git attributes: git reads only one such file, and the setting above replaces it."""
    default = f"{os.environ.get('XDG_CONFIG_HOME') or '~/.config'}/git/attributes"
    options = ("--type=path", "--default", default, "--get", "core.attributesFile")
    path = root / _git(root, "config", *options).strip()
    return path.read_bytes() if path.is_file() else b""


def _rebasing(root: Path) -> bool:
    return any((root / _git(root, "rev-parse", "--git-path", name).strip()).exists() for name in _REBASE_FOLDERS)


def _commit_only(root: Path, paths: Sequence[str], message: str) -> str | None:
    """Commit only these files; the rest of the index stays as it is. Returns the commit; None if nothing changed."""
    states = {path: _git(root, "status", "--porcelain", "--", path) for path in paths}
    changed = [path for path, state in states.items() if state]
    untracked = [path for path in changed if states[path].startswith("??")]
    if not changed:
        return None
    try:
        if untracked:
            _git(root, "add", "--intent-to-add", "--", *untracked)  # --only needs files that git tracks
        _git(root, "commit", "--quiet", "--only", f"--message={message}", "--", *changed)
    except DvcError as error:
        if untracked:
            _git(root, "rm", "--quiet", "--cached", "--ignore-unmatch", "--", *untracked)
        if any(words in str(error) for words in _NO_IDENTITY):
            files = " ".join(changed)
            raise DvcError(
                f"{error}. Run `git config user.name 'Your Name'` and `git config user.email you@example.org`, then "
                f"`git add {files}` and `git commit -- {files}`"
            ) from None
        raise
    return _head(root)


def _ignore_files(root: Path, entry: Mapping[str, Any]) -> list[str]:
    """The .gitignore files in which DVC listed a stage's outputs; empty if git ignored those already."""
    found: dict[str, None] = {}
    for out in entry.get("outs", ()):
        path = Path(out["path"])
        ignore = root / path.parent / ".gitignore"
        if ignore.is_file() and f"/{path.name}" in ignore.read_text("utf-8").splitlines():
            found[str(path.parent / ".gitignore")] = None
    return list(found)


def _uncommitted_inputs(root: Path, entry: Mapping[str, Any]) -> tuple[str, ...]:
    """A note for each input of the record that has uncommitted changes."""
    pointers = [f"{dep['path']}.dvc" for dep in entry.get("deps", ()) if not Path(dep["path"]).is_absolute()]
    inputs = ["params.yaml", "dvc.yaml", *(path for path in pointers if (root / path).is_file())]
    return tuple(
        f"{path} has uncommitted changes: a clone of this commit would measure again"
        for path in inputs
        if _git(root, "status", "--porcelain", "--", path)
    )


def _head(root: Path) -> str:
    return _git(root, "rev-parse", "HEAD").strip()


def _git(root: Path, *arguments: str) -> str:
    return run_tool(root, "git", ["git"], arguments)
