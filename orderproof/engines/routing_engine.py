"""The parent's side of routing: a vLLM whose routers' decisions are recorded, or overridden.

Never used to measure orders: it runs eagerly, and recording takes time.
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
from orderproof.engines.protocol import Failure, Output, PassStats, Request, Sampling
from orderproof.job.spec import EngineSpec

WORKER_ROUTING = Path(__file__).with_name("worker_routing.py")


@dataclass(frozen=True, eq=False)
class Routed:
    """The experts of one request, or why they are missing."""

    number: int  # the request's
    experts: (
        NDArray[np.unsignedinteger] | None
    )  # uint8 or uint16[prompt + generated − 1 tokens, layers, top_k]; None: missing
    missing: str  # the reason


class RoutingEngine(VllmEngine):
    """A vLLM engine in a child process whose routers' decisions can be recorded or overridden."""

    def __init__(
        self,
        spec: EngineSpec,
        model: Path,
        sampling: Sampling,
        log: Path,
        adapters: Mapping[str, Path] | None = None,
        *,
        k0: int | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        """As VllmEngine, but one engine however many replicas the job has.

        The engine's core runs in the child's own process, because its routers must be accessible there.

        Args:
            k0: every pass is lossy, as in `opportunistic`; None: only passes in that context.

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
        sampling: Sampling,
        sink: Callable[[Output | Failure], None],
        take: Callable[[Routed], None],
    ) -> PassStats:
        """A pass that also calls `take` with each request's routes, just before its answer reaches `sink`."""
        self._take = take
        try:
            return self.run(requests, sampling, sink)
        finally:
            self._take = None

    @contextlib.contextmanager
    def opportunistic(self, k0: int | None) -> Iterator[None]:
        """Passes in this context are lossy: Opportunistic Expert Activation with `k0` of each token's own experts.

        None keeps the model's routing.
        """
        previous, self._k0 = self._k0, k0
        try:
            yield
        finally:
            self._k0 = previous

    def _load_command(self) -> dict[str, Any]:
        return {**super()._load_command(), "routing": WORKER_ROUTING.read_text("utf-8")}

    def _pass_fields(self) -> dict[str, Any]:
        oea = {"oea": {"k0": self._k0}} if self._k0 is not None else {}
        return {"routing": {"capture": self._take is not None, **oea}}

    def _receive_routes(self, event: Mapping[str, Any]) -> None:
        assert self._take is not None
        self._take(_routed(event))


def _routed(event: Mapping[str, Any]) -> Routed:
    if "missing" in event:
        return Routed(event["n"], None, event["missing"])
    content = np.frombuffer(base64.b64decode(event["experts"]), f"<u{event['bytes_per_expert']}")
    return Routed(event["n"], content.reshape(event["shape"]), "")
