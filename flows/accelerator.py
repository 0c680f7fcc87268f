"""One accelerator, one measurement: a strict concurrency limit where a Prefect server is there to keep it.

In: nothing. Out: a context that is entered when the accelerator is free. Without a server nothing is kept: a single
process measures alone anyway, and the jobs of one machine exclude each other by a lock file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import httpx
from filelock import FileLock
from prefect.client.orchestration import get_client
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectNotFound
from prefect.logging import get_run_logger
from prefect.settings import get_current_settings

LIMIT = "orderproof-accelerator"
LEASE_S = 60  # a killed flow's slot comes back after this long; Prefect renews it meanwhile


@contextlib.contextmanager
def accelerator(root: Path) -> Iterator[None]:
    """Hold the accelerator. Waits for whoever has it, and says so."""
    lock = FileLock(root / ".orderproof" / "accelerator.lock")
    Path(lock.lock_file).parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as held:
        if get_current_settings().api.url:
            _ensure_limit()
            held.enter_context(_slot())
        if not lock.is_locked:
            try:
                lock.acquire(timeout=0)
            except TimeoutError:
                get_run_logger().info("another orderproof process measures on this machine: waiting for it to end")
                lock.acquire()
            held.callback(lock.release)
        yield


@contextlib.contextmanager
def _slot() -> Iterator[None]:
    """One slot of the limit. A server that is gone at the end takes no finished work with it."""
    with contextlib.ExitStack() as held:
        held.enter_context(concurrency(LIMIT, occupy=1, strict=True, lease_duration=LEASE_S))
        yield
        try:
            held.close()
        except httpx.HTTPError:
            get_run_logger().warning(
                "the Prefect server is gone; the accelerator's slot comes back within %d s", LEASE_S
            )


def _ensure_limit() -> None:
    """Make the limit once, with one slot; a limit that somebody has set to more stays as it is."""
    with get_client(sync_client=True) as client:
        try:
            client.read_global_concurrency_limit_by_name(LIMIT)
        except ObjectNotFound:
            client.upsert_global_concurrency_limit_by_name(LIMIT, 1)
