"""One accelerator, one run at a time: a strict concurrency limit where a Prefect server keeps it, and a lock file.

The server's limit is named after the machine, so that two machines never wait for each other; it holds for all that
uses the server there. The lock file holds for everything that one user runs on the machine, with or without Prefect.
With a limit of more than one slot only the limit holds.
"""

from __future__ import annotations

import contextlib
import logging
import platform
import re
from collections.abc import Iterator

import httpx
from prefect.client.orchestration import get_client
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectNotFound
from prefect.settings import get_current_settings

from orderproof.engines.accelerator_lock import hold_accelerator

LIMIT = f"orderproof-accelerator-{re.sub(r'[^a-z0-9-]+', '-', platform.node().lower())}"  # of this machine
LEASE_S = 60  # a killed flow's slot is free again after this long; Prefect renews it meanwhile

logger = logging.getLogger("orderproof.accelerator")


@contextlib.contextmanager
def accelerator() -> Iterator[None]:
    """Hold the accelerator; waits for whoever has it.

    Raises:
        AcceleratorError: the folder of the lock file belongs to another user.
    """
    with contextlib.ExitStack() as held:
        slots = 1
        if get_current_settings().api.url:
            slots = _ensure_limit()
            held.enter_context(_slot())
        if slots == 1:
            held.enter_context(hold_accelerator(logger.info))
        yield


@contextlib.contextmanager
def _slot() -> Iterator[None]:
    """One slot of the server's limit. A server that goes away meanwhile or at the end takes no work with it."""
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
            logger.warning("the Prefect server is gone; the accelerator's slot is free again within %d s", LEASE_S)


def _ensure_limit() -> int:
    """Create the limit once, with one slot; a limit that somebody has set to more stays. Returns its slots."""
    with get_client(sync_client=True) as client:
        try:
            return int(client.read_global_concurrency_limit_by_name(LIMIT).limit)
        except ObjectNotFound:
            client.upsert_global_concurrency_limit_by_name(LIMIT, 1)
            return 1
