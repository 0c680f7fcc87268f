"""Progress reaches Prefect at a rate that suits a server, and no server holds up the work."""

from __future__ import annotations

import threading
import time
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from orderproof.runs.progress import TerminalProgress
from tasks import progress
from tasks.progress import PrefectProgress


class Prefect:
    """Takes progress artifacts. `update` replaces what it does with one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.created: list[tuple[float, str]] = []
        self.shown: list[float] = []
        self.update: Any = self.shown.append
        monkeypatch.setattr(progress, "create_progress_artifact", self.create)
        monkeypatch.setattr(progress, "update_progress_artifact", lambda _, percent: self.update(percent))

    def create(self, percent: float, key: str, **_: Any) -> UUID:
        self.created.append((percent, key))
        return uuid4()


@pytest.fixture
def prefect(monkeypatch: pytest.MonkeyPatch) -> Prefect:
    return Prefect(monkeypatch)


def work(units: int = 40, total: int | None = 40) -> None:
    """Every unit is finished, one after another."""
    with PrefectProgress("my_job", total, "prompts of the batch") as bar:
        for done in range(1, units + 1):
            bar.update(done)


def test_the_artifact_begins_at_0_and_ends_at_100_percent(prefect: Prefect) -> None:
    work()
    assert prefect.created == [(0.0, "progress-prompts-my-job")]
    assert prefect.shown == [100.0], "a server need not hear of every prompt"


def test_the_artifact_moves_now_and_then_and_never_claims_to_be_done(
    prefect: Prefect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "EVERY_S", 0.0)
    with PrefectProgress("it", 40, "prompts") as bar:
        for done in (10, 20, 40):
            bar.update(done)
            assert bar._sending is not None
            bar._sending.join()
        assert prefect.shown == [25.0, 50.0, 99.0]
    assert prefect.shown[-1] == 100.0


def test_a_stream_whose_end_is_unknown_ends_at_100_percent(prefect: Prefect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "EVERY_S", 0.0)
    work(total=None)
    assert prefect.shown == [100.0]


def test_a_slow_server_still_ends_at_100_percent(prefect: Prefect, monkeypatch: pytest.MonkeyPatch) -> None:
    def slowly(percent: float) -> None:
        time.sleep(0.2)
        prefect.shown.append(percent)

    prefect.update = slowly
    monkeypatch.setattr(progress, "EVERY_S", 0.0)
    work()
    assert prefect.shown[-1] == 100.0


def test_a_server_that_never_answers_does_not_hold_up_the_end(
    prefect: Prefect, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = threading.Event()
    prefect.update = lambda _: never.wait()
    monkeypatch.setattr(progress, "EVERY_S", 0.0)
    monkeypatch.setattr(progress, "PATIENCE_S", 0.05)
    began = time.monotonic()
    work()
    assert time.monotonic() - began < 5
    assert prefect.shown == []
    never.set()


def test_work_that_fails_is_not_shown_as_done(prefect: Prefect) -> None:
    with pytest.raises(ZeroDivisionError), PrefectProgress("it", 40, "prompts"):
        _ = 1 / 0
    assert prefect.shown == []


def test_a_prefect_that_takes_nothing_is_named_and_the_work_goes_on(
    prefect: Prefect, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def gone(*_: Any, **__: Any) -> None:
        raise httpx.ConnectError("all connection attempts failed")

    monkeypatch.setattr(progress, "create_progress_artifact", gone)
    work()
    assert "ConnectError" in caplog.text
    assert prefect.shown == []


@pytest.mark.parametrize("kind", [TerminalProgress, PrefectProgress])
def test_outside_of_a_terminal_no_bar_is_drawn(prefect: Prefect, capfd: pytest.CaptureFixture[str], kind: Any) -> None:
    with kind("it", 40, "prompts") as bar:
        for done in range(40):
            bar.update(done, f"prompt {done}", "3 req/s")
    written = capfd.readouterr()
    assert written.out + written.err == ""
