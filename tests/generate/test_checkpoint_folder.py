"""Results of different settings or inputs are never mixed, and no result is deleted before it is delivered."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from orderproof.generate.checkpoint_folder import (
    FOLDER,
    KEY_FILE,
    ORDER_FILE,
    RESULTS_FILE,
    CheckpointError,
    read_order,
)
from tests.support.results import KEY, make_order, make_result, open_at


def test_another_key_is_refused_and_the_differences_are_named(tmp_path: Path) -> None:
    open_at(tmp_path).close()
    other = {**KEY, "engine": {"args": {"max_num_seqs": 9}, "env": {"A": "1"}}}
    with pytest.raises(CheckpointError) as refused:
        open_at(tmp_path, other)
    assert "engine.args.max_num_seqs: 8 → 9" in str(refused.value)
    assert "--restart" in str(refused.value)
    with pytest.raises(CheckpointError, match=r"order.sha256"):
        open_at(tmp_path, order=make_order(seed=2))


def test_restart_moves_every_result_aside(tmp_path: Path) -> None:
    with open_at(tmp_path) as checkpoint:
        checkpoint.append(make_result(1))
    with open_at(tmp_path, restart=True) as fresh:
        assert fresh.resumed == 0
    (aside,) = tmp_path.glob(f"{FOLDER}.*")
    assert b"p1" in (aside / RESULTS_FILE).read_bytes()


def test_results_without_a_key_are_refused(tmp_path: Path) -> None:
    with open_at(tmp_path) as checkpoint:
        checkpoint.append(make_result(1))
    (tmp_path / FOLDER / KEY_FILE).unlink()
    with pytest.raises(CheckpointError, match=KEY_FILE):
        open_at(tmp_path)


@pytest.mark.parametrize("files", [[], [ORDER_FILE], [RESULTS_FILE]])
def test_a_crash_while_a_checkpoint_is_created_stops_no_later_run(tmp_path: Path, files: list[str]) -> None:
    (tmp_path / FOLDER).mkdir()
    for name in files:
        (tmp_path / FOLDER / name).touch()
    with open_at(tmp_path) as checkpoint:
        checkpoint.append(make_result(1))


def test_the_order_is_read_back_bit_for_bit_or_not_at_all(tmp_path: Path) -> None:
    open_at(tmp_path).close()
    assert read_order(tmp_path / FOLDER) == make_order()
    (tmp_path / FOLDER / ORDER_FILE).write_bytes(make_order(seed=2).permutation.tobytes())
    assert read_order(tmp_path / FOLDER) is None
    assert read_order(tmp_path / "nowhere") is None


def test_a_folder_that_a_crash_left_half_removed_is_cleared(tmp_path: Path) -> None:
    left = tmp_path / f"{FOLDER}.finished"
    left.mkdir()
    open_at(tmp_path).close()
    assert not left.exists()


def test_a_folder_that_cannot_be_removed_is_reported_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = open_at(tmp_path)
    checkpoint.append(make_result(1))

    def busy(*_: object) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    monkeypatch.setattr(Path, "replace", busy)
    with pytest.raises(CheckpointError, match="Device or resource busy"):
        checkpoint.discard()
    monkeypatch.undo()
    with open_at(tmp_path) as again:
        assert again.read(1) == make_result(1)
