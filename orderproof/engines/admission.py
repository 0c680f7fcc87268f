"""Whether an engine admits requests in the order in which they were sent, which is what an order rests on."""

from __future__ import annotations

import array

import numpy as np
from numpy.typing import ArrayLike


def count_inversions(admitted_s: ArrayLike) -> int:
    """Requests that were admitted before one sent earlier.

    Args:
        admitted_s: float[n], in the order of sending; NaN: never admitted.
    """
    clock = np.asarray(admitted_s, np.float64)
    ran = clock[np.isfinite(clock)]
    return int((ran < np.maximum.accumulate(ran)).sum()) if len(ran) else 0


class AdmissionLog:
    """When each request of a run was admitted: 8 bytes a request. One thread may send while another is answered."""

    def __init__(self) -> None:
        self._clock = array.array("d")

    def send(self) -> int:
        """The place of the next request in the order of sending."""
        self._clock.append(np.nan)
        return len(self._clock) - 1

    def admit(self, place: int, at_s: float) -> None:
        self._clock[place] = at_s

    @property
    def inversions(self) -> int:
        return count_inversions(self._clock)
