"""Which ids were there before, of any number of prompts that come one after the other.

In: ids. Out: whether each is new, by 64 bits of its hash. Knows nothing of what the ids are of.
"""

from __future__ import annotations

import hashlib

import numpy as np

MERGED_AT_ONCE = 1 << 15  # the newest keys, in a set of Python's at ten times the memory


def id_key(prompt_id: str) -> int:
    """64 bits of an id's hash: a million ids share none, but once in thirty million files."""
    return int.from_bytes(hashlib.blake2b(prompt_id.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


class IdSet:
    """Keys of ids, 8 bytes each in memory."""

    def __init__(self) -> None:
        self._sorted = np.empty(0, np.uint64)
        self._newest: set[int] = set()

    def add(self, key: int) -> bool:
        """Take a key in. Returns whether it is new."""
        if key in self._newest or self._holds(key):
            return False
        self._newest.add(key)
        if len(self._newest) >= max(MERGED_AT_ONCE, len(self._sorted) // 8):
            newest = np.fromiter(self._newest, np.uint64, len(self._newest))
            self._sorted = np.sort(np.concatenate([self._sorted, newest]), kind="stable")
            self._newest.clear()
        return True

    def _holds(self, key: int) -> bool:
        wanted = np.uint64(key)
        at = int(self._sorted.searchsorted(wanted))
        return at < len(self._sorted) and bool(self._sorted[at] == wanted)
