"""What DVC is told of a stage whose work was done outside `dvc repro`.

In: the project's folder, a stage's name, and the hashes and parameters that were taken before the work began. Out: an
entry in dvc.lock, or a `DvcError` in one line and dvc.lock as it was. Knows nothing of orders, verdicts or engines.

DVC has no Python call for this, so its command is run. `dvc commit` records whatever lies on disk, also a dataset that
was edited while it was measured; so what was taken before is compared, and an entry that tells of anything else is
taken back.
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

_NO_DVC = "not inside of a DVC repository"
_NO_STAGE = "does not exist as an output or a stage name"
_COMPLAINT = re.compile(r"^(ERROR: |fatal: |error: | ! \[)", re.MULTILINE)  # of DVC, of git
_LONGEST_COMPLAINT = 500  # characters


class DvcError(OrderproofError):
    """DVC or git failed: what, why, and what to do."""


class InputsChanged(DvcError):
    """The work rests on something that is no longer there, so it must not be recorded."""


@dataclass(frozen=True)
class Recorded:
    """Whether dvc.lock now tells of a stage's present outputs; if not, `why`."""

    stage: str
    recorded: bool
    why: str = ""


def stage_of(job: str, what: str = "measure") -> str:
    """The stage of dvc.yaml that measures a job, or that generates its outputs."""
    return f"{what}@{job}"


def inside_a_stage() -> str | None:
    """The DVC stage whose command this process is; None outside of one."""
    return os.environ.get("DVC_STAGE")


def stage_params(root: Path, job: str) -> dict[str, Any]:
    """The DVC parameters of a job's stage, as params.yaml has them now: `defaults` and `jobs.<job>`; absent: None.

    Taken before a job is measured, they let `compare_inputs` see whether the plan was edited meanwhile.
    """
    return _params_now(root, ("defaults", f"jobs.{job}"))


def compare_inputs(root: Path, files: Mapping[str, str], params: Mapping[str, Any]) -> None:
    """Are the files (md5 by path; folders are left out) and DVC parameters still what they were? Changes nothing.

    Raises:
        InputsChanged: one of them is not.
        DvcError: params.yaml is no YAML any more.
    """
    _compare_files(root, files)
    _compare_params(params, _params_now(root, params))


def record_in_dvc(
    root: Path, stage: str, expected: Mapping[str, str], params: Mapping[str, Any] | None = None
) -> Recorded:
    """Record a stage's present outputs in dvc.lock, as `dvc repro` would have.

    Inside a stage the inputs are compared and nothing else, since DVC itself records what the stage made.

    Args:
        root: folder of dvc.yaml and params.yaml.
        stage: such as "measure@six-domains".
        expected: md5 by path (absolute or from `root`), taken before the work began; of a folder, DVC's own "….dir".
        params: what `stage_params` gave then; None: not compared.

    Returns:
        whether it was recorded. A project without DVC, or without that stage, is no error.

    Raises:
        InputsChanged: an input is no longer what it was.
        DvcError: DVC failed. In either case dvc.lock is byte for byte what it was.
    """
    compare_inputs(root, expected, params or {})
    if inside_a_stage():
        return Recorded(stage, False, f"DVC itself records {inside_a_stage()} when its command has ended")
    lock = root / "dvc.lock"
    before = lock.read_bytes() if lock.exists() else None
    try:
        run_dvc(root, "commit", "--force", stage)
        _compare_entry(root, stage, expected, params or {})
    except BaseException as error:  # also when interrupted
        _restore(lock, before)
        why = _nowhere_to_record(root, stage, error)
        if why is None:
            raise
        return Recorded(stage, False, why)
    return Recorded(stage, True)


def record_again(root: Path, stage: str, beside: Sequence[str] = ()) -> Recorded:
    """Record outputs that were changed after their measurement, such as a demoted order.

    That must not pass other inputs off as measured, so it is done only while they are those of the stage's entry.

    Args:
        beside: keys of a parameter that decide nothing of what was measured, so that they may have changed.
    """
    entry = lock_entry(root, stage)
    if entry is None:
        return Recorded(stage, False, f"{root / 'dvc.lock'} tells nothing of {stage} yet")
    measured = {dep["path"]: dep["md5"] for dep in entry.get("deps", ())}
    params = entry.get("params", {}).get("params.yaml", {})
    now = _params_now(root, params)
    params = {key: _with_present(beside, value, now[key]) for key, value in params.items()}
    try:
        return record_in_dvc(root, stage, measured, params)
    except InputsChanged as changed:
        return Recorded(stage, False, str(changed))


def lock_entry(root: Path, stage: str) -> dict[str, Any] | None:
    """What dvc.lock tells of a stage: its cmd, deps, params and outs; None if nothing."""
    lock = _read_yaml(root / "dvc.lock") or {}
    entry: dict[str, Any] | None = (lock.get("stages") or {}).get(stage)
    return entry


def run_dvc(root: Path, *arguments: str) -> str:
    """Run a DVC command to its end, waiting for other DVC processes. Returns its output, or raises DvcError."""
    return run_tool(root, "dvc", [sys.executable, "-m", "dvc", "--wait-for-lock"], arguments)


def run_tool(root: Path, name: str, prefix: Sequence[str], arguments: Sequence[str]) -> str:
    """Run a command without a terminal, so that it fails instead of asking for a password."""
    quiet = {"DVC_NO_ANALYTICS": "1", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C.UTF-8"}
    try:
        done = subprocess.run(
            [*prefix, *arguments], cwd=root, env={**os.environ, **quiet}, stdin=subprocess.DEVNULL, capture_output=True
        )
    except OSError as error:
        raise DvcError(f"{name} cannot be run in {root}: {error.strerror or error}") from None
    if done.returncode:
        raise DvcError(f"`{name} {arguments[0]}` failed: {_complaint(done.stderr.decode(errors='replace'))}")
    return done.stdout.decode(errors="replace")


def _compare_files(root: Path, expected: Mapping[str, str]) -> None:
    for path, md5 in expected.items():
        if md5.endswith(".dir"):
            continue  # only DVC hashes folders, so they are compared in its entry
        try:
            _compare(path, md5, md5_of(root / path))
        except OSError as error:
            raise InputsChanged(f"{path} cannot be read any more ({error.strerror}): nothing was recorded") from None


def _compare_entry(root: Path, stage: str, expected: Mapping[str, str], params: Mapping[str, Any]) -> None:
    entry = lock_entry(root, stage) or {}
    files = [*entry.get("deps", ()), *entry.get("outs", ())]
    hashes = {(root / file["path"]).resolve(): file["md5"] for file in files}
    for path, md5 in expected.items():
        now = hashes.get((root / path).resolve())
        if now is None:
            raise DvcError(
                f"{path} is no dependency of {stage} in dvc.yaml, so its entry could not tell what was measured"
            )
        _compare(path, md5, now)
    recorded = entry.get("params", {}).get("params.yaml", {})
    _compare_params({key: value for key, value in params.items() if key in recorded}, recorded)


def _compare_params(measured: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for key, value in measured.items():
        if now[key] != value:
            raise InputsChanged(f"`{key}` in params.yaml is not what was measured: nothing was recorded. Measure again")


def _with_present(names: Sequence[str], measured: Any, now: Any) -> Any:
    """A parameter as it was measured, but for these keys of it, which are as they are now."""
    if not isinstance(measured, Mapping) or not isinstance(now, Mapping):
        return measured
    kept = {key: value for key, value in measured.items() if key not in names}
    return {**kept, **{key: now[key] for key in names if key in now}}


def _params_now(root: Path, keys: Iterable[str]) -> dict[str, Any]:
    """Values by dotted key, as DVC names parameters; None for one that is not there."""
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
            f"{path} is not what was measured (md5 {measured} then, {now} now): nothing was recorded. Put it back, or "
            "measure again"
        )


def _restore(lock: Path, content: bytes | None) -> None:
    now = lock.read_bytes() if lock.exists() else None
    if content is None:
        lock.unlink(missing_ok=True)
    elif now != content:
        write_atomically(lock, content)


def _nowhere_to_record(root: Path, stage: str, error: BaseException) -> str | None:
    """Why this project has no place for the record; None if the error is a failure."""
    if isinstance(error, DvcError) and _NO_DVC in str(error):
        return f"{root} is not inside a DVC repository"
    if isinstance(error, DvcError) and _NO_STAGE in str(error):
        return f"{root / 'dvc.yaml'} has no stage {stage}"
    return None


def _read_yaml(path: Path) -> Any:
    try:
        return YAML(typ="safe", pure=True).load(path)
    except FileNotFoundError:
        return None
    except (YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise DvcError(f"{path} is not readable as YAML: {' '.join(str(error).split())}") from None


def _complaint(stderr: str) -> str:
    """The paragraph of a command's stderr that says what is wrong, as one line, without hints."""
    start = _COMPLAINT.search(stderr)
    paragraph = stderr[start.start() :].split("\n\n")[0] if start else stderr
    words = " ".join(line for line in paragraph.splitlines() if not line.startswith("hint: ")).split()
    return " ".join(words)[:_LONGEST_COMPLAINT] or "it did not say why"
