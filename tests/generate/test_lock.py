"""One run at a time, and what is told where the disk or the file system does not play along."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
from pathlib import Path
from typing import Any

import pytest

from orderproof.generate.checkpoint import CheckpointError
from orderproof.generate.lock import holder_of, only_run


def test_a_full_disk_keeps_no_run_from_beginning_and_its_holder_is_then_unnamed(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with only_run(tmp_path, wait=False):
            held = holder_of(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (held, holder_of(tmp_path)) == ("another process", None)


def test_a_file_system_without_locks_is_told_before_anything_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", unknown)
    with (
        pytest.raises(CheckpointError, match=r"cannot be locked.*No locks available.*Nothing was sent"),
        only_run(tmp_path, wait=True),
    ):
        pytest.fail("it began")
    (tmp_path / ".outputs.lock").touch()
    assert holder_of(tmp_path) is None
