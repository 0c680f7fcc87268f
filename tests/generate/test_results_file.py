"""No result is lost when a process is killed, when power fails, when the disk is full or a bit is flipped."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from orderproof.generate import results_file
from orderproof.generate.checkpoint_folder import RESULTS_FILE, CheckpointError
from orderproof.generate.result import State
from orderproof.generate.results_file import SYNC_S, ResultsFile, encode
from tests.support.results import make_result

PROMPTS = 6
APPEND_FOR_EVER = """
import sys
from pathlib import Path
from orderproof.generate.results_file import ResultsFile
from tests.support.results import make_result
results = ResultsFile(Path(sys.argv[1]), 1_000_000)
for place in range(1_000_000):
    results.append(make_result(place))
    print(place, flush=True)
"""


@pytest.fixture
def results(tmp_path: Path) -> Iterator[ResultsFile]:
    results = ResultsFile(tmp_path, PROMPTS)
    yield results
    results.close()


def reopen(folder: Path) -> list[int]:
    """Places of the outputs that a later run finds; each must be whole."""
    again = ResultsFile(folder, PROMPTS)
    try:
        places = [place for place in range(PROMPTS) if again.states[place] == State.COMPLETE]
        assert all(again.read(place) == make_result(place) for place in places)
        return places
    finally:
        again.close()


def test_a_killed_process_loses_no_result_whose_append_returned(tmp_path: Path) -> None:
    for kill in range(3):
        folder = tmp_path / str(kill)
        folder.mkdir()
        command = [sys.executable, "-c", APPEND_FOR_EVER, str(folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout
            process.stdout.readline()
            time.sleep(0.05 * kill)
            process.send_signal(signal.SIGKILL)
            returned = 1 + process.stdout.read().count("\n")
        again = ResultsFile(folder, 1_000_000)
        found = int((again.states == State.COMPLETE).sum())
        assert returned <= found <= returned + 1
        assert all(again.read(place) == make_result(place) for place in range(found))
        again.close()


def test_a_power_loss_costs_about_a_second_of_results(
    tmp_path: Path, results: ResultsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[float, int]] = []
    path = tmp_path / RESULTS_FILE
    usual = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (synced.append((time.monotonic(), path.stat().st_size)), usual(file)))
    results.append(make_result(1))
    results.append(make_result(2))
    appended = time.monotonic()
    while not synced:
        assert time.monotonic() < appended + SYNC_S + 5, "not synced in time"
        time.sleep(0.01)
    results.append(make_result(3))
    on_disk = path.read_bytes()[: synced[0][1]]
    lost = tmp_path / "after the power loss"
    lost.mkdir()
    (lost / RESULTS_FILE).write_bytes(on_disk + b"\0" * 100)  # the size is there, the content is not
    assert reopen(lost) == [1, 2]


def test_a_sync_that_fails_stops_the_run_at_its_next_result(
    tmp_path: Path, results: ResultsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = threading.Event()

    def broken(_: int) -> None:
        tried.set()
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", broken)
    results.append(make_result(1))
    assert tried.wait(SYNC_S + 5)
    time.sleep(0.1)  # the thread that syncs keeps the error
    with pytest.raises(CheckpointError, match="Input/output error"):
        results.append(make_result(2))


def test_a_full_disk_is_reported_and_takes_no_half_of_a_result(tmp_path: Path, results: ResultsFile) -> None:
    results.append(make_result(1))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    whole = (tmp_path / RESULTS_FILE).stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (whole + 10, hard))
    try:
        with pytest.raises(CheckpointError, match="kept there"):
            results.append(make_result(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / RESULTS_FILE).stat().st_size == whole
    assert results.states[2] == State.ABSENT
    results.append(make_result(2))  # there is room again
    assert reopen(tmp_path) == [1, 2]


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_torn_last_line_is_cut_and_its_prompt_sent_again(tmp_path: Path, cut: int) -> None:
    lines = b"".join(encode(make_result(place)) for place in range(3))
    (tmp_path / RESULTS_FILE).write_bytes(lines[:-cut])
    again = ResultsFile(tmp_path, PROMPTS)
    assert ((again.states == State.COMPLETE).sum(), again.damaged) == (2, 0)
    again.append(make_result(2))
    again.close()
    assert reopen(tmp_path) == [0, 1, 2]


def test_a_flipped_bit_costs_its_own_result_and_no_other(tmp_path: Path) -> None:
    lines = bytearray(b"".join(encode(make_result(place)) for place in range(3)))
    for bit in range(0, 8 * len(lines), 97):
        content = bytearray(lines)
        content[bit // 8] ^= 1 << bit % 8
        (tmp_path / RESULTS_FILE).write_bytes(content)
        assert len(reopen(tmp_path)) >= 1, "a flipped end of line costs the lines on both sides"
    content = bytearray(lines)
    content[len(content) // 2] ^= 1
    (tmp_path / RESULTS_FILE).write_bytes(content)
    again = ResultsFile(tmp_path, PROMPTS)
    assert (again.damaged, again.read(1)) == (1, None)
    again.append(make_result(1))
    again.close()
    assert reopen(tmp_path) == [0, 1, 2]


def test_a_second_output_for_a_prompt_is_refused(tmp_path: Path, results: ResultsFile) -> None:
    results.append(make_result(1))
    with pytest.raises(CheckpointError, match="second output for prompt 'p1'"):
        results.append(make_result(1))
    assert (tmp_path / RESULTS_FILE).read_bytes().count(b"\n") == 1


def test_a_closed_file_takes_nothing_more(tmp_path: Path, results: ResultsFile) -> None:
    results.close()
    with pytest.raises(CheckpointError, match="is closed"):
        results.append(make_result(1))
    assert (tmp_path / RESULTS_FILE).read_bytes() == b""


def test_a_file_that_cannot_be_read_is_reported_and_nothing_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: bytes) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    (tmp_path / RESULTS_FILE).write_bytes(encode(make_result(1)))
    monkeypatch.setattr(results_file, "decode_head", broken)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(CheckpointError, match="Input/output error"):
        ResultsFile(tmp_path, PROMPTS)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_million_prompts_need_nine_bytes_of_memory_each(tmp_path: Path) -> None:
    tracemalloc.start()
    results = ResultsFile(tmp_path, 1_000_000)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    results.close()
    assert used < 9.5e6


def test_room_for_more_prompts_keeps_what_is_there(tmp_path: Path, results: ResultsFile) -> None:
    results.append(make_result(1))
    for prompts in range(PROMPTS, 40):
        with results.writing():
            results.grow(prompts)
        assert len(results.states) == prompts
    results.append(make_result(38))
    assert (results.read(1), results.read(38)) == (make_result(1), make_result(38))
    assert (results.states != State.ABSENT).sum() == 2
