"""One thread, so that sums are added in one order and results are the same bits on any number of cores."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_thread() -> Iterator[None]:
    """Pin OpenMP, BLAS and torch to one thread within the block; restore what they had afterwards.

    torch is pinned only if it was imported before: importing it takes seconds.
    """
    from threadpoolctl import threadpool_limits

    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else None
    with threadpool_limits(1):  # first: torch shares the OpenMP setting that this one restores
        if torch:
            torch.set_num_threads(1)  # also its MKL, which is linked in and hidden from threadpoolctl
        try:
            yield
        finally:
            if torch:
                torch.set_num_threads(before)
