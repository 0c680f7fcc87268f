"""Replay's constants fitted on the real engine, and the gain it predicts with them beside the one that is measured.

    orderproof capture six-domains
    python infra/bench/calibration.py six-domains --blocks 5

In: a job with labels, and its captured routes. Out: the fit, and label order against shuffled, both ways. The measured
passes are interleaved; the trial itself is `orderproof measure`.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from orderproof.tasks.engines import Engine, Request
from orderproof.tasks.engines.client import VllmEngine
from orderproof.tasks.engines.replay import ReplayEngine, Settings
from orderproof.tasks.jobs import Job, OrderSpec, load_job
from orderproof.tasks.models import read_model
from orderproof.tasks.orders import make_order
from orderproof.tasks.prompts import TokenizedPrompts, dataset_md5, read_prompts, tokenize
from orderproof.tasks.routing.calibration import Calibration, calibrate
from orderproof.tasks.routing.capture import routes_path
from orderproof.tasks.routing.routes import open_routes
from orderproof.tasks.routing.source import captured_routes


def main() -> None:
    options = _arguments()
    job = load_job(options.params, options.job)
    model, md5 = read_model(job.model_path, job.model), dataset_md5(job.prompts_path)
    prompts = tokenize(job, read_prompts(job.prompts_path))
    routes = open_routes(routes_path(job), model, md5)
    log = job.root / ".orderproof" / "bench" / "engine.log"
    with VllmEngine(job.engine, job.model_path, job.sampling, log) as engine:
        bytes_per_expert = model.moe.bytes_per_expert if model.moe else None
        calibration = calibrate(engine, job, prompts, routes, bytes_per_expert)
        print(_told(calibration), flush=True)
        settings = Settings(job.engine.max_num_seqs, int(engine.info.settings["max_num_batched_tokens"]))
        replayed = ReplayEngine(captured_routes(routes, prompts.ids), calibration.costs, settings)
        for what, one in (("predicted", replayed), ("measured", engine)):
            gains = _gains(one, job, prompts, options.blocks)
            error = statistics.stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else math.nan
            print(f"{what:10} label order against shuffled {math.expm1(statistics.fmean(gains)):+.1%} ± {error:.1%}")


def _told(calibration: Calibration) -> str:
    fit, costs = calibration.fit, calibration.costs
    base = ", ".join(f"{ms:.3f} ms at {batch:g}" for batch, ms in zip(costs.batches, costs.base_ms, strict=True))
    near = f"{calibration.times_bandwidth:.2f} times" if calibration.times_bandwidth else "not comparable with"
    return (
        f"{costs.source}\nbase {base}; {1000 * costs.expert_ms:.2f} ± {1000 * fit.expert_ms_error:.2f} µs per expert, "
        f"{near} its bytes at the memory's speed; {1000 * costs.prefill_token_ms:.1f} µs per prompt token\n"
        f"R² {fit.r_squared:.3f}, residual {fit.residual:.1%} of a step"
    )


def _gains(engine: Engine, job: Job, prompts: TokenizedPrompts, blocks: int) -> list[float]:
    """ln(shuffled time / label order's time) of each block; a coin decides which goes first."""
    label = make_order(OrderSpec(method="label"), prompts, "").permutation.tolist()
    coin, gains = random.Random(0), []
    for block in range(blocks):
        shuffled = np.random.default_rng(block).permutation(len(prompts)).tolist()
        arms = {"label": label, "shuffled": shuffled}
        walls = {arm: _wall_s(engine, job, prompts, arms[arm]) for arm in coin.sample(sorted(arms), 2)}
        gains.append(math.log(walls["shuffled"] / walls["label"]))
    return gains


def _wall_s(engine: Engine, job: Job, prompts: TokenizedPrompts, order: Sequence[int]) -> float:
    requests = [Request(k, prompts.token_ids(k), prompts.samplings[k]) for k in order]
    return engine.run(requests, job.sampling, lambda answer: None).wall_s


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job")
    parser.add_argument("--params", type=Path, default=Path("params.yaml"))
    parser.add_argument("--blocks", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    main()
