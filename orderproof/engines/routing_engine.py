"""The parent's side of routing: a vLLM whose experts are captured, or whose routing is overridden. Never for a
measurement of orders: it runs eagerly, and its listening takes time.

In: what VllmEngine takes. Out: its answers, and the experts of every token that a request computed, or why they are
missing. Knows nothing of the files that routes are kept in.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderproof.engines.client import VllmEngine
from orderproof.engines.protocol import Failure, Figures, Output, Request
from orderproof.job.spec import EngineSpec

WORKER_ROUTING = Path(__file__).with_name("worker_routing.py")


@dataclass(frozen=True, eq=False)
class Routed:
    """The experts of one request."""

    number: int  # the request's
    experts: NDArray[Any] | None  # uint8 or uint16[prompt + generated − 1 tokens, layers, top_k]; None: missing
    missing: str  # why


class RoutingEngine(VllmEngine):
    """A vLLM engine in a child process whose routers are listened to."""

    def __init__(
        self,
        spec: EngineSpec,
        model: Path,
        sampling: Mapping[str, Any],
        log: Path,
        adapters: Mapping[str, Path] | None = None,
        *,
        k0: int | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        """As VllmEngine, and one engine however many replicas the job has. Its core always runs in the child's own
        process, where its routers are within reach.

        Args:
            k0: every pass is lossy, as in `opportunistic`; None: only those in such a context.

        Raises:
            EngineError: the model's folder is missing.
        """
        devices = spec.devices[:1] if spec.devices else None
        alone = spec.model_copy(update={"in_process": True, "replicas": 1, "devices": devices})
        super().__init__(alone, model, sampling, log, adapters, meanwhile=meanwhile)
        self._k0 = k0
        self._take: Callable[[Routed], None] | None = None

    def capture(
        self,
        requests: Iterable[Request],
        sampling: Mapping[str, Any],
        sink: Callable[[Output | Failure], None],
        take: Callable[[Routed], None],
    ) -> Figures:
        """A pass that also hands each request's routes to `take`, just before its answer reaches `sink`."""
        self._take = take
        try:
            return self.run(requests, sampling, sink)
        finally:
            self._take = None

    @contextlib.contextmanager
    def opportunistic(self, k0: int | None) -> Iterator[None]:
        """Passes in this context are lossy: Opportunistic Expert Activation with `k0` experts of each token's own.

        None leaves the model's routing alone.
        """
        usual, self._k0 = self._k0, k0
        try:
            yield
        finally:
            self._k0 = usual

    def _load_command(self) -> dict[str, Any]:
        return {**super()._load_command(), "routing": WORKER_ROUTING.read_text("utf-8")}

    def _pass_fields(self) -> dict[str, Any]:
        oea = {"oea": {"k0": self._k0}} if self._k0 is not None else {}
        return {"routing": {"capture": self._take is not None, **oea}}

    def _hear(self, event: Mapping[str, Any]) -> None:
        assert self._take is not None
        self._take(_routed(event))


def _routed(event: Mapping[str, Any]) -> Routed:
    if "missing" in event:
        return Routed(event["n"], None, event["missing"])
    content = np.frombuffer(base64.b64decode(event["experts"]), f"<u{event['bytes_per_expert']}")
    return Routed(event["n"], content.reshape(event["shape"]), "")
