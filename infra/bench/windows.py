"""What windows keep of an order's gain: shuffled, the whole file sorted, and sorted in windows, in one comparison.

In: a job of params.yaml. Out: throughput of each way, its gain over shuffled with its 95 % interval (Student's t over
the blocks' log ratios), and with --json one object. The passes are a trial's: every block has one of each way, in an
order that a coin decides, and a block with a pass on a disturbed machine is repeated. Nothing is promoted, and nothing
recorded elsewhere.

    python infra/bench/windows.py six-domains --blocks 4                     # label order: 16 passes and a warm-up
    python infra/bench/windows.py six-domains --blocks 4 --method cluster    # without labels
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import get_args

import numpy as np

from orderproof.tasks import trial as trials
from orderproof.tasks.engines.replicas import engine_of
from orderproof.tasks.evidence import CANDIDATE, CONTROL, Block, History
from orderproof.tasks.files import md5_of
from orderproof.tasks.jobs import Job, Method, load_job
from orderproof.tasks.models import read_model
from orderproof.tasks.orders import Order, make_order, view_of
from orderproof.tasks.plan import Plan, make_plan
from orderproof.tasks.prompts import TokenizedPrompts, read_prompts, tokenize
from orderproof.tasks.signals.served import Served

CONFIDENCE = 0.95
LEAST_LOOK = 5  # of a trial's rule; this trial gives no verdict
MIXED_PROMPTS = 16  # neighbours whose labels are counted


@dataclass(frozen=True)
class Way:
    """Means over the blocks; the rate is their geometric mean."""

    name: str
    throughput_req_s: float
    throughput_tok_s: float
    time_per_batch_ms: float
    labels_per_batch: float | None  # distinct ones among neighbours; null: no labels, or a fresh shuffle per block
    gain: float | None = None  # over shuffled; null: this is shuffled, or there are fewer than two blocks
    low: float | None = None
    high: float | None = None
    blocks: tuple[float, ...] = ()


def main() -> None:
    options = _arguments()
    with tempfile.TemporaryDirectory() as scratch:
        job = _job(options, Path(options.keep or scratch).resolve())
        plan, names = _plan(job, options.windows)
        with engine_of(job.engine, job.model_path, job.sampling, job.root / "engine.log") as engine:
            trial = trials.begin(plan, engine)
            for number in range(1, options.blocks + 1):
                trial = trials.run_block(plan, engine, trial, number)
                _tell(number, trial.blocks(), names)
        blocks, lost = trial.blocks(), len(trial.discarded())
    ways = [_way(arm, name, plan, blocks) for arm, name in names.items()] if blocks else []
    print(_table(job, ways, len(blocks), lost))
    if options.json:
        told = {
            "job": job.name,
            "method": job.order.method,
            "max_num_seqs": job.engine.max_num_seqs,
            "prompts": len(plan.prompts),
            "blocks": len(blocks),
            "discarded_passes": lost,
            "ways": [asdict(way) for way in ways],
        }
        options.json.write_text(json.dumps(told, indent=1) + "\n")


def _job(options: argparse.Namespace, folder: Path) -> Job:
    """The job of params.yaml in the asked order, with everything that it writes in a folder of its own."""
    job = load_job(options.params, options.job)
    order = {"window": None, **({"method": options.method} if options.method else {})}
    return job.model_copy(
        update={
            "root": folder,
            "prompts": str(job.prompts_path),
            "model": str(job.model_path),
            "tokenizer": str(job.tokenizer_path),
            "order": job.order.model_copy(update=order),
            "measure": job.measure.model_copy(
                update={"looks": (max(LEAST_LOOK, options.blocks),)}
            ),  # seeds for so many
        }
    )


def _plan(job: Job, windows: Sequence[int]) -> tuple[Plan, dict[str, str]]:
    """A trial's plan with an arm for each window, and what the arms are called."""
    prompts, md5 = tokenize(job, read_prompts(job.prompts_path)), md5_of(job.prompts_path)
    view = view_of(prompts, Served.by(job))
    current = make_order(job.order.model_copy(update={"method": "file"}), view, md5)
    plan = make_plan(job, read_model(job.model_path, job.model), prompts, md5, current, History())
    arms: dict[str, Order | None] = {CONTROL: None, CANDIDATE: plan.chosen}
    names = {CONTROL: "shuffled", CANDIDATE: f"{job.order.method}, whole file"}
    for window in windows:
        arms[f"window-{window}"] = make_order(job.order.model_copy(update={"window": window}), view, md5)
        names[f"window-{window}"] = f"{job.order.method}, windows of {window}"
    return replace(plan, orders=arms, control_why="shuffled afresh in every block"), names


def _way(arm: str, name: str, plan: Plan, blocks: Sequence[Block]) -> Way:
    passes = [block.passes[arm] for block in blocks]
    way = Way(
        name,
        statistics.geometric_mean([p.throughput_req_s for p in passes]),
        statistics.geometric_mean([p.throughput_tok_s for p in passes]),
        statistics.fmean([p.time_per_batch_ms for p in passes]),
        labels_per_batch(plan.orders[arm], plan.prompts),
    )
    if arm == CONTROL or len(blocks) < 2:
        return way
    from scipy import stats

    logs = np.log([block.passes[arm].throughput_req_s / block.passes[CONTROL].throughput_req_s for block in blocks])
    half = stats.t.ppf((1 + CONFIDENCE) / 2, len(logs) - 1) * logs.std(ddof=1) / np.sqrt(len(logs))
    gain, low, high = (float(np.expm1(value)) for value in (logs.mean(), logs.mean() - half, logs.mean() + half))
    return replace(way, gain=gain, low=low, high=high, blocks=tuple(np.expm1(logs).tolist()))


def labels_per_batch(order: Order | None, prompts: TokenizedPrompts) -> float | None:
    """Distinct labels among MIXED_PROMPTS neighbours, the mean over all places; None without labels or order."""
    if order is None or None in prompts.labels or len(prompts) < MIXED_PROMPTS:
        return None
    labels = order.apply(prompts.labels)
    starts = range(len(labels) - MIXED_PROMPTS + 1)
    return statistics.fmean(len(set(labels[start : start + MIXED_PROMPTS])) for start in starts)


def _tell(number: int, blocks: Sequence[Block], names: dict[str, str]) -> None:
    if not blocks or blocks[-1].number != number:
        print(f"block {number}: discarded, the machine was disturbed", flush=True)
        return
    rates = "; ".join(f"{name} {blocks[-1].passes[arm].throughput_req_s:.2f}" for arm, name in names.items())
    print(f"block {number}, req/s: {rates}", flush=True)


def _table(job: Job, ways: Sequence[Way], blocks: int, lost: int) -> str:
    lines = [
        f"{job.name}: batch {job.engine.max_num_seqs}, {blocks} blocks, {lost} passes discarded",
        f"{'way':<24} {'req/s':>8} {'tok/s':>8} {'step ms':>8} {f'labels/{MIXED_PROMPTS}':>10}  gain over shuffled",
    ]
    for way in ways:
        labels = "" if way.labels_per_batch is None else f"{way.labels_per_batch:.2f}"
        gain = "" if way.gain is None else f"{way.gain:+.1%} ({way.low:+.1%} to {way.high:+.1%})"
        lines.append(
            f"{way.name:<24} {way.throughput_req_s:8.2f} {way.throughput_tok_s:8.0f} {way.time_per_batch_ms:8.2f} "
            f"{labels:>10}  {gain}".rstrip()
        )
    return "\n".join(lines)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", nargs="?", default="six-domains")
    parser.add_argument("--params", type=Path, default=Path("params.yaml"))
    parser.add_argument("--method", choices=get_args(Method), help="without it the job's own")
    parser.add_argument("--windows", type=int, nargs="+", default=[64, 128], help="prompts")
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--keep", type=Path, help="folder for the evidence; without it nothing is kept")
    return parser.parse_args()


if __name__ == "__main__":
    main()
