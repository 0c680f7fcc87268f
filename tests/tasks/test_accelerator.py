"""One accelerator, one run at a time: the machine's lock file, and the server's limit where there is a server."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from filelock import FileLock
from prefect.exceptions import ObjectNotFound

from orderproof.engines.accelerator_lock import lock_path
from tasks import accelerator as module
from tasks.accelerator import LIMIT, accelerator


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock file is not this machine's."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


class Server:
    """A Prefect server's limits, and who holds a slot."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, slots: int | None) -> None:
        self.slots, self.holding, self.gone = slots, 0, False
        api = SimpleNamespace(api=SimpleNamespace(url="http://127.0.0.1:4200/api"))
        monkeypatch.setattr(module, "get_current_settings", lambda: api)
        monkeypatch.setattr(module, "get_client", lambda **_: contextlib.nullcontext(self))
        monkeypatch.setattr(module, "concurrency", self.concurrency)

    def read_global_concurrency_limit_by_name(self, name: str) -> Any:
        if self.slots is None:
            raise ObjectNotFound(KeyError(name))
        return SimpleNamespace(limit=self.slots)

    def upsert_global_concurrency_limit_by_name(self, name: str, limit: int) -> None:
        assert name == LIMIT
        self.slots = limit

    @contextlib.contextmanager
    def concurrency(self, name: str, **how: Any) -> Iterator[None]:
        assert (name, how["occupy"], how["strict"]) == (LIMIT, 1, True)
        self.holding += 1
        try:
            yield
        finally:
            self.holding -= 1
            if self.gone:
                raise httpx.ConnectError("all connection attempts failed")


def without_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "get_current_settings", lambda: SimpleNamespace(api=SimpleNamespace(url=None)))


def is_locked() -> bool:
    lock = FileLock(lock_path())
    try:
        with lock.acquire(timeout=0):
            return False
    except TimeoutError:
        return True


def test_without_a_server_the_lock_file_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    without_server(monkeypatch)
    with accelerator():
        assert is_locked()
    assert not is_locked()


@pytest.mark.parametrize("slots", [None, 1])
def test_with_a_server_the_limit_of_one_slot_and_the_lock_file_are_held(
    monkeypatch: pytest.MonkeyPatch, slots: int | None
) -> None:
    server = Server(monkeypatch, slots)
    with accelerator():
        assert (server.slots, server.holding, is_locked()) == (1, 1, True)
    assert (server.holding, is_locked()) == (0, False)


def test_a_limit_that_somebody_has_set_to_more_holds_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, 2)
    with accelerator():
        assert (server.slots, server.holding, is_locked()) == (2, 1, False)


def test_a_server_that_goes_away_meanwhile_takes_no_work_with_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(monkeypatch, 1)
    done = False
    with accelerator():
        server.gone = done = True
    assert (done, is_locked()) == (True, False)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_work_that_fails_gives_slot_and_lock_back(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, 1)
    with pytest.raises(ZeroDivisionError), accelerator():
        _ = 1 / 0
    assert (server.holding, is_locked()) == (0, False)
