"""Several vLLM engines as one: each replica its own worker process, with its own devices and share of the order.

In: a job's `EngineSpec` with `replicas`, model folder and sampling. Out: an `Engine`. Every call of `sink` and `watch`
comes from the thread that called `run`, whichever replica answered. One replica that dies ends them all, because an
order that misses a share is not the order that was asked. Knows nothing of orders or trials.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]

from orderproof.engines.client import QUEUED_BATCHES, VllmEngine
from orderproof.engines.protocol import EngineError, EngineInfo, Failure, Figures, Output, Request, Steps
from orderproof.engines.shares import Dealer
from orderproof.job.spec import EngineSpec

RUN_BATCHES = 2  # neighbours that stay together when the tail is rebalanced, or a stream is dealt
AHEAD_BATCHES = QUEUED_BATCHES + 1  # sent to a replica and not answered: its queue, and a batch on the way to it
LOADING_FACTOR = 2  # an engine that loads may hold its weights twice, read and unpacked

Event = Output | Failure | Steps | Figures | BaseException


class ReplicatedEngine:
    """N vLLM engines behind the protocol of one."""

    def __init__(
        self,
        spec: EngineSpec,
        model: Path,
        sampling: Mapping[str, Any],
        log: Path,
        adapters: Mapping[str, Path] | None = None,
        *,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        """Nothing starts yet. Replica k logs to `log` with its number before the suffix.

        Raises:
            EngineError: the model's folder is missing.
        """
        self.spec, self.model, self.meanwhile = spec, model, meanwhile
        self.engines = [
            VllmEngine(spec, model, sampling, log.with_suffix(f".{k + 1}{log.suffix}"), adapters, replica=k)
            for k in range(spec.replicas)
        ]

    @property
    def info(self) -> EngineInfo:
        """The first replica's, with the number of replicas and the devices of each; sizes are of one replica."""
        each = [engine.info for engine in self.engines]
        settings = {
            **each[0].settings,
            "replicas": len(each),
            "devices": [info.settings.get("devices", []) for info in each],
        }
        return EngineInfo(max(info.load_s for info in each), each[0].versions, each[0].machine, settings)

    def __enter__(self) -> ReplicatedEngine:
        try:
            with ThreadPoolExecutor(self._at_once()) as pool:
                self._start(pool)
        except BaseException:
            self.close()  # also one that had not begun when the others were ended
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End every replica and everything that it started."""
        for engine in self.engines:
            engine.close()

    def probe(self, mib: int) -> float:
        """Of all replicas at once, as they work: the slowest one's time for its part."""
        part = max(1, mib // len(self.engines))
        with ThreadPoolExecutor(len(self.engines)) as pool:
            times: list[float] = list(pool.map(lambda engine: engine.probe(part), self.engines))
        return max(times)

    def run(
        self,
        requests: Iterable[Request],
        sampling: Mapping[str, Any],
        sink: Callable[[Output | Failure], None],
        watch: Callable[[Steps], None] | None = None,
    ) -> Figures:
        batch = self.spec.max_num_seqs
        dealer = Dealer(requests, len(self.engines), run=RUN_BATCHES * batch, room=AHEAD_BATCHES * batch)
        # Holds little: a replica has AHEAD_BATCHES without an answer that reached `sink`.
        events: queue.SimpleQueue[tuple[int, Event]] = queue.SimpleQueue()

        def one_pass(replica: int) -> None:
            def tell(event: Event) -> None:
                events.put((replica, event))

            try:
                asked = dealer.requests_of(replica)
                tell(self.engines[replica].run(asked, sampling, tell, tell if watch else None))
            except BaseException as error:
                tell(error)

        threads = [threading.Thread(target=one_pass, args=(k,), daemon=True) for k in range(len(self.engines))]
        for thread in threads:
            thread.start()
        try:
            each = self._collect(events, dealer, sink, watch)
        except BaseException:
            self.close()
            raise
        finally:
            dealer.stop()
            for thread in threads:
                thread.join()
        if dealer.fault:
            raise dealer.fault  # the engines are ready for another pass
        return together(each, dealer)

    def _at_once(self) -> int:
        """Engines that may load at the same time without filling this machine's memory."""
        weights = sum(file.stat().st_size for file in self.model.glob("*.safetensors"))
        room = psutil.virtual_memory().available // max(1, LOADING_FACTOR * weights)
        return int(min(max(1, room), len(self.engines)))

    def _start(self, pool: ThreadPoolExecutor) -> None:
        starting: dict[Future[VllmEngine], int] = {
            pool.submit(engine.__enter__): k for k, engine in enumerate(self.engines)
        }
        try:
            if self.meanwhile:
                self.meanwhile()
            for started in as_completed(starting):
                if error := started.exception():
                    raise self._named(starting[started], error)
        except BaseException:
            for waiting in starting:
                waiting.cancel()
            self.close()  # those that load now need not come to their end
            raise

    def _collect(
        self,
        events: queue.SimpleQueue[tuple[int, Event]],
        dealer: Dealer,
        sink: Callable[[Output | Failure], None],
        watch: Callable[[Steps], None] | None,
    ) -> list[Figures]:
        """What the replicas tell, one event at a time, until each has come to its end."""
        each: dict[int, Figures] = {}
        beside = _SideBySide(len(self.engines))
        while len(each) < len(self.engines):
            replica, event = events.get()
            if isinstance(event, Output | Failure):
                sink(event)
                dealer.answered(replica)
                continue
            if isinstance(event, Steps):
                beside.add(replica, event)
            elif isinstance(event, Figures):
                each[replica] = event
                beside.end(replica)
            else:
                raise self._named(replica, event)
            if watch and len((steps := beside.merged()).ms):
                watch(steps)
        return [each[k] for k in range(len(self.engines))]

    def _named(self, replica: int, error: BaseException) -> BaseException:
        if not isinstance(error, EngineError):
            return error
        return EngineError(f"replica {replica + 1} of {len(self.engines)} failed and the others were ended: {error}")


class _SideBySide:
    """Steps of replicas in the order in which they ended, with the sequences of all replicas at that moment.

    A step is merged as soon as every replica has told of that moment. Time is that of a replica's steps, end to end.
    """

    def __init__(self, replicas: int) -> None:
        # Of each replica's steps that are not merged yet: end in ms, ms, running, waiting.
        self._told = [np.empty((0, 4))] * replicas
        self._until = np.zeros(replicas)  # how far each has told, in ms

    def add(self, replica: int, steps: Steps) -> None:
        ends = self._until[replica] + np.cumsum(steps.ms, dtype=np.float64)
        told = np.column_stack([ends, steps.ms, steps.running, steps.waiting])
        self._told[replica] = np.vstack([self._told[replica], told])
        self._until[replica] = ends[-1] if len(ends) else self._until[replica]

    def end(self, replica: int) -> None:
        """It has told everything: nothing runs in it any more."""
        self._until[replica] = np.inf

    def merged(self) -> Steps:
        until = self._until.min()
        steps = np.vstack([told[told[:, 0] <= until] for told in self._told])
        steps = steps[np.argsort(steps[:, 0], kind="stable")]
        counts = np.zeros((len(steps), 2))
        for told in self._told:  # the step that each replica is in at that moment; none, if it has ended
            counts += np.vstack([told[:, 2:], np.zeros((1, 2))])[np.searchsorted(told[:, 0], steps[:, 0])]
        self._told = [told[told[:, 0] > until] for told in self._told]
        running, waiting = counts.astype(np.int32).T
        return Steps(steps[:, 1].astype(np.float32), running, waiting)


def together(each: Sequence[Figures], dealer: Dealer) -> Figures:
    """The figures of replicas that worked side by side.

    Time: the slowest one's. Sums: sequences at any moment, preempted, prefix tokens. Worst: steal (each reads the whole
    machine's) and the accelerators' readings.
    """
    beside = _SideBySide(len(each))
    for replica, figures in enumerate(each):
        beside.add(replica, Steps(figures.step_ms, figures.running, figures.waiting))
        beside.end(replica)
    steps = beside.merged()
    readings = [figures.accelerator for figures in each if figures.accelerator]
    return Figures(
        wall_s=max(figures.wall_s for figures in each),
        step_ms=steps.ms,
        running=steps.running,
        waiting=steps.waiting,
        preempted=sum(figures.preempted for figures in each),
        prefix_queries=sum(figures.prefix_queries for figures in each),
        prefix_hits=sum(figures.prefix_hits for figures in each),
        steal=max(figures.steal for figures in each),
        accelerator={
            key: (min if key.endswith("clock_mhz") else max)(reading[key] for reading in readings if key in reading)
            for key in {key for reading in readings for key in reading}
        },
        replica_s=tuple(figures.wall_s for figures in each),
        shares=dealer.dealt,
    )
