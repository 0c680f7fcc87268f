"""An engine to which something happens in the middle of its work."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from orderproof.engines.client import VllmEngine
from orderproof.engines.protocol import EngineInfo, Failure, Output, PassStats, Request, Steps

SENT_BEFORE = 64  # more than an engine holds, so that it has work when something happens


class Interrupted:
    """A started engine, with something that happens after so many answers, and before it was sent many more."""

    def __init__(self, engine: Any, after: int, happens: Callable[[Any], None]) -> None:
        self.engine, self.after, self.happens, self.answers = engine, after, happens, 0

    @property
    def info(self) -> EngineInfo:
        info: EngineInfo = self.engine.info
        return info

    def probe(self, mib: int) -> float:
        return float(self.engine.probe(mib))

    def run(
        self,
        requests: Iterable[Request],
        sampling: Mapping[str, Any],
        sink: Callable[[Output | Failure], None],
        watch: Callable[[Steps], None] | None = None,
    ) -> PassStats:
        happened = threading.Event()

        def count(answer: Output | Failure) -> None:
            sink(answer)
            self.answers += 1
            if self.answers == self.after:
                try:
                    self.happens(self.engine)
                finally:
                    happened.set()

        def held_back() -> Iterator[Request]:
            for sent, request in enumerate(requests):
                if sent == self.after + SENT_BEFORE:
                    happened.wait()
                yield request

        is_single = isinstance(self.engine, VllmEngine)  # replicas are never sent more than they have room for
        stats: PassStats = self.engine.run(held_back() if is_single else requests, sampling, count, watch)
        return stats


def kill(engine: Any) -> None:
    """End an engine's process at once, as the kernel does when memory is short."""
    os.killpg(engine.pid, signal.SIGKILL)
