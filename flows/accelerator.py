"""One accelerator, one measurement: a strict concurrency limit where a Prefect server keeps it, else a lock file.

In: nothing. Out: a context that is entered when the accelerator is free. The server's limit holds for every machine
that it knows; the lock file for all that one user runs on one machine, whichever checkout it is in. They do not see
each other: a DVC stage and a Prefect deployment exclude each other only where both are told of the server
(PREFECT_API_URL).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import httpx
from prefect.client.orchestration import get_client
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectNotFound
from prefect.settings import get_current_settings

from flows.reporting import run_logger
from orderproof.engines.accelerator_lock import hold_accelerator

LIMIT = "orderproof-accelerator"
LEASE_S = 60  # a killed flow's slot comes back after this long; Prefect renews it meanwhile


@contextlib.contextmanager
def accelerator() -> Iterator[None]:
    """Hold the accelerator. Waits for whoever has it, and says so.

    Raises:
        AcceleratorError: the folder of the lock file belongs to somebody else.
    """
    with _slot() if get_current_settings().api.url else hold_accelerator(run_logger().info):
        yield


@contextlib.contextmanager
def _slot() -> Iterator[None]:
    """One slot of the server's limit. A server that is gone meanwhile or at the end takes no work with it."""
    _ensure_limit()
    held = contextlib.ExitStack()
    held.enter_context(
        concurrency(LIMIT, occupy=1, strict=True, lease_duration=LEASE_S, raise_on_lease_renewal_failure=False)
    )
    try:
        yield
    finally:
        try:
            held.close()
        except httpx.HTTPError:
            run_logger().warning("the Prefect server is gone; the accelerator's slot comes back within %d s", LEASE_S)


def _ensure_limit() -> None:
    """Make the limit once, with one slot; a limit that somebody has set to more stays as it is."""
    with get_client(sync_client=True) as client:
        try:
            client.read_global_concurrency_limit_by_name(LIMIT)
        except ObjectNotFound:
            client.upsert_global_concurrency_limit_by_name(LIMIT, 1)
