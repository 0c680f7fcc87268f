"""Several orders of one job in one interleaved comparison, for the other scripts here.

Each arm has an order (None: a fresh shuffle per block), and its gain over the first arm with a 95 % interval (Student's
t over the blocks' log ratios). Every block has one whole pass of each arm, in a random order; a block in which requests
failed or the accelerator throttled is run again. Nothing is promoted, and nothing is written but in the folder that the
caller gives.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from orderproof.engines.protocol import Engine, Failure, Output, Request
from orderproof.engines.start import create_engine
from orderproof.job.formatting import with_interval
from orderproof.job.hashing import md5_of
from orderproof.job.params import load_job
from orderproof.job.spec import Job, OrderSpec
from orderproof.measure.warm_up import request_list, warm_up_engine
from orderproof.orders.order import Order
from orderproof.orders.registry import make_order
from orderproof.orders.view import PromptView, view_of
from orderproof.prompts.prompt_file import read_prompts
from orderproof.prompts.tokenization import TokenizedPrompts, tokenize
from orderproof.signals.served_model import ServedModel

CONFIDENCE = 0.95


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
class Pass:
    """One timed run of an arm over all prompts."""

    name: str
    block: int  # from 1
    attempt: int  # from 0
    wall_s: float
    throughput_req_s: float
    throughput_tok_s: float
    time_per_batch_ms: float  # median step
    running: float  # sequences per step
    replica_wall_s: tuple[float, ...]  # when each replica was done; empty: there is one engine
    disturbed: bool  # requests failed, or the accelerator throttled: the block is run again


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
        orders: by name; the first is what the others are compared with. At least two.
        folder: for the evidence and the engine's log.
    """
    folder.mkdir(parents=True, exist_ok=True)
    complete: list[dict[str, Pass]] = []
    discarded = 0
    with create_engine(job.engine, job.model_path, job.sampling, folder / "engine.log", job.adapters) as engine:
        warm_up_engine(job, prompts.tokenized, engine, job.measure.seed)
        for number in range(1, blocks + 1):
            for attempt in range(job.measure.validity.repeats + 1):
                passes = {
                    name: _run_pass(job, prompts, engine, (number, attempt), name, order)
                    for name, order in _drawn(orders, job.measure.seed, number, attempt)
                }
                _keep(folder, passes.values())
                if not any(timed.disturbed for timed in passes.values()):
                    complete.append(passes)
                    break
                discarded += len(passes)
            else:
                print(f"block {number}: discarded, requests failed or the accelerator throttled", flush=True)
                continue
            rates = "; ".join(f"{name} {complete[-1][name].throughput_req_s:.2f}" for name in orders)
            print(f"block {number}, req/s: {rates}", flush=True)
    print(f"{len(complete)} blocks count, {discarded} passes were discarded")
    return [_arm(name, next(iter(orders)), complete) for name in orders] if complete else []


def table(arms: Sequence[Arm]) -> str:
    """One line per arm."""
    width = max((len(arm.name) for arm in arms), default=0) + 2
    lines = [f"{'':{width}}{'req/s':>8}{'tok/s':>8}{'step ms':>9}{'running':>9}   gain"]
    for arm in arms:
        gain = "" if arm.gain is None else f"   {with_interval(arm.gain, arm.low, arm.high)}"
        lines.append(
            f"{arm.name:{width}}{arm.throughput_req_s:8.2f}{arm.throughput_tok_s:8.0f}{arm.time_per_batch_ms:9.2f}"
            f"{arm.running:9.1f}{gain}" + (f"   slowest/mean {arm.imbalance:.3f}" if arm.imbalance else "")
        )
    return "\n".join(lines)


def _drawn(orders: Mapping[str, Order | None], seed: int, block: int, attempt: int) -> list[tuple[str, Order | None]]:
    """The arms in a random order of their own in each block: a fixed order would show drift as a gain."""
    arms = list(orders.items())
    return [arms[k] for k in np.random.default_rng([seed, block, attempt, 0]).permutation(len(arms))]


def _run_pass(
    job: Job, prompts: Prompts, engine: Engine, place: tuple[int, int], name: str, order: Order | None
) -> Pass:
    """Time one pass over all prompts, with a prefix cache of its own."""
    tokenized, (block, attempt) = prompts.tokenized, place
    shuffle = np.random.default_rng([job.measure.seed, block, 1]).permutation(len(tokenized))
    sent = (shuffle if order is None else order.permutation).tolist()
    salt = f"{block} {attempt} {name}"
    requests = [Request(k, tokenized.token_ids(k), tokenized.samplings[k], tokenized.lora(k), salt) for k in sent]
    answers: list[Output | Failure] = []
    figures = engine.run(request_list(job, requests), job.sampling, answers.append)
    outputs = [answer for answer in answers if isinstance(answer, Output)]
    steps = len(figures.step_ms)
    return Pass(
        name=name,
        block=block,
        attempt=attempt,
        wall_s=figures.wall_s,
        throughput_req_s=len(outputs) / figures.wall_s,
        throughput_tok_s=sum(output.output_tokens for output in outputs) / figures.wall_s,
        time_per_batch_ms=float(np.median(figures.step_ms)) if steps else 0.0,
        running=float(figures.running.mean()) if steps else 0.0,
        replica_wall_s=tuple(figures.replica_s),
        disturbed=len(outputs) < len(sent)
        or any(bool(figures.accelerator.get(key)) for key in ("throttled", "after_throttled")),
    )


def _keep(folder: Path, passes: Iterable[Pass]) -> None:
    with open(folder / "passes.jsonl", "a") as evidence:
        evidence.writelines(json.dumps(asdict(timed)) + "\n" for timed in passes)


def _arm(name: str, first: str, blocks: Sequence[Mapping[str, Pass]]) -> Arm:
    passes = [block[name] for block in blocks]
    uneven = [max(p.replica_wall_s) / statistics.fmean(p.replica_wall_s) for p in passes if p.replica_wall_s]
    measured = Arm(
        name,
        statistics.geometric_mean([p.throughput_req_s for p in passes]),
        statistics.geometric_mean([p.throughput_tok_s for p in passes]),
        statistics.fmean([p.time_per_batch_ms for p in passes]),
        statistics.fmean([p.running for p in passes]),
        imbalance=statistics.fmean(uneven) if uneven else None,
    )
    if name == first or len(blocks) < 2:
        return measured
    from scipy import stats

    logs = np.log([block[name].throughput_req_s / block[first].throughput_req_s for block in blocks])
    half = stats.t.ppf((1 + CONFIDENCE) / 2, len(logs) - 1) * logs.std(ddof=1) / np.sqrt(len(logs))
    gain, low, high = (float(np.expm1(value)) for value in (logs.mean(), logs.mean() - half, logs.mean() + half))
    return replace(measured, gain=gain, low=low, high=high, blocks=tuple(np.expm1(logs).tolist()))
