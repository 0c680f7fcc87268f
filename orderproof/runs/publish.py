"""What git and DVC's remote are told of a stage that dvc.lock records.

In: the project's folder, a recorded stage, a message. Out: a commit of exactly that record, if asked for, pushed with
its data; or a `DvcError` that says what failed and what was done. Knows nothing of orders or verdicts.

Several workers may push to one branch. Whoever is late takes in what the others pushed and tries again.
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
PUSHES = 5  # tries, when others push at the same time


@dataclass(frozen=True)
class Published:
    """What left the working tree."""

    commit: str | None = None  # None: nothing new to commit
    pushed: bool = False
    notes: tuple[str, ...] = ()  # what the user should know: why nothing left, or what the commit does not hold


def publish(root: Path, stage: str, how: Literal["none", "commit", "push"], message: str) -> Published:
    """Commit a recorded stage to git and nothing else; with "push" push its data and then the commit.

    The commit holds dvc.lock and the .gitignore files that DVC wrote for the stage's outputs, as they lie on disk. What
    the user has staged stays staged and is not in it. Data go first, so that no pushed commit lacks them.

    Raises:
        DvcError: nothing is recorded, or git or DVC failed; the message says what was done before.
    """
    if how == "none":
        return Published()
    if running := inside_a_stage():
        return Published(notes=(f"not published: DVC records {running} only when its command has ended",))
    entry = lock_entry(root, stage)
    if entry is None:
        raise DvcError(f"{root / 'dvc.lock'} tells nothing of {stage}, so there is nothing to publish: record it first")
    commit = _commit_only(root, ["dvc.lock", *_ignore_files(root, entry)], message)
    notes = _uncommitted_inputs(root, entry)
    if how == "commit":
        return Published(commit, notes=notes)
    try:
        run_dvc(root, "push", stage)
        _push(root)
    except DvcError as error:
        done = f"committed {commit[:12]}, but not pushed" if commit else "not pushed"
        raise DvcError(f"{done}: {error}. When that is mended: dvc push {stage} && git push") from None
    return Published(_head(root) if commit else None, pushed=True, notes=notes)


def _push(root: Path) -> None:
    """Push the branch; where others were quicker, on top of what they pushed."""
    for last in (False,) * (PUSHES - 1) + (True,):
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
    except DvcError:  # a branch that follows none: what `git push` said of it says more
        return False


def _rebase(root: Path) -> None:
    """Put the commits that were not pushed on top of the others'. In dvc.lock, stages are merged and not lines.

    Raises:
        DvcError: git refuses (files were edited), or both recorded the same stage. The branch is what it was.
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
            disputed = ", ".join(_git(root, "diff", "--name-only", "--diff-filter=U").split())
            _git(root, "rebase", "--abort")
            raise DvcError(
                f"others pushed meanwhile, and what they say in {disputed or 'their commits'} and what was found here "
                f"do not go together ({error}): `git pull --rebase` and choose"
            ) from None


def _own_attributes(root: Path) -> bytes:
    """What the user's own file of attributes holds, whose place a setting takes: git reads one such file."""
    usual = f"{os.environ.get('XDG_CONFIG_HOME') or '~/.config'}/git/attributes"
    asked = ("--type=path", "--default", usual, "--get", "core.attributesFile")
    path = root / _git(root, "config", *asked).strip()
    return path.read_bytes() if path.is_file() else b""


def _rebasing(root: Path) -> bool:
    return any((root / _git(root, "rev-parse", "--git-path", name).strip()).exists() for name in _REBASE_FOLDERS)


def _commit_only(root: Path, paths: Sequence[str], message: str) -> str | None:
    """Commit the given files and keep the rest of the index as it is. Returns the commit; None if nothing changed."""
    states = {path: _git(root, "status", "--porcelain", "--", path) for path in paths}
    changed = [path for path, state in states.items() if state]
    untracked = [path for path in changed if states[path].startswith("??")]
    if not changed:
        return None
    try:
        if untracked:
            _git(root, "add", "--intent-to-add", "--", *untracked)  # --only takes nothing that git does not know
        _git(root, "commit", "--quiet", "--only", f"--message={message}", "--", *changed)
    except DvcError:
        if untracked:
            _git(root, "rm", "--quiet", "--cached", "--ignore-unmatch", "--", *untracked)
        raise
    return _head(root)


def _ignore_files(root: Path, entry: Mapping[str, Any]) -> list[str]:
    """The .gitignore files in which DVC listed a stage's outputs; none where git ignored those anyway."""
    found: dict[str, None] = {}
    for out in entry.get("outs", ()):
        path = Path(out["path"])
        ignore = root / path.parent / ".gitignore"
        if ignore.is_file() and f"/{path.name}" in ignore.read_text("utf-8").splitlines():
            found[str(path.parent / ".gitignore")] = None
    return list(found)


def _uncommitted_inputs(root: Path, entry: Mapping[str, Any]) -> tuple[str, ...]:
    """A note for each file that the record rests on and that git does not hold as it is."""
    pointers = [f"{dep['path']}.dvc" for dep in entry.get("deps", ()) if not Path(dep["path"]).is_absolute()]
    inputs = ["params.yaml", "dvc.yaml", *(path for path in pointers if (root / path).is_file())]
    return tuple(
        f"{path} has changes that are not committed: a clone of this commit would measure again"
        for path in inputs
        if _git(root, "status", "--porcelain", "--", path)
    )


def _head(root: Path) -> str:
    return _git(root, "rev-parse", "HEAD").strip()


def _git(root: Path, *arguments: str) -> str:
    return run_tool(root, "git", ["git"], arguments)
