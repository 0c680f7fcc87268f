"""Several orders of one job in one interleaved comparison, for the other scripts here.

It is a trial (orderproof/measure) with more than two arms. Every block has each arm's slices once: a slot holds one
slice of every arm, in the order of a row of a Latin square, so that over a square's slots every arm takes every place
equally often. The gain of an arm over the first is estimated as in a trial, from the pairs of its slices with the
first arm's in the same slots, with a 95 % interval; what a pair's distance in time costs is regressed out. A block in
which requests failed or the accelerator throttled is run again. Nothing is promoted, and nothing is written but in the
folder that the caller gives.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderproof.engines.protocol import Engine
from orderproof.engines.start import create_engine
from orderproof.job.formatting import with_interval
from orderproof.job.hashing import md5_of
from orderproof.job.params import load_job
from orderproof.job.spec import Job, OrderSpec
from orderproof.measure.estimator import Floats, SliceTable, estimate
from orderproof.measure.plan import fixed_lengths, kind_of_slices, too_few_prompts
from orderproof.measure.slice_design import WASHOUT_BATCHES, Slice, batches_per_slice, slice_sizes
from orderproof.measure.slice_run import SliceRunner, TimedSlice
from orderproof.measure.trial_records import SliceDesign
from orderproof.measure.warm_up import warm_up_engine
from orderproof.orders.order import Order
from orderproof.orders.registry import make_order
from orderproof.orders.view import PromptView, view_of
from orderproof.prompts.prompt_file import read_prompts
from orderproof.prompts.tokenization import TokenizedPrompts, tokenize
from orderproof.signals.served_model import ServedModel

LEVEL = 0.025  # on either side of an interval

Timed = dict[tuple[str, int], TimedSlice]  # of a block, by arm and stratum


@dataclass(frozen=True)
class Arm:
    """An order as it was measured, over all blocks."""

    name: str
    throughput_req_s: float
    throughput_tok_s: float
    step_ms: float  # median over slices of their median step
    running: float  # sequences
    gain: float | None = None  # over the first arm; None: it is the first, or there are fewer than two blocks
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Prompts:
    """A job's prompts, as an order sees them and as a trial sends them."""

    tokenized: TokenizedPrompts
    view: PromptView
    dataset_md5: str

    def order(self, spec: OrderSpec) -> Order:
        return make_order(spec, self.view, self.dataset_md5)


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The arguments of every comparison."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", nargs="?", default="six-domains")
    parser.add_argument("--params", type=Path, default=Path("params.yaml"))
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--keep", type=Path, help="folder for the evidence; without it nothing is kept")
    return parser


def prompts_of(job: Job) -> Prompts:
    tokenized = tokenize(job, read_prompts(job.prompts_path))
    return Prompts(tokenized, view_of(tokenized, ServedModel.of_job(job)), md5_of(job.prompts_path))


def named(options: argparse.Namespace, **engine: Any) -> Job:
    """The job of params.yaml; `engine` replaces fields of its engine."""
    job = load_job(options.params, options.job)
    return job.model_copy(update={"engine": job.engine.model_copy(update=engine)})


def compare(job: Job, prompts: Prompts, orders: Mapping[str, Order | None], blocks: int, folder: Path) -> list[Arm]:
    """Run the blocks, with a line for each on standard output.

    Args:
        orders: by name; None: a fresh shuffle per block. The first is what the others are compared with. At least two.
        folder: for the evidence and the engine's log.
    """
    folder.mkdir(parents=True, exist_ok=True)
    complete: list[Timed] = []
    with create_engine(job.engine, job.model_path, job.sampling, folder / "engine.log", job.adapters) as engine:
        design = _design(job, prompts.tokenized, engine)
        for number in range(1, blocks + 1):
            for attempt in range(job.measure.validity.repeats + 1):
                timed = _run_block(job, prompts.tokenized, engine, design, orders, (job.measure.seed, number, attempt))
                _keep(folder, number, attempt, timed)
                if not any(part.reasons for part in timed.values()):
                    complete.append(timed)
                    break
            else:
                print(f"block {number}: does not count, requests failed or the accelerator throttled", flush=True)
                continue
            rates = "; ".join(f"{name} {_arm(name, complete[-1:], design).throughput_req_s:.2f}" for name in orders)
            print(f"block {number}, req/s: {rates}", flush=True)
    print(f"{len(complete)} blocks of {design.strata} slices of each of {len(orders)} orders count")
    return [_arm(name, complete, design, next(iter(orders))) for name in orders] if complete else []


def table(arms: Sequence[Arm]) -> str:
    """One line per arm."""
    width = max((len(arm.name) for arm in arms), default=0) + 2
    lines = [f"{'':{width}}{'req/s':>8}{'tok/s':>8}{'step ms':>9}{'running':>9}   gain"]
    for arm in arms:
        gain = "" if arm.gain is None else f"   {with_interval(arm.gain, arm.low, arm.high)}"
        lines.append(
            f"{arm.name:{width}}{arm.throughput_req_s:8.2f}{arm.throughput_tok_s:8.0f}{arm.step_ms:9.2f}"
            f"{arm.running:9.1f}{gain}"
        )
    return "\n".join(lines)


def lay_out(orders: Mapping[str, Order | None], sizes: Sequence[int], seeds: Sequence[int]) -> list[Slice]:
    """All slices of a block in the order of sending: each arm's j-th slice in the slot of stratum j."""
    rng = np.random.default_rng(seeds)
    cuts = np.concatenate([[0], np.cumsum(sizes)])
    slots = rng.permutation(len(sizes))  # slot → stratum
    sent = {name: rng.permutation(cuts[-1]) if order is None else order.permutation for name, order in orders.items()}
    names, slices = list(orders), []
    for slot, (stratum, row) in enumerate(zip(slots.tolist(), _latin_rows(rng, len(sizes), len(names)), strict=True)):
        first, end = int(cuts[stratum]), int(cuts[stratum + 1])
        for turn, k in enumerate(row):
            slices.append(Slice(slot, turn, names[k], stratum, first, sent[names[k]][first:end]))
    return slices


def _latin_rows(rng: np.random.Generator, rows: int, size: int) -> list[list[int]]:
    """Rows of as many random Latin squares as are needed: in each square every number takes every place once."""
    found: list[list[int]] = []
    while len(found) < rows:
        arms, places = rng.permutation(size), rng.permutation(size)
        found += [[int(arms[(shift + place) % size]) for place in places] for shift in rng.permutation(size).tolist()]
    return found[:rows]


def _design(job: Job, prompts: TokenizedPrompts, engine: Engine) -> SliceDesign:
    """As a trial would cut the job's prompts."""
    warm_up = warm_up_engine(job, prompts, engine, job.measure.seed)
    kind, seats = kind_of_slices(job, prompts), job.engine.max_num_seqs * job.engine.replicas
    batches = batches_per_slice(kind, len(prompts), seats, warm_up.requests / warm_up.seconds)
    sizes = slice_sizes(len(prompts), seats, batches)
    if not sizes:
        raise SystemExit(too_few_prompts(job, prompts))
    washout = seats * (1 if fixed_lengths(job, prompts.samplings) else WASHOUT_BATCHES)
    return SliceDesign(
        kind=kind,
        seats=seats,
        sizes=sizes,
        labels=(None,) * len(sizes),
        washout=0 if kind == "clean" else washout,
        salted=bool(engine.info.settings.get("prefix_caching")),
        warm_up=warm_up,
    )


def _run_block(
    job: Job,
    prompts: TokenizedPrompts,
    engine: Engine,
    design: SliceDesign,
    orders: Mapping[str, Order | None],
    seeds: tuple[int, int, int],
) -> Timed:
    salts = {name: f"{seeds} {name}" for name in (*orders, "filler")} if design.salted else {}
    runner = SliceRunner(job, prompts, engine, design, salts, lambda: None, (*seeds, 1))
    slices = lay_out(orders, design.sizes, (*seeds, 0))
    return {(timed.part.arm, timed.part.stratum): timed for timed in runner.run(slices)}


def _keep(folder: Path, block: int, attempt: int, timed: Timed) -> None:
    with open(folder / "slices.jsonl", "a") as evidence:
        for part in timed.values():
            where = {"block": block, "attempt": attempt, "slot": part.part.slot, "turn": part.part.turn}
            what = {"arm": part.part.arm, "stratum": part.part.stratum, "requests": len(part.outputs)}
            evidence.write(json.dumps({**where, **what, **asdict(part.window), "reasons": part.reasons}) + "\n")


def _arm(name: str, blocks: Sequence[Timed], design: SliceDesign, first: str | None = None) -> Arm:
    """An arm's figures; with its gain where there is another `first` arm and more than one block."""
    own = [part for timed in blocks for (arm, _), part in timed.items() if arm == name]
    seconds = sum(part.window.seconds for part in own)
    tokens = sum(part.window.output_tokens for part in own)
    requests = sum(len(part.outputs) for part in own)
    generated = sum(output.output_tokens for part in own for output in part.outputs.values())
    gain = low = high = None
    if first not in (None, name) and len(blocks) >= 2:
        measured = estimate(_pairs(name, str(first), blocks, design))
        bounds = (measured.log_gain, measured.low(LEVEL), measured.high(LEVEL))
        gain, low, high = (float(np.expm1(value)) for value in bounds)
    return Arm(
        name=name,
        throughput_req_s=tokens / seconds * requests / max(1, generated),
        throughput_tok_s=tokens / seconds,
        step_ms=float(np.median([np.median(part.step_ms) for part in own if len(part.step_ms)] or [0.0])),
        running=float(np.mean([part.running.mean() for part in own if len(part.running)] or [0.0])),
        gain=gain,
        low=low,
        high=high,
    )


def _pairs(name: str, first: str, blocks: Sequence[Timed], design: SliceDesign) -> SliceTable:
    """An arm's slices beside the first arm's in the same slots."""
    turns = max(part.part.turn for part in blocks[0].values())

    def work(part: TimedSlice) -> float:
        if design.kind == "clean":
            return len(part.outputs)
        return part.window.output_tokens + design.warm_up.prefill_cost * part.window.prompt_tokens

    def array(arm: str, figure: Any) -> Floats:
        return np.array([[figure(timed[arm, k]) for k in range(design.strata)] for timed in blocks], np.float64)

    def place(arm: str) -> NDArray[np.float64]:
        return array(arm, lambda part: part.part.turn)

    return SliceTable(
        array(name, lambda part: part.window.seconds),
        array(first, lambda part: part.window.seconds),
        array(name, work),
        array(first, work),
        (place(first) - place(name)) / turns,  # with two arms the trial's +1 and −1
    )
