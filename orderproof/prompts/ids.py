"""Prompt ids as 64-bit keys: whether an id is new among millions, in 8 bytes of memory each."""

from __future__ import annotations

import hashlib

import numpy as np

MERGED_AT_ONCE = 1 << 15  # the newest keys are in a Python set, at ten times the memory


def id_key(prompt_id: str) -> int:
    """64 bits of an id's hash. Two of a million ids share a key once in thirty million files."""
    return int.from_bytes(hashlib.blake2b(prompt_id.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


class IdSet:
    """A set of id keys."""

    def __init__(self) -> None:
        self._sorted = np.empty(0, np.uint64)
        self._newest: set[int] = set()

    def add(self, key: int) -> bool:
        """Add a key. Returns whether it is new."""
        if key in self._newest or self._contains(key):
            return False
        self._newest.add(key)
        if len(self._newest) >= max(MERGED_AT_ONCE, len(self._sorted) // 8):
            newest = np.fromiter(self._newest, np.uint64, len(self._newest))
            self._sorted = np.sort(np.concatenate([self._sorted, newest]), kind="stable")
            self._newest.clear()
        return True

    def _contains(self, key: int) -> bool:
        wanted = np.uint64(key)
        at = int(self._sorted.searchsorted(wanted))
        return at < len(self._sorted) and bool(self._sorted[at] == wanted)
