"""Results survive crashes and damage: none is lost, doubled or mixed with those of other settings."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orderproof.engines.protocol import Completion
from orderproof.generate.checkpoint import (
    FOLDER,
    KEY_FILE,
    ORDER_FILE,
    RESULTS_FILE,
    Checkpoint,
    CheckpointError,
    kept_order,
    open_checkpoint,
)
from orderproof.generate.result import FLAWED, Result
from orderproof.orders.order import Order

KEY = {"dataset_md5": "a", "engine": {"args": {"max_num_seqs": 8}, "env": {}}, "sampling": {}}


def order(count: int = 6, seed: int = 1) -> Order:
    return Order(np.random.default_rng(seed).permutation(count), "shuffled", {}, {"shuffle": seed}, "a")


def result(place: int, **changes: Any) -> Result:
    made = (Completion([place, 7], f"été {place}\n\u2028", "stop", "\n"), Completion([], "", "length"))
    fields: dict[str, Any] = {"id": f"p{place}", "prompt_tokens": 3, "asked_tokens": 2, "asked_samples": 2,
                              "completions": made}  # fmt: skip
    return Result(place, **{**fields, **changes})


def opened(folder: Path, key: Any = KEY, of: Order | None = None, **how: Any) -> Checkpoint:
    return open_checkpoint(folder / FOLDER, key, of or order(), **how)


def test_results_are_there_again_after_reopening_whatever_their_text(tmp_path: Path) -> None:
    with opened(tmp_path) as first:
        for place in (4, 1):
            first.append(result(place))
    with opened(tmp_path) as again:
        assert (again.resumed, again.read(4), again.read(1), again.read(0)) == (2, result(4), result(1), None)


def test_a_result_is_on_disk_when_append_returns(tmp_path: Path) -> None:
    kept = opened(tmp_path)
    kept.append(result(3))
    with open(tmp_path / FOLDER / RESULTS_FILE, "rb") as other:  # as another process would see it
        assert b"\xc3" not in (line := other.read())
        assert line.endswith(b"}\n")
        assert b"p3" in line
    kept.close()


def test_what_is_pending_keeps_the_order_of_sending(tmp_path: Path) -> None:
    with opened(tmp_path) as kept:
        assert kept.pending.tolist() == order().permutation.tolist()
        sent = kept.pending.tolist()
        kept.append(result(sent[2]))
        assert kept.pending.tolist() == sent[:2] + sent[3:]


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_torn_last_line_is_cut_and_its_prompt_sent_again(tmp_path: Path, cut: int) -> None:
    with opened(tmp_path) as kept:
        for place in range(3):
            kept.append(result(place))
    path = tmp_path / FOLDER / RESULTS_FILE
    os.truncate(path, path.stat().st_size - cut)
    with opened(tmp_path) as again:
        assert (again.resumed, again.damaged) == (2, 0)
        again.append(result(2))
    with opened(tmp_path) as third:
        assert [third.read(place) for place in range(3)] == [result(0), result(1), result(2)]


def test_a_flipped_bit_costs_its_own_line_alone(tmp_path: Path) -> None:
    with opened(tmp_path) as kept:
        for place in range(3):
            kept.append(result(place))
    path = tmp_path / FOLDER / RESULTS_FILE
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with opened(tmp_path) as again:
        assert (again.resumed, again.damaged, again.read(1)) == (2, 1, None)
        again.append(result(1))
    with opened(tmp_path) as third:
        assert third.read(1) == result(1)


def test_a_second_output_for_a_prompt_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as kept:
        kept.append(result(1))
        with pytest.raises(CheckpointError, match="second output for prompt 'p1'"):
            kept.append(result(1))


def test_a_closed_checkpoint_takes_nothing_more(tmp_path: Path) -> None:
    kept = opened(tmp_path)
    kept.close()
    with pytest.raises(CheckpointError, match="is closed"):
        kept.append(result(1))
    assert (tmp_path / FOLDER / RESULTS_FILE).read_bytes() == b""


def test_a_failure_is_sent_again_and_its_later_output_counts(tmp_path: Path) -> None:
    with opened(tmp_path) as kept:
        kept.append(result(1, completions=(), asked_tokens=None, error="too long"))
    with opened(tmp_path) as again:
        assert 1 in again.pending
        again.append(result(1))
    with opened(tmp_path) as third:
        assert (third.resumed, third.read(1)) == (1, result(1))


def test_an_output_that_was_cut_short_is_kept_as_it_is(tmp_path: Path) -> None:
    with opened(tmp_path) as kept:
        kept.append(result(1, error="cut short"))
    with opened(tmp_path) as again:
        assert 1 not in again.pending
        assert again.state[1] == FLAWED


def test_another_key_is_refused_and_what_differs_is_named(tmp_path: Path) -> None:
    opened(tmp_path).close()
    other = {**KEY, "engine": {"args": {"max_num_seqs": 9}, "env": {"A": "1"}}}
    with pytest.raises(CheckpointError) as refused:
        opened(tmp_path, other)
    assert "engine.args.max_num_seqs: 8 → 9" in str(refused.value)
    assert "--restart" in str(refused.value)
    with pytest.raises(CheckpointError, match=r"order.sha256"):
        opened(tmp_path, of=order(seed=2))


def test_restart_moves_every_result_aside(tmp_path: Path) -> None:
    with opened(tmp_path) as kept:
        kept.append(result(1))
    with opened(tmp_path, restart=True) as fresh:
        assert fresh.resumed == 0
    (aside,) = tmp_path.glob(f"{FOLDER}.*")
    assert b"p1" in (aside / RESULTS_FILE).read_bytes()


def test_results_without_a_key_are_not_taken_for_anybodys(tmp_path: Path) -> None:
    with opened(tmp_path) as kept:
        kept.append(result(1))
    (tmp_path / FOLDER / KEY_FILE).unlink()
    with pytest.raises(CheckpointError, match=r"no key.json"):
        opened(tmp_path)


@pytest.mark.parametrize("made", [[], [ORDER_FILE], [RESULTS_FILE]])
def test_a_crash_while_a_checkpoint_is_made_leaves_nothing_in_the_way(tmp_path: Path, made: list[str]) -> None:
    (tmp_path / FOLDER).mkdir()
    for name in made:
        (tmp_path / FOLDER / name).touch()
    with opened(tmp_path) as kept:
        kept.append(result(1))


def test_the_order_of_a_checkpoint_is_the_same_bits_again(tmp_path: Path) -> None:
    opened(tmp_path).close()
    assert kept_order(tmp_path / FOLDER) == order()
    (tmp_path / FOLDER / ORDER_FILE).write_bytes(order(seed=2).permutation.tobytes())
    assert kept_order(tmp_path / FOLDER) is None
    assert kept_order(tmp_path / "nowhere") is None


def test_a_discarded_checkpoint_is_gone_and_one_that_a_crash_left_is_cleared(tmp_path: Path) -> None:
    opened(tmp_path).discard()
    assert list(tmp_path.iterdir()) == []
    left = tmp_path / f"{FOLDER}.finished"
    left.mkdir()
    opened(tmp_path).close()
    assert not left.exists()


def test_a_folder_that_cannot_be_read_is_told_with_what_it_holds_and_nothing_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as kept:
        kept.append(result(1))
    before = len(os.listdir("/proc/self/fd"))

    def broken(_: Checkpoint) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Checkpoint, "_recover", broken)
    with pytest.raises(CheckpointError, match=r"Input/output error.*The results so far are whole and kept there"):
        opened(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_checkpoint_that_cannot_be_moved_away_is_told_and_nothing_of_it_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = opened(tmp_path)
    kept.append(result(1))

    def busy(*_: object) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    monkeypatch.setattr(os, "replace", busy)
    with pytest.raises(CheckpointError, match="cannot be removed: Device or resource busy"):
        kept.discard()
    monkeypatch.undo()
    with opened(tmp_path) as again:
        assert again.read(1) == result(1)
