"""Several vLLM engines as one: each replica is a worker process with its own devices and its share of the order.

`sink` and `watch` are called in the thread that called `run`, whichever replica answered. If one replica dies all are
ended, because an order without one share is not the order that was requested.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path

import numpy as np
import psutil  # type: ignore[import-untyped]

from orderproof.engines.client import QUEUED_BATCHES, VllmEngine
from orderproof.engines.protocol import EngineError, EngineInfo, Failure, Output, PassStats, Request, Sampling, Steps
from orderproof.engines.shares import Dealer
from orderproof.job.spec import EngineSpec

RUN_BATCHES = 2  # batches of neighbours that stay together when shares are rebalanced or a stream is dealt
AHEAD_BATCHES = QUEUED_BATCHES + 1  # batches sent to a replica and not answered: its queue, and one on the way to it
LOADING_FACTOR = 2  # a loading engine may hold its weights twice: as read and unpacked

Event = Output | Failure | Steps | PassStats | BaseException


class ReplicatedEngine:
    """N vLLM engines behind the protocol of one engine."""

    def __init__(
        self,
        spec: EngineSpec,
        model: Path,
        sampling: Sampling,
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
        """The first replica's, with the number of replicas and each one's devices; sizes are those of one replica."""
        each = [engine.info for engine in self.engines]
        settings = {
            **each[0].settings,
            "replicas": len(each),
            "devices": [info.settings.get("devices", []) for info in each],
        }
        return EngineInfo(max(info.load_s for info in each), each[0].versions, each[0].machine, settings)

    def __enter__(self) -> ReplicatedEngine:
        try:
            with ThreadPoolExecutor(self._loads_at_once()) as pool:
                self._start(pool)
        except BaseException:
            self.close()  # also a replica that had not started when the others were ended
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End every replica and everything that it started."""
        for engine in self.engines:
            engine.close()

    def probe(self, mib: int) -> float:
        """Probe all replicas at once, because they work at once: the slowest one's time for its part."""
        part = max(1, mib // len(self.engines))
        with ThreadPoolExecutor(len(self.engines)) as pool:
            times: list[float] = list(pool.map(lambda engine: engine.probe(part), self.engines))
        return max(times)

    def run(
        self,
        requests: Iterable[Request],
        sampling: Sampling,
        sink: Callable[[Output | Failure], None],
        watch: Callable[[Steps], None] | None = None,
    ) -> PassStats:
        batch = self.spec.max_num_seqs
        dealer = Dealer(requests, len(self.engines), run=RUN_BATCHES * batch, room=AHEAD_BATCHES * batch)
        # Stays short: a replica has at most AHEAD_BATCHES whose answers have not reached `sink`.
        events: queue.SimpleQueue[tuple[int, Event]] = queue.SimpleQueue()

        def run_replica(replica: int) -> None:
            def report(event: Event) -> None:
                events.put((replica, event))

            try:
                share = dealer.requests_of(replica)
                report(self.engines[replica].run(share, sampling, report, report if watch else None))
            except BaseException as error:
                report(error)

        threads = [threading.Thread(target=run_replica, args=(k,), daemon=True) for k in range(len(self.engines))]
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
        return combine_stats(each, dealer)

    def _loads_at_once(self) -> int:
        """How many engines may load at the same time without filling this machine's memory."""
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
            self.close()  # the others need not finish loading
            raise

    def _collect(
        self,
        events: queue.SimpleQueue[tuple[int, Event]],
        dealer: Dealer,
        sink: Callable[[Output | Failure], None],
        watch: Callable[[Steps], None] | None,
    ) -> list[PassStats]:
        """Read the replicas' events, one at a time, until every replica has ended."""
        each: dict[int, PassStats] = {}
        merger = _StepMerger(len(self.engines))
        while len(each) < len(self.engines):
            replica, event = events.get()
            if isinstance(event, Output | Failure):
                sink(event)
                dealer.answered(replica)
                continue
            if isinstance(event, Steps):
                merger.add(replica, event)
            elif isinstance(event, PassStats):
                each[replica] = event
                merger.end(replica)
            else:
                raise self._named(replica, event)
            if watch and len((steps := merger.merged()).ms):
                watch(steps)
        return [each[k] for k in range(len(self.engines))]

    def _named(self, replica: int, error: BaseException) -> BaseException:
        if not isinstance(error, EngineError):
            return error
        return EngineError(f"replica {replica + 1} of {len(self.engines)} failed and the others were ended: {error}")


class _StepMerger:
    """Steps of all replicas in the order in which they ended, with the sequences of all replicas at that moment.

    A step is merged once every replica has reported steps up to that moment. Each replica's clock is the sum of its
    steps' times.
    """

    def __init__(self, replicas: int) -> None:
        # Steps of each replica that are not merged yet: end in ms, ms, running, waiting.
        self._pending = [np.empty((0, 4))] * replicas
        self._until = np.zeros(replicas)  # how far each has reported, in ms

    def add(self, replica: int, steps: Steps) -> None:
        ends = self._until[replica] + np.cumsum(steps.ms, dtype=np.float64)
        rows = np.column_stack([ends, steps.ms, steps.running, steps.waiting])
        self._pending[replica] = np.vstack([self._pending[replica], rows])
        self._until[replica] = ends[-1] if len(ends) else self._until[replica]

    def end(self, replica: int) -> None:
        """The replica has reported everything: nothing runs in it any more."""
        self._until[replica] = np.inf

    def merged(self) -> Steps:
        until = self._until.min()
        steps = np.vstack([rows[rows[:, 0] <= until] for rows in self._pending])
        steps = steps[np.argsort(steps[:, 0], kind="stable")]
        counts = np.zeros((len(steps), 2))
        for rows in self._pending:  # the step that each replica is in at that moment; none if it has ended
            counts += np.vstack([rows[:, 2:], np.zeros((1, 2))])[np.searchsorted(rows[:, 0], steps[:, 0])]
        self._pending = [rows[rows[:, 0] > until] for rows in self._pending]
        running, waiting = counts.astype(np.int32).T
        return Steps(steps[:, 1].astype(np.float32), running, waiting)


def combine_stats(each: Sequence[PassStats], dealer: Dealer) -> PassStats:
    """The stats of all replicas of one pass as one.

    Time is the slowest replica's; sequences, preemptions and prefix tokens are summed; of steal (each reads the whole
    machine's) and of the accelerators' readings the worst counts.
    """
    merger = _StepMerger(len(each))
    for replica, stats in enumerate(each):
        merger.add(replica, Steps(stats.step_ms, stats.running, stats.waiting))
        merger.end(replica)
    steps = merger.merged()
    readings = [stats.accelerator for stats in each if stats.accelerator]
    return PassStats(
        wall_s=max(stats.wall_s for stats in each),
        step_ms=steps.ms,
        running=steps.running,
        waiting=steps.waiting,
        preempted=sum(stats.preempted for stats in each),
        prefix_queries=sum(stats.prefix_queries for stats in each),
        prefix_hits=sum(stats.prefix_hits for stats in each),
        steal=max(stats.steal for stats in each),
        accelerator={
            key: (min if key.endswith("clock_mhz") else max)(reading[key] for reading in readings if key in reading)
            for key in {key for reading in readings for key in reading}
        },
        replica_s=tuple(stats.wall_s for stats in each),
        shares=dealer.dealt,
    )
