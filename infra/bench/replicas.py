"""What whole clusters gain on replicas: contiguous shares of a sorted order, the same order in turn, and shuffled.

In: a job of params.yaml. Out: throughput of each way and their ratios with 95 % intervals (Student's t over the blocks'
log ratios), and with --json one object. The passes are a trial's: every block has one of each way, in an order that a
coin decides, and a block with a pass on a disturbed machine is repeated. Nothing is promoted or recorded elsewhere.

Dealing a sorted order in turn over R replicas, as a load balancer does, sends places 0, R, 2R, … to the first of them
and 1, R + 1, … to the second: these are the contiguous shares of the permutation that lists the places in that order,
so all three ways run through the same engine and the same division.

    python infra/bench/replicas.py six-domains --blocks 4        # 2 replicas on 2 cores: about 6 minutes
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from orderproof.tasks import trial as trials
from orderproof.tasks.engines.replicas import engine_of
from orderproof.tasks.evidence import CANDIDATE, CONTROL, SHUFFLED, Block, History, Pass
from orderproof.tasks.files import md5_of
from orderproof.tasks.jobs import Job, OrderSpec, load_job
from orderproof.tasks.models import read_model
from orderproof.tasks.orders import Order, make_order
from orderproof.tasks.plan import Plan, make_plan
from orderproof.tasks.prompts import read_prompts
from orderproof.tasks.prompts.tokenization import tokenize

WAYS = {CANDIDATE: "contiguous", CONTROL: "in turn", SHUFFLED: "shuffled"}  # by the trial's name of the arm
PAIRS = ((CANDIDATE, CONTROL), (CANDIDATE, SHUFFLED), (CONTROL, SHUFFLED))
CONFIDENCE = 0.95
LEAST_LOOK = 5  # of a trial's rule; this trial gives no verdict


@dataclass(frozen=True)
class Way:
    """Means over the blocks; the rate is their geometric mean."""

    name: str
    throughput_req_s: float
    throughput_tok_s: float
    time_per_batch_ms: float
    running: float  # sequences of all replicas
    imbalance: float  # the slowest replica's time over their mean


@dataclass(frozen=True)
class Gain:
    """Of one way over another."""

    of: str
    over: str
    gain: float
    low: float
    high: float
    blocks: tuple[float, ...]


def main() -> None:
    options = _arguments()
    with tempfile.TemporaryDirectory() as scratch:
        job = _job(options, Path(options.keep or scratch).resolve())
        plan = _plan(job)
        log = job.root / "engine.log"
        with engine_of(job.engine, job.model_path, job.sampling, log) as engine:
            trial = trials.begin(plan, engine)
            for number in range(1, options.blocks + 1):
                trial = trials.run_block(plan, engine, trial, number)
                _tell(number, trial.blocks())
        blocks, lost = trial.blocks(), len(trial.discarded())
    ways = [_way(name, [block.passes[arm] for block in blocks]) for arm, name in WAYS.items()]
    gains = [_gain(of, over, blocks) for of, over in PAIRS] if len(blocks) > 1 else []
    print(_table(job, ways, gains, len(blocks), lost))
    if options.json:
        told = {
            "job": job.name,
            "replicas": job.engine.replicas,
            "max_num_seqs": job.engine.max_num_seqs,
            "blocks": len(blocks),
            "discarded_passes": lost,
            "ways": [asdict(way) for way in ways],
            "gains": [asdict(gain) for gain in gains],
        }
        options.json.write_text(json.dumps(told, indent=1) + "\n")


def _job(options: argparse.Namespace, folder: Path) -> Job:
    """The job of params.yaml on replicas, with everything that it writes in a folder of its own."""
    job = load_job(options.params, options.job)
    measured = {"prompts": options.prompts, "looks": (max(LEAST_LOOK, options.blocks),)}  # seeds for so many blocks
    return job.model_copy(
        update={
            "root": folder,
            "prompts": str(job.prompts_path),
            "model": str(job.model_path),
            "tokenizer": str(job.tokenizer_path),
            "engine": job.engine.model_copy(update={"replicas": options.replicas, "devices": None}),
            "measure": job.measure.model_copy(update=measured),
        }
    )


def _plan(job: Job) -> Plan:
    """A trial's plan, its arms replaced by the three ways."""
    prompts, md5 = tokenize(job, read_prompts(job.prompts_path)), md5_of(job.prompts_path)
    current = make_order(OrderSpec(method="file"), prompts, md5)
    plan = make_plan(job, read_model(job.model_path, job.model), prompts, md5, current, History())
    sorted_order = plan.orders[CANDIDATE]
    assert sorted_order is not None
    arms = {CANDIDATE: sorted_order, CONTROL: in_turn(sorted_order, job.engine.replicas), SHUFFLED: None}
    return replace(plan, orders=arms, control_why="the candidate's order, dealt in turn")


def in_turn(order: Order, replicas: int) -> Order:
    """The order whose contiguous shares are what each replica gets when `order` is dealt in turn."""
    permutation = np.concatenate([order.permutation[k::replicas] for k in range(replicas)])
    parameters = {**order.parameters, "dealt_in_turn": replicas}
    return Order(permutation, order.method, parameters, order.seeds, order.dataset_md5)


def _way(name: str, passes: Sequence[Pass]) -> Way:
    def mean(values: Sequence[float]) -> float:
        return statistics.fmean(values) if values else 0.0

    return Way(
        name,
        statistics.geometric_mean([p.throughput_req_s for p in passes]) if passes else 0.0,
        statistics.geometric_mean([p.throughput_tok_s for p in passes]) if passes else 0.0,
        mean([p.time_per_batch_ms for p in passes]),
        mean([p.running_mean for p in passes]),
        mean([max(p.replica_wall_s) / statistics.fmean(p.replica_wall_s) for p in passes if p.replica_wall_s]),
    )


def _gain(of: str, over: str, blocks: Sequence[Block]) -> Gain:
    from scipy import stats

    logs = np.log([block.passes[of].throughput_req_s / block.passes[over].throughput_req_s for block in blocks])
    half = stats.t.ppf((1 + CONFIDENCE) / 2, len(logs) - 1) * logs.std(ddof=1) / np.sqrt(len(logs))
    gain, low, high = (float(np.expm1(value)) for value in (logs.mean(), logs.mean() - half, logs.mean() + half))
    return Gain(WAYS[of], WAYS[over], gain, low, high, tuple(np.expm1(logs).tolist()))


def _tell(number: int, blocks: Sequence[Block]) -> None:
    if not blocks or blocks[-1].number != number:
        print(f"block {number}: discarded, the machine was disturbed", flush=True)
        return
    rates = ", ".join(f"{name} {blocks[-1].passes[arm].throughput_req_s:.2f}" for arm, name in WAYS.items())
    print(f"block {number}: {rates} req/s", flush=True)


def _table(job: Job, ways: Sequence[Way], gains: Sequence[Gain], blocks: int, lost: int) -> str:
    size = job.engine.max_num_seqs
    lines = [
        f"{job.name}: {job.engine.replicas} replicas of {size} sequences, {blocks} blocks, {lost} passes discarded",
        f"{'way':<12} {'req/s':>8} {'tok/s':>8} {'step ms':>8} {'running':>8} {'slowest/mean':>13}",
    ]
    lines += [
        f"{way.name:<12} {way.throughput_req_s:8.2f} {way.throughput_tok_s:8.0f} {way.time_per_batch_ms:8.2f} "
        f"{way.running:8.1f} {way.imbalance:13.3f}"
        for way in ways
    ]
    lines += [
        f"{gain.of} over {gain.over}: {gain.gain:+.1%} ({gain.low:+.1%} to {gain.high:+.1%}); blocks "
        + ", ".join(f"{one:+.1%}" for one in gain.blocks)
        for gain in gains
    ]
    return "\n".join(lines)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", nargs="?", default="six-domains")
    parser.add_argument("--params", type=Path, default=Path("params.yaml"))
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--prompts", type=int, help="measure a sample, in runs of the sorted order; without it all")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--keep", type=Path, help="folder for the evidence; without it nothing is kept")
    return parser.parse_args()


if __name__ == "__main__":
    main()
