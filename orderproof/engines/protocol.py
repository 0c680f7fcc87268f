"""Engines: whatever turns prompts into outputs, behind one protocol.

In: requests in the order in which they are to be sent. Out: one `Output` or `Failure` per request, as they finish, and
the `Figures` of the pass. An engine sorts nothing, and knows nothing of orders, trials or trackers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from orderproof.job.errors import OrderproofError


class EngineError(OrderproofError):
    """The engine could not start, refused its settings or died; the message says which, and what to do."""


@dataclass(frozen=True)
class Request:
    """One prompt as the engine takes it."""

    number: int  # the answer comes back under it; unique within a pass
    token_ids: Sequence[int]
    sampling: Mapping[str, Any] | None = None  # overrides the pass's sampling, key by key
    lora: str | None = None  # name of one of the engine's adapters; None: the model itself


TokenLogprob = tuple[int, float, str]  # token, log probability, its text
Logprobs = Sequence[Sequence[TokenLogprob]]  # of each generated token: itself, then the likeliest


@dataclass(frozen=True)
class Completion:
    """One of the samples that a request asked for."""

    token_ids: Sequence[int]
    text: str
    finish_reason: str  # vLLM's: stop | length | …
    stop_reason: int | str | None = None  # the token or string that stopped it; None: the model's own end, or none
    logprobs: Logprobs | None = None  # None: not asked


@dataclass(frozen=True)
class Output:
    """What one request generated."""

    number: int
    completions: tuple[Completion, ...]  # the `n` of its sampling
    cached_tokens: int  # prompt tokens found in the prefix cache
    scheduled_s: float  # the engine's monotonic clock when the scheduler first admitted it
    at_s: float  # since the pass began

    @property
    def output_tokens(self) -> int:
        """Generated in all completions together."""
        return sum(len(completion.token_ids) for completion in self.completions)


@dataclass(frozen=True)
class Failure:
    """A request that the engine refused; the others go on."""

    number: int
    reason: str


@dataclass(frozen=True)
class EngineInfo:
    """What a started engine says of itself."""

    load_s: float
    versions: Mapping[str, str]
    machine: Mapping[str, Any]
    settings: Mapping[str, Any]  # max_model_len, max_num_seqs, mode, prefix_caching, …

    @property
    def kind(self) -> dict[str, Any]:
        """What of it decides outputs so much that results of two kinds are never mixed."""
        return {"versions": dict(self.versions), "device": self.machine.get("device_type")}


@dataclass(frozen=True)
class Steps:
    """Some successive steps of the scheduler, as the engine tells of them while it runs."""

    ms: npt.NDArray[np.float32]  # [steps]
    running: npt.NDArray[np.int32]  # [steps] sequences in the batch
    waiting: npt.NDArray[np.int32]  # [steps]


@dataclass(frozen=True)
class Share:
    """A run of neighbours in the order of sending that one replica was sent."""

    replica: int  # from 0
    start: int
    stop: int


@dataclass(frozen=True)
class Figures:
    """What was measured of one pass. Times in seconds unless the name says otherwise.

    Where the steps were watched instead, the three arrays are empty.
    """

    wall_s: float
    step_ms: npt.NDArray[np.float32]  # [steps]
    running: npt.NDArray[np.int32]  # [steps] sequences in the batch
    waiting: npt.NDArray[np.int32]  # [steps]
    preempted: int
    prefix_queries: int
    prefix_hits: int
    steal: float = 0.0
    accelerator: Mapping[str, float] = field(default_factory=dict)
    replica_s: tuple[float, ...] = ()  # when each replica was done; empty: there is one
    shares: tuple[Share, ...] = ()  # of the replicas, in the order of dealing; empty: one replica, or a stream

    @property
    def imbalance(self) -> float | None:
        """The slowest replica's time over the mean of all, 1 where none waited for another; None: there is one."""
        mean = sum(self.replica_s) / max(1, len(self.replica_s))
        return max(self.replica_s) / mean if mean else None


class Engine(Protocol):
    """What a trial and a batch need of an engine. Also a context manager: leaving it frees the accelerator."""

    def __enter__(self) -> Engine: ...

    def __exit__(self, *error: object) -> None: ...

    @property
    def info(self) -> EngineInfo: ...

    def probe(self, mib: int) -> float:
        """Seconds to stream `mib` MiB through the engine machine's memory."""
        ...

    def run(
        self,
        requests: Iterable[Request],
        sampling: Mapping[str, Any],
        sink: Callable[[Output | Failure], None],
        watch: Callable[[Steps], None] | None = None,
    ) -> Figures:
        """Generate for every request in the given order.

        Args:
            requests: those that are `Divisible` (requests.py) are shared among replicas in contiguous parts.
            sink: gets each answer as it finishes.
            watch: gets the steps as they are told of, a few seconds late at most, and then nothing collects them: a
                run of any length needs the same memory.

        Raises:
            EngineError: the engine died; answers that reached `sink` are whole and stay good.
        """
        ...
