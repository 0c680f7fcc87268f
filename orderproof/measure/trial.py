"""Blocks of paired slices → records. The verdict is evaluate.py's; a pair is run again for failed requests and
throttling alone.
"""

from __future__ import annotations

import datetime
import logging
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from orderproof.engines.protocol import Engine, EngineInfo, Output
from orderproof.measure.plan import Plan
from orderproof.measure.slice_design import Slice, lay_out_block, lay_out_repeat
from orderproof.measure.slice_run import SliceRunner, TimedSlice
from orderproof.measure.tokens_table import tokens_table
from orderproof.measure.trial_records import Pass, SliceRecord
from orderproof.measure.trial_store import Trial, record_block, record_slice, register, repair
from orderproof.measure.warm_up import warm_up_engine
from orderproof.orders.order import Order
from orderproof.outputs.passes import SHUFFLED
from orderproof.runs.run_store import verb_folder

SERIES_POINTS = 100  # of a pass's step times, for its picture
BASELINE_PROBES = 5
REPEAT_SEEDS = 10  # above the seeds of a block's own draws

BlockProgress = Callable[[str, int, int], None]  # (block, finished requests, all requests)

logger = logging.getLogger(__name__)


def no_progress(block: str, finished: int, requests: int) -> None:
    """Tell nobody."""


def begin(plan: Plan, engine: Engine, progress: BlockProgress = no_progress) -> Trial:
    """Warm the engine up, then register the trial in a new folder, or take up the one that was stopped."""
    probes = [engine.probe(plan.job.measure.validity.probe_mib) for _ in range(BASELINE_PROBES)]
    warm_up = warm_up_engine(plan.job, plan.prompts, engine, plan.coin_seed)
    if plan.resumable:
        changed = _what_changed(plan, plan.resumable, engine.info)
        if not changed:
            logger.info("trial %s is taken up again after %d blocks", *_progress_of(plan.resumable))
            return repair(plan.resumable)
        logger.warning("trial %s stays stopped after %d blocks: %s", *_progress_of(plan.resumable), changed)
    manifest = plan.manifest(engine.info, statistics.median(probes), warm_up)
    return register(verb_folder(plan.job, "aa" if plan.aa else "measure") / manifest.trial, manifest)


def run_block(plan: Plan, engine: Engine, trial: Trial, number: int, progress: BlockProgress = no_progress) -> Trial:
    """Every measured prompt once in each arm, in pairs of slices. Incomplete if requests keep failing."""
    block = _Block(plan, engine, trial, number, progress)
    return block.run()


@dataclass
class _Block:
    """A block while it runs."""

    plan: Plan
    engine: Engine
    trial: Trial
    number: int
    progress: BlockProgress
    started: float = field(default_factory=time.monotonic)
    timed: dict[tuple[str, int], TimedSlice] = field(default_factory=dict)  # by arm and stratum: the last attempt
    answered: int = 0

    def __post_init__(self) -> None:
        self.design, self.seed = self.trial.manifest.slices, self.trial.manifest.coin_seed
        self.run_number = self.trial.next_run(self.number)
        self.layout = lay_out_block(
            self.design.sizes,
            _permutation(self.plan.orders["candidate"]),
            _permutation_or_none(self.plan.orders["control"]),
            third_arm=SHUFFLED in self.trial.manifest.arms,
            seeds=(self.seed, self.number),
        )
        self.orders = {arm: self._order(arm) for arm in self.trial.manifest.arms}

    def run(self) -> Trial:
        repeats = self.plan.job.measure.validity.repeats
        probe_s, load = self.engine.probe(self.plan.job.measure.validity.probe_mib), _load()
        started_utc = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        slices: Sequence[Slice] = self.layout
        for attempt in range(repeats + 1):
            self._run_slices(slices, attempt)
            again = sorted({stratum for (_, stratum), timed in self.timed.items() if timed.reasons})
            if not again:
                break
            slices = lay_out_repeat(self.layout, again, seeds=(self.seed, self.number, REPEAT_SEEDS + attempt))
        if any(timed.failed or timed.cut_short for timed in self.timed.values()):
            return self.trial
        block_s = time.monotonic() - self.started
        passes = [self._pass(arm, started_utc, probe_s, load, block_s) for arm in self.trial.manifest.arms]
        scorer = self.plan.job.measure.scorer
        tables = {
            arm: tokens_table(self.plan.prompts, self.orders[arm].permutation, self._outputs(arm), scorer)
            for arm in self.trial.manifest.arms
        }
        return record_block(self.trial, passes, tables)

    def _run_slices(self, slices: Sequence[Slice], attempt: int) -> None:
        requests = sum(len(part.prompts) for part in slices)
        self.answered = 0

        def answered() -> None:
            self.answered += 1
            self.progress(f"block {self.number}", min(self.answered, requests), requests)

        name = f"{self.trial.manifest.trial} {self.number} {self.run_number}"
        salts = {arm: f"{name} {arm}" for arm in (*self.trial.manifest.arms, "filler")} if self.design.salted else {}
        seeds = (self.seed, self.number, 2 * REPEAT_SEEDS + attempt)
        runner = SliceRunner(self.plan.job, self.plan.prompts, self.engine, self.design, salts, answered, seeds)
        for timed in runner.run(slices):
            self.timed[timed.part.arm, timed.part.stratum] = timed
            self.trial = record_slice(self.trial, self._record(timed, attempt))

    def _order(self, arm: str) -> Order:
        fixed = self.plan.orders[arm]
        if fixed is not None:
            return fixed
        parts = sorted((part for part in self.layout if part.arm == arm), key=lambda part: part.first)
        return Order(np.concatenate([part.prompts for part in parts]), "shuffled", {}, {"block": self.number})

    def _outputs(self, arm: str) -> dict[int, Output]:
        slices = (timed for (name, _), timed in self.timed.items() if name == arm)
        return {prompt: output for timed in slices for prompt, output in timed.outputs.items()}

    def _record(self, timed: TimedSlice, attempt: int) -> SliceRecord:
        part, window, outputs = timed.part, timed.window, timed.outputs
        return SliceRecord(
            block=self.number,
            run=self.run_number,
            attempt=attempt,
            slot=part.slot,
            turn=part.turn,
            arm=part.arm,
            stratum=part.stratum,
            first=part.first,
            order_sha256=self.orders[part.arm].sha256,
            manifest_sha256=self.trial.manifest.sha256,
            started_utc=timed.started_utc,
            start_s=window.start_s,
            seconds=window.seconds,
            requests=len(outputs),
            prompt_tokens=int(self.plan.prompts.lengths[part.prompts].sum()),
            output_tokens=sum(output.output_tokens for output in outputs.values()),
            cached_tokens=sum(output.cached_tokens for output in outputs.values()),
            window_prompt_tokens=window.prompt_tokens,
            window_output_tokens=window.output_tokens,
            foreign_tokens=window.foreign_tokens,
            steps=len(timed.step_ms),
            step_ms=float(np.median(timed.step_ms)) if len(timed.step_ms) else 0.0,
            running=float(timed.running.mean()) if len(timed.running) else 0.0,
            steal=timed.steal,
            throttled=timed.throttled,
            failed=timed.failed,
            cut_short=timed.cut_short,
            repeat=timed.reasons,
        )

    def _pass(self, arm: str, started_utc: str, probe_s: float, load: float | None, block_s: float) -> Pass:
        own = sorted((t for (name, _), t in self.timed.items() if name == arm), key=lambda t: t.window.start_s)
        wall_s = sum(timed.window.seconds for timed in own)
        outputs = [output for timed in own for output in timed.outputs.values()]
        output_tokens = sum(output.output_tokens for output in outputs)
        tokens_per_s = sum(timed.window.output_tokens for timed in own) / wall_s if wall_s > 0 else 0.0
        step_ms = np.concatenate([timed.step_ms for timed in own])
        running = np.concatenate([timed.running for timed in own])
        preempted = [timed.preempted for timed in own]
        return Pass(
            pass_id=f"b{self.number:02d}{f'r{self.run_number}' if self.run_number else ''}-{arm}",
            block=self.number,
            run=self.run_number,
            arm=arm,
            seed=self.seed if self.plan.orders[arm] is None else None,
            order_sha256=self.orders[arm].sha256,
            manifest_sha256=self.trial.manifest.sha256,
            started_utc=started_utc,
            wall_s=wall_s,
            block_s=block_s,
            requests=len(outputs),
            prompt_tokens=int(self.plan.prompts.lengths.sum()),
            output_tokens=output_tokens,
            throughput_req_s=tokens_per_s * len(outputs) / max(1, output_tokens),
            throughput_tok_s=tokens_per_s,
            steps=len(step_ms),
            time_per_batch_ms=float(np.median(step_ms)) if len(step_ms) else 0.0,
            time_per_batch_p95_ms=float(np.percentile(step_ms, 95)) if len(step_ms) else 0.0,
            running_mean=float(running.mean()) if len(running) else 0.0,
            preempted=None if None in preempted else sum(count or 0 for count in preempted),
            admission_inversions=sum(timed.inversions for timed in own),
            cached_tokens=sum(output.cached_tokens for output in outputs),
            steal=max(timed.steal for timed in own),
            probe_s=probe_s,
            load=load,
            accelerator=dict(own[-1].accelerator),
            throttled_pairs=sum(timed.throttled for timed in own),
            step_ms_series=_series(step_ms),
            running_series=_series(running),
        )


def _what_changed(plan: Plan, stopped: Trial, info: EngineInfo) -> str | None:
    """Why a stopped trial cannot be taken up again; None: it can."""
    registered = stopped.manifest
    if {f"engine_{name}": version for name, version in info.versions.items()}.items() - registered.versions.items():
        return "the engine's versions changed"
    if any(registered.engine.get(key) != value for key, value in info.settings.items()):
        return "the engine's settings changed"
    if any(registered.machine.get(key) != value for key, value in info.machine.items()):
        return "it runs on another machine"
    control = plan.orders["control"]
    if (registered.control.sha256 if registered.control else None) != (control.sha256 if control else None):
        return "the order in which the job runs changed"
    return None


def _progress_of(trial: Trial) -> tuple[str, int]:
    return trial.manifest.trial, len(trial.blocks())


def _permutation(order: Order | None) -> NDArray[np.int64]:
    assert order is not None
    return order.permutation


def _permutation_or_none(order: Order | None) -> NDArray[np.int64] | None:
    return order.permutation if order else None


def _load() -> float | None:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def _series(values: NDArray[np.float64]) -> tuple[float, ...]:
    """Medians of up to SERIES_POINTS equal runs."""
    runs = np.array_split(values, min(SERIES_POINTS, len(values))) if len(values) else []
    return tuple(round(float(np.median(run)), 3) for run in runs)
