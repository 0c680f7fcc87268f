"""A checkpoint whose order is made while its prompts are sent: what later runs find of it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from orderproof.generate.checkpoint_folder import FOLDER, ORDER_FILE, CheckpointError
from orderproof.generate.growing_checkpoint import WINDOWS_FILE, GrowingCheckpoint, open_growing
from orderproof.job.spec import OrderSpec
from orderproof.orders.view import PromptView, view_of

SPEC = OrderSpec(method="label", window=4)


def opened(folder: Path) -> GrowingCheckpoint:
    return open_growing(folder / FOLDER, {}, SPEC)


def window(labels: str) -> PromptView:
    return view_of([{"text": "x", "label": label} for label in labels])


def test_a_window_made_after_its_run_has_ended_is_not_written(tmp_path: Path) -> None:
    with opened(tmp_path) as late:
        assert late.extend(window("baba")).tolist() == [0, 2, 1, 3]
    with opened(tmp_path), pytest.raises(CheckpointError, match="is closed"):
        late.extend(window("dcba"))
    with opened(tmp_path) as again:
        assert again.order.permutation.tolist() == [0, 2, 1, 3]


@pytest.mark.parametrize("content", [b"", b"PK torn"])
def test_a_damaged_ordering_state_is_reported_with_what_to_do(tmp_path: Path, content: bytes) -> None:
    with opened(tmp_path) as kept:
        kept.extend(window("baba"))
    (tmp_path / FOLDER / WINDOWS_FILE).write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"{WINDOWS_FILE} or {ORDER_FILE} .*--restart"):
        opened(tmp_path)


def test_a_folder_that_cannot_be_written_is_not_reported_as_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as kept:
        kept.extend(window("baba"))

    def read_only(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "truncate", read_only)
    with pytest.raises(CheckpointError, match="Read-only file system") as refused:
        opened(tmp_path)
    assert "--restart" not in str(refused.value)
