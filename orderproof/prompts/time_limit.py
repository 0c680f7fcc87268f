"""A limit for others' Python code that may never end, such as the loops of a chat template, in any thread.

A signal reaches the main thread alone, so one watching thread raises the error in the thread that is late.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Iterator

LIMIT_S = 10.0
LOOK_S = 0.25  # between two looks of the watching thread


class TooLong(Exception):
    """The code was ended."""


_begun_s: dict[int, float] = {}  # of each thread that is inside, since when
_lock = threading.Lock()
_watching = threading.Event()  # somebody is inside
_watcher: threading.Thread | None = None


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """End the block with `TooLong` after LIMIT_S, once it runs Python code again. Blocks of a thread do not nest."""
    thread = threading.get_ident()
    with _lock:
        _begun_s[thread] = time.monotonic()
        _start_watching()
    try:
        yield
    finally:
        with _lock:
            _begun_s.pop(thread, None)
            if not _begun_s:
                _watching.clear()


def _start_watching() -> None:
    global _watcher
    _watching.set()
    if _watcher is None or not _watcher.is_alive():  # a fork has none
        _watcher = threading.Thread(target=_watch, daemon=True)
        _watcher.start()


def _watch() -> None:
    while True:
        _watching.wait()
        time.sleep(LOOK_S)
        with _lock:
            late = [thread for thread, begun_s in _begun_s.items() if time.monotonic() - begun_s > LIMIT_S]
            for thread in late:
                del _begun_s[thread]
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(TooLong))
