"""A child process that speaks JSON lines: its end is reported, and it leaves nothing behind."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from orderproof.engines import child
from orderproof.engines.child import Child
from orderproof.engines.protocol import EngineError

Start = Callable[..., Child]
PRELUDE = "import json, sys, time; emit = lambda **event: print(json.dumps(event), flush=True);"
WAIT_S = 60.0


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Child] = []

    def make(program: str, **environment: str) -> Child:
        started.append(Child([sys.executable, "-c", PRELUDE + program], environment, tmp_path / "logs" / "it.log"))
        started[-1].start()
        return started[-1]

    yield make
    for child_process in started:
        child_process.close()


def test_lines_are_read_by_the_child_and_events_arrive_in_order(start: Start) -> None:
    echo = start("import os; emit(event=os.environ['WHO']); [emit(event=line) for line in sys.stdin]", WHO="me")
    for word in "ab":
        echo.send(word)
    assert [echo.next(WAIT_S)["event"] for _ in range(3)] == ["me", '"a"\n', '"b"\n']


def test_output_that_is_no_event_goes_to_the_log(start: Start) -> None:
    started = start("print('Welcome', flush=True); emit(event='up')")
    assert started.next(WAIT_S) == {"event": "up"}
    assert started.log.read_text() == "Welcome\n"


def test_an_exit_is_reported_with_its_code_and_the_last_line_of_this_child_alone(start: Start) -> None:
    with pytest.raises(EngineError, match=r"process ended with code 3; last line: Out of luck \(its log: .*it\.log"):
        start("print('Out of luck', file=sys.stderr); sys.exit(3)").next(WAIT_S)
    with pytest.raises(EngineError) as raised:
        start("import os; os.kill(os.getpid(), 9)").next(WAIT_S)
    assert "was killed by SIGKILL; SIGKILL often means that memory ran out (its log" in str(raised.value)


def test_a_child_that_closes_its_output_and_runs_on_is_reported_and_ended(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "ENDING_S", 0.2)
    mute = start("import os; os.close(1); time.sleep(600)")
    process = psutil.Process(mute.pid)
    with pytest.raises(EngineError, match="closed its output and did not end"):
        mute.next(WAIT_S)
    mute.close()
    assert not process.is_running()


def test_a_silent_child_is_ended(start: Start) -> None:
    silent = start("time.sleep(600)")
    process = psutil.Process(silent.pid)
    with pytest.raises(EngineError, match="no heartbeat"):
        silent.next(0.1)
    assert not process.is_running()
    with pytest.raises(EngineError, match="closed"):
        silent.send("more")


def test_a_child_that_tells_more_than_is_looked_at_leaves_no_thread_when_it_is_closed(start: Start) -> None:
    before = set(threading.enumerate())
    talker = start("[emit(event=k) for k in range(100_000)]")
    while not talker._events.full():
        time.sleep(0.01)
    mine = set(threading.enumerate()) - before
    talker.close()
    for thread in mine:
        thread.join(WAIT_S)
    assert [thread for thread in mine if thread.is_alive()] == []
    assert [talker.next(WAIT_S)["event"] for _ in range(child.EVENTS_AHEAD)] == [*range(child.EVENTS_AHEAD)]
    with pytest.raises(EngineError, match="the engine's process ended"):
        talker.next(WAIT_S)


def test_a_command_that_does_not_start_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"engine\.command '/no/such/python' does not start: No such file"):
        Child(["/no/such/python"], {}, tmp_path / "log").start()


def test_what_a_child_started_ends_with_it(start: Start) -> None:
    parent = start("import subprocess; emit(event=subprocess.Popen(['sleep', '600']).pid); time.sleep(600)")
    grandchild = psutil.Process(parent.next(WAIT_S)["event"])
    parent.close()
    assert not psutil.wait_procs([grandchild], WAIT_S)[1]


def test_a_signal_is_reported_by_name(start: Start) -> None:
    with pytest.raises(EngineError, match=f"was killed by {signal.SIGTERM.name}"):
        start("import os, signal; os.kill(os.getpid(), signal.SIGTERM); time.sleep(600)").next(WAIT_S)
