"""Several orders of one job in one interleaved comparison, for the other scripts here.

Each arm has an order (None: a fresh shuffle per block), and its gain over the first arm with a 95 % interval (Student's
t over the blocks' log ratios). The passes are those of a trial: every block has one of each
arm, in an order that a coin decides, and a block with a pass on a disturbed machine is repeated. Nothing is promoted,
and nothing is written but in the folder that the caller gives.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from orderproof.engines.start import create_engine
from orderproof.job.formatting import with_interval
from orderproof.job.hashing import md5_of
from orderproof.job.model import read_model
from orderproof.job.params import load_job
from orderproof.job.spec import Job, OrderSpec
from orderproof.measure import trial as trials
from orderproof.measure.plan import make_plan
from orderproof.measure.trial_store import Block, History
from orderproof.orders.order import Order
from orderproof.orders.registry import make_order
from orderproof.orders.view import PromptView, view_of
from orderproof.outputs.passes import CANDIDATE, CONTROL
from orderproof.prompts.prompt_file import read_prompts
from orderproof.prompts.tokenization import TokenizedPrompts, tokenize
from orderproof.signals.served_model import ServedModel

CONFIDENCE = 0.95
LEAST_LOOK = 5  # of a trial's rule; these trials give no verdict


@dataclass(frozen=True)
class Arm:
    """Means over the blocks; the rates are geometric means."""

    name: str
    throughput_req_s: float
    throughput_tok_s: float
    time_per_batch_ms: float
    running: float  # sequences
    gain: float | None = None  # over the first arm; None: it is the first, or there are fewer than two blocks
    low: float | None = None
    high: float | None = None
    blocks: tuple[float, ...] = ()  # gains
    imbalance: float | None = None  # the slowest replica's time over their mean; None: there is one engine


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
    """The job of params.yaml with seeds for so many blocks; `engine` replaces fields of its engine."""
    job = load_job(options.params, options.job)
    looks = (max(LEAST_LOOK, options.blocks),)
    return job.model_copy(
        update={
            "engine": job.engine.model_copy(update=engine),
            "measure": job.measure.model_copy(update={"looks": looks, "prompts": None}),
        }
    )


def compare(job: Job, prompts: Prompts, orders: Mapping[str, Order | None], blocks: int, folder: Path) -> list[Arm]:
    """Run the blocks, telling each on standard output.

    Args:
        orders: by name; the first is what the others are compared with. At least two.
        folder: for the evidence and the engine's log.
    """
    names = dict(zip([CONTROL, CANDIDATE, *list(orders)[2:]], orders, strict=True))  # a trial's first two have names
    absolute = {"prompts": str(job.prompts_path), "model": str(job.model_path), "tokenizer": str(job.tokenizer_path)}
    job = job.model_copy(update={**absolute, "root": folder})
    file = prompts.order(OrderSpec(method="file"))
    asked = job.model_copy(update={"order": OrderSpec(method="shuffled")})  # any: its place is taken by the arms
    plan = make_plan(
        asked, read_model(job.model_path, job.model), prompts.tokenized, prompts.dataset_md5, file, History()
    )
    plan = replace(plan, orders={arm: orders[name] for arm, name in names.items()}, control_why="a comparison's first")
    with create_engine(job.engine, job.model_path, job.sampling, folder / "engine.log") as engine:
        trial = trials.begin(plan, engine)
        for number in range(1, blocks + 1):
            trial = trials.run_block(plan, engine, trial, number)
            _tell(number, trial.blocks(), names)
    print(f"{len(trial.blocks())} blocks count, {len(trial.discarded())} passes were discarded")
    return [_arm(arm, name, trial.blocks()) for arm, name in names.items()] if trial.blocks() else []


def table(arms: Sequence[Arm]) -> str:
    """One line per arm."""
    width = max(len(arm.name) for arm in arms) + 2
    lines = [f"{'':{width}}{'req/s':>8}{'tok/s':>8}{'step ms':>9}{'running':>9}   gain"]
    for arm in arms:
        gain = "" if arm.gain is None else f"   {with_interval(arm.gain, arm.low, arm.high)}"
        lines.append(
            f"{arm.name:{width}}{arm.throughput_req_s:8.2f}{arm.throughput_tok_s:8.0f}{arm.time_per_batch_ms:9.2f}"
            f"{arm.running:9.1f}{gain}" + (f"   slowest/mean {arm.imbalance:.3f}" if arm.imbalance else "")
        )
    return "\n".join(lines)


def _arm(arm: str, name: str, blocks: Sequence[Block]) -> Arm:
    passes = [block.passes[arm] for block in blocks]
    uneven = [max(p.replica_wall_s) / statistics.fmean(p.replica_wall_s) for p in passes if p.replica_wall_s]
    measured = Arm(
        name,
        statistics.geometric_mean([p.throughput_req_s for p in passes]),
        statistics.geometric_mean([p.throughput_tok_s for p in passes]),
        statistics.fmean([p.time_per_batch_ms for p in passes]),
        statistics.fmean([p.running_mean for p in passes]),
        imbalance=statistics.fmean(uneven) if uneven else None,
    )
    if arm == CONTROL or len(blocks) < 2:
        return measured
    from scipy import stats

    logs = np.log([block.passes[arm].throughput_req_s / block.passes[CONTROL].throughput_req_s for block in blocks])
    half = stats.t.ppf((1 + CONFIDENCE) / 2, len(logs) - 1) * logs.std(ddof=1) / np.sqrt(len(logs))
    gain, low, high = (float(np.expm1(value)) for value in (logs.mean(), logs.mean() - half, logs.mean() + half))
    return replace(measured, gain=gain, low=low, high=high, blocks=tuple(np.expm1(logs).tolist()))


def _tell(number: int, blocks: Sequence[Block], names: Mapping[str, str]) -> None:
    if not blocks or blocks[-1].number != number:
        print(f"block {number}: discarded, the machine was disturbed", flush=True)
        return
    rates = "; ".join(f"{name} {blocks[-1].passes[arm].throughput_req_s:.2f}" for arm, name in names.items())
    print(f"block {number}, req/s: {rates}", flush=True)
