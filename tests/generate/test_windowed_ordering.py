"""What came of a stream, kept beside the outputs that were made of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orderproof.generate.checkpoint_folder import CheckpointError
from orderproof.generate.windowed_ordering import STREAMED_FILE, store_streamed_prompts
from tests.support.batches import make_project


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
def test_streamed_prompts_are_kept_and_nothing_lies_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    job, spool = make_project(tmp_path / "p", 4), tmp_path / "p" / "spool"
    spool.write_bytes(b"new")
    (job.data_dir / STREAMED_FILE).write_bytes(b"of an earlier stream")
    if not links:
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError(1, "Operation not permitted")))
    before = set(job.data_dir.iterdir())
    for _ in range(2):  # again after a crash
        stored = store_streamed_prompts(job, spool)
        assert stored.prompts_path.read_bytes() == b"new"
        assert set(job.data_dir.iterdir()) == before


def test_a_full_disk_is_reported_with_the_place_of_the_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, spool = make_project(tmp_path / "p", 4), tmp_path / "p" / "spool"
    spool.write_bytes(b"new")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(CheckpointError, match=rf"{STREAMED_FILE} .*No space left.*kept in .*spool"):
        store_streamed_prompts(job, spool)
