"""Run on one thread, so that sums have one order and results are the same bits on any number of cores."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit OpenMP, BLAS and torch to one thread within the block, and restore their settings afterwards.

    torch is limited only if it is already imported, since importing it takes seconds.
    """
    from threadpoolctl import threadpool_limits

    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else None
    with threadpool_limits(1):  # first: torch shares the OpenMP setting that this one restores
        if torch:
            torch.set_num_threads(1)  # also its own MKL, which threadpoolctl does not see
        try:
            yield
        finally:
            if torch:
                torch.set_num_threads(before)
