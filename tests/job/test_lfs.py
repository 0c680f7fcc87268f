"""A file that Git LFS has not fetched is recognised."""

from __future__ import annotations

from pathlib import Path

from orderproof.job.lfs import is_pointer
from tests.support.lfs import POINTER


def test_a_pointer_is_told_from_content_and_from_nothing(tmp_path: Path) -> None:
    (tmp_path / "pointer").write_bytes(POINTER)
    (tmp_path / "content").write_bytes(b"version https://example.org")
    assert is_pointer(tmp_path / "pointer")
    assert not is_pointer(tmp_path / "content")
    assert not is_pointer(tmp_path / "absent")
    assert not is_pointer(tmp_path)
