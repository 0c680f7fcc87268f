"""Record the results of a stage in dvc.lock when the work was done outside `dvc repro`.

DVC has no Python API for this, so its command is run. `dvc commit` records whatever is on disk, including a dataset
that was edited during the measurement. Therefore hashes and parameters taken before the work are compared with the new
entry, and dvc.lock is restored if they differ.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from orderproof.job.errors import OrderproofError
from orderproof.job.files import write_atomically
from orderproof.job.hashing import md5_of
from orderproof.job.redaction import hide_user_info

_NO_DVC = "not inside of a DVC repository"
_NO_STAGE = "does not exist as an output or a stage name"
_ERROR_START = re.compile(r"^(ERROR: |fatal: |error: | ! \[)", re.MULTILINE)  # as DVC and git print errors
_CONFLICT = re.compile(rb"^(<{7}|>{7}) ", re.MULTILINE)
_MAX_ERROR_CHARACTERS = 500


class DvcError(OrderproofError):
    """DVC or git failed. The message says what failed, why, and what to do."""


class InputsChanged(DvcError):
    """An input changed after the work began, so the result must not be recorded."""


@dataclass(frozen=True)
class Recorded:
    """Whether dvc.lock now holds a stage's current outputs; if not, `why`."""

    stage: str
    recorded: bool
    why: str = ""


def stage_of(job: str, what: str = "measure") -> str:
    """The name of a job's stage in dvc.yaml, such as "measure@six-domains"."""
    return f"{what}@{job}"


def inside_a_stage() -> str | None:
    """The DVC stage that runs this process; None outside `dvc repro`."""
    return os.environ.get("DVC_STAGE")


def stage_params(root: Path, job: str) -> dict[str, Any]:
    """The DVC parameters of a job's stage, as params.yaml has them: `defaults` and `jobs.<job>`; None: missing.

    Take them before a measurement: `compare_inputs` then detects an edit during it.
    """
    return _params_now(root, ("defaults", f"jobs.{job}"))


def compare_inputs(root: Path, files: Mapping[str, str], params: Mapping[str, Any]) -> None:
    """Check that files (md5 by path; folders are skipped) and DVC parameters have not changed. Writes nothing.

    Raises:
        InputsChanged: one of them changed.
        DvcError: params.yaml is not valid YAML.
    """
    _compare_files(root, files)
    _compare_params(params, _params_now(root, params))


def record_in_dvc(
    root: Path, stage: str, expected: Mapping[str, str], params: Mapping[str, Any] | None = None
) -> Recorded:
    """Record a stage's current outputs in dvc.lock, as `dvc repro` does.

    Inside a stage only the inputs are compared, because DVC itself records the stage's outputs.

    Args:
        root: folder of dvc.yaml and params.yaml.
        stage: such as "measure@six-domains".
        expected: md5 by path (absolute or from `root`), taken before the work began; for a folder DVC's own "….dir".
        params: the result of `stage_params` before the work began; None: not compared.

    Returns:
        Whether it was recorded. A project without DVC or without this stage is not an error.

    Raises:
        InputsChanged: an input changed. dvc.lock is unchanged.
        DvcError: DVC failed. dvc.lock is unchanged.
    """
    compare_inputs(root, expected, params or {})
    if inside_a_stage():
        return Recorded(stage, False, f"DVC itself records {inside_a_stage()} when its command ends")
    lock = root / "dvc.lock"
    before = lock.read_bytes() if lock.exists() else None
    try:
        run_dvc(root, "commit", "--force", stage)
        _compare_entry(root, stage, expected, params or {})
    except BaseException as error:  # also an interrupt
        _restore(lock, before)
        why = _why_not_recorded(root, stage, error)
        if why is None:
            raise
        return Recorded(stage, False, why)
    return Recorded(stage, True)


def record_again(root: Path, stage: str, ignored: Sequence[str] = ()) -> Recorded:
    """Record outputs that changed after their measurement, such as a demoted order.

    This is done only while the inputs are those in the stage's entry: it must never hold unmeasured inputs.

    Args:
        ignored: keys of a parameter that do not affect the measurement, so they may differ.
    """
    entry = lock_entry(root, stage)
    if entry is None:
        return Recorded(stage, False, f"{root / 'dvc.lock'} has no entry for {stage} yet")
    measured = {dep["path"]: dep["md5"] for dep in entry.get("deps", ())}
    params = entry.get("params", {}).get("params.yaml", {})
    now = _params_now(root, params)
    params = {key: _with_current(ignored, value, now[key]) for key, value in params.items()}
    try:
        return record_in_dvc(root, stage, measured, params)
    except InputsChanged as changed:
        return Recorded(stage, False, str(changed))


def lock_entry(root: Path, stage: str) -> dict[str, Any] | None:
    """A stage's entry in dvc.lock (cmd, deps, params, outs); None if there is none."""
    lock = _read_yaml(root / "dvc.lock") or {}
    entry: dict[str, Any] | None = (lock.get("stages") or {}).get(stage)
    return entry


def run_dvc(root: Path, *arguments: str) -> str:
    """Run a DVC command and return its output. Waits for other DVC processes. Raises DvcError."""
    return run_tool(root, "dvc", [sys.executable, "-m", "dvc", "--wait-for-lock"], arguments)


def run_tool(root: Path, name: str, prefix: Sequence[str], arguments: Sequence[str]) -> str:
    """Run a command without a terminal, so that it fails instead of asking for a password."""
    quiet = {"DVC_NO_ANALYTICS": "1", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C.UTF-8"}
    try:
        process = subprocess.run(
            [*prefix, *arguments], cwd=root, env={**os.environ, **quiet}, stdin=subprocess.DEVNULL, capture_output=True
        )
    except OSError as error:
        raise DvcError(f"{name} cannot be run in {root}: {error.strerror or error}") from None
    if process.returncode:
        raise DvcError(f"`{name} {arguments[0]}` failed: {_error_text(process.stderr.decode(errors='replace'))}")
    return process.stdout.decode(errors="replace")


def _compare_files(root: Path, expected: Mapping[str, str]) -> None:
    for path, md5 in expected.items():
        if md5.endswith(".dir"):
            continue  # only DVC hashes folders: they are compared in its entry
        try:
            _compare(path, md5, md5_of(root / path))
        except OSError as error:
            raise InputsChanged(f"{path} can no longer be read ({error.strerror}). Nothing was recorded") from None


def _compare_entry(root: Path, stage: str, expected: Mapping[str, str], params: Mapping[str, Any]) -> None:
    entry = lock_entry(root, stage) or {}
    files = [*entry.get("deps", ()), *entry.get("outs", ())]
    hashes = {(root / file["path"]).resolve(): file["md5"] for file in files}
    for path, md5 in expected.items():
        place = (root / path).resolve()
        now = hashes.get(place)
        if now is None and any(folder in hashes for folder in place.parents):  # DVC has one hash of the folder
            now = md5_of(place)
        if now is None:
            raise DvcError(
                f"{path} is not a dependency or output of {stage} in dvc.yaml, so it cannot be recorded. Add it there"
            )
        _compare(path, md5, now)
    recorded = entry.get("params", {}).get("params.yaml", {})
    _compare_params({key: value for key, value in params.items() if key in recorded}, recorded)


def _compare_params(measured: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for key, value in measured.items():
        if now[key] != value:
            raise InputsChanged(
                f"`{key}` in params.yaml changed since the measurement. Nothing was recorded. Measure again"
            )


def _with_current(names: Sequence[str], measured: Any, now: Any) -> Any:
    """The measured value of a parameter, with the current values of these keys."""
    if not isinstance(measured, Mapping) or not isinstance(now, Mapping):
        return measured
    kept = {key: value for key, value in measured.items() if key not in names}
    return {**kept, **{key: now[key] for key in names if key in now}}


def _params_now(root: Path, keys: Iterable[str]) -> dict[str, Any]:
    """Values by dotted key, as DVC names parameters; None for a missing key."""
    document = _read_yaml(root / "params.yaml")
    values = {}
    for key in keys:
        value = document
        for name in key.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        values[key] = value
    return values


def _compare(path: str, measured: str, now: str) -> None:
    if now != measured:
        raise InputsChanged(
            f"{path} changed since the measurement (md5 {measured}, now {now}). Nothing was recorded. Restore the "
            "file, or measure again"
        )


def _restore(lock: Path, content: bytes | None) -> None:
    now = lock.read_bytes() if lock.exists() else None
    if content is None:
        lock.unlink(missing_ok=True)
    elif now != content:
        write_atomically(lock, content)


def _why_not_recorded(root: Path, stage: str, error: BaseException) -> str | None:
    """Why this project does not record the stage; None if the error is a real failure."""
    if isinstance(error, DvcError) and _NO_DVC in str(error):
        return f"{root} is not in a DVC repository"
    if isinstance(error, DvcError) and _NO_STAGE in str(error):
        return f"{root / 'dvc.yaml'} has no stage {stage}"
    return None


def lock_problem(root: Path) -> str | None:
    """Why dvc.lock cannot be used, and what to do; None: it can, or there is none."""
    try:
        _read_yaml(root / "dvc.lock")
    except DvcError as error:
        return str(error)
    return None


def _read_yaml(path: Path) -> Any:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    if _CONFLICT.search(content):
        raise DvcError(
            f"{path} has the conflict markers of a git merge. Take one side with `git checkout --ours {path.name}` "
            f"(or --theirs), `git add {path.name}`; `dvc status` then names the stages that the other side recorded"
        )
    try:
        return YAML(typ="safe", pure=True).load(content)
    except (YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise DvcError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None


def _error_text(stderr: str) -> str:
    """The paragraph of a command's stderr that names the error, as one line, without hints."""
    start = _ERROR_START.search(stderr)
    paragraph = stderr[start.start() :].split("\n\n")[0] if start else stderr
    words = " ".join(line for line in paragraph.splitlines() if not line.startswith("hint: ")).split()
    return hide_user_info(" ".join(words))[:_MAX_ERROR_CHARACTERS] or "no error message"  # remotes have passwords
