"""The protocol of engines: requests in the order of sending in, one `Output` or `Failure` each and `PassStats` out.

An engine never changes the order.
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


Sampling = Mapping[str, object]  # vLLM's SamplingParams by name


@dataclass(frozen=True)
class Request:
    """One prompt for the engine."""

    number: int  # identifies the answer; unique within a pass
    token_ids: Sequence[int]
    sampling: Sampling | None = None  # overrides the pass's sampling, key by key
    lora: str | None = None  # name of one of the engine's adapters; None: the model itself
    cache_salt: str | None = None  # only requests of the same salt share the prefix cache; None: all without one do


TokenLogprob = tuple[int, float, str]  # token, log probability, its text
Logprobs = Sequence[Sequence[TokenLogprob]]  # per generated token: that token, then the most likely ones


@dataclass(frozen=True)
class Completion:
    """One of the samples that a request asked for."""

    token_ids: Sequence[int]
    text: str
    finish_reason: str  # vLLM's: stop | length | …
    stop_reason: int | str | None = None  # the token or string that stopped it; None: the model's end token, or nothing
    logprobs: Logprobs | None = None  # None: not requested


@dataclass(frozen=True)
class Output:
    """What one request generated."""

    number: int
    completions: tuple[Completion, ...]  # the `n` of its sampling
    cached_tokens: int  # prompt tokens found in the prefix cache
    scheduled_s: float  # the engine's monotonic clock when the scheduler first admitted it
    at_s: float  # since the pass began
    log: str = ""  # what vLLM's log says of a request that it ended with an error

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
    """Versions, machine and settings of a started engine."""

    load_s: float
    versions: Mapping[str, str]
    machine: Mapping[str, Any]
    settings: Mapping[str, Any]  # max_model_len, max_num_seqs, mode, prefix_caching, …

    @property
    def kind(self) -> dict[str, Any]:
        """What influences outputs so much that results of two kinds are never mixed."""
        return {"versions": dict(self.versions), "device": self.machine.get("device_type")}


@dataclass(frozen=True)
class Steps:
    """Some successive steps of the scheduler, reported while the engine runs."""

    ms: npt.NDArray[np.float32]  # [steps]
    running: npt.NDArray[np.int32]  # [steps] sequences in the batch
    waiting: npt.NDArray[np.int32]  # [steps]


@dataclass(frozen=True)
class Share:
    """Neighbouring places in the order of sending that one replica was sent."""

    replica: int  # from 0
    start: int
    stop: int


@dataclass(frozen=True)
class PassStats:
    """What was measured during one pass. The three arrays are empty where the steps were watched instead."""

    wall_s: float
    step_ms: npt.NDArray[np.float32]  # [steps]
    running: npt.NDArray[np.int32]  # [steps] sequences in the batch
    waiting: npt.NDArray[np.int32]  # [steps]
    preempted: int
    prefix_queries: int
    prefix_hits: int
    steal: float = 0.0  # share of processor time that the host took
    accelerator: Mapping[str, float] = field(default_factory=dict)
    replica_s: tuple[float, ...] = ()  # when each replica ended; empty: one engine
    shares: tuple[Share, ...] = ()  # of the replicas, in the order of dealing; empty: one engine, or a stream

    @property
    def imbalance(self) -> float | None:
        """The slowest replica's time over the mean of all; 1: none waited for another; None: one engine."""
        mean = sum(self.replica_s) / max(1, len(self.replica_s))
        return max(self.replica_s) / mean if mean else None


class Engine(Protocol):
    """What a trial and a batch need of an engine. Its context loads the model; leaving it frees the accelerator."""

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
        sampling: Sampling,
        sink: Callable[[Output | Failure], None],
        watch: Callable[[Steps], None] | None = None,
    ) -> PassStats:
        """Generate for every request in the given order.

        Args:
            requests: those that are `Divisible` (requests.py) are shared among replicas in contiguous parts.
            sink: called with each answer when it is finished.
            watch: called with the steps, at most a few seconds late; they are then not collected, so that a run of any
                length needs the same memory.

        Raises:
            EngineError: the engine died; answers that reached `sink` are complete and stay valid.
        """
        ...
