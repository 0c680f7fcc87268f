"""Compare ways to order by simulation on captured prompts that they did not learn from: experts saved, purity, time.

It prints a line per way to order, best first, with the label order where there are labels, the published recipe (a
sentence embedding and 16 clusters, here in a chain as well) and the greedy oracle, which knows the real routes. The
job's routes must be captured (`orderproof capture JOB`). Nothing is timed on an engine.

    python infra/bench/signals.py six-domains
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

from orderproof.forecast.order_cross_validation import choose
from orderproof.job.hashing import md5_of
from orderproof.job.model import read_model
from orderproof.job.params import load_job
from orderproof.job.spec import OrderSpec
from orderproof.orders.registry import make_order
from orderproof.orders.view import PromptView, view_of
from orderproof.prompts.prompt_file import read_prompts
from orderproof.prompts.tokenization import tokenize
from orderproof.routing.routes import open_routes
from orderproof.routing.simulate import EngineShape
from orderproof.signals.served_model import ServedModel

CLUSTERS = (16, 64)
RECIPE = OrderSpec(signal="embedding", clusters=16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job")
    parser.add_argument("--params", type=Path, default=Path("params.yaml"))
    parser.add_argument("--batch", type=int, help="sequences that run at once; default: the job's max_num_seqs")
    options = parser.parse_args()
    job = load_job(options.params, options.job)
    served, setting = ServedModel.of_job(job), EngineShape.of(job)
    setting = replace(setting, batch=options.batch or setting.batch)
    view = view_of(tokenize(job, read_prompts(job.prompts_path)), served)
    specs = candidates(view)
    with open_routes(_routes(served), read_model(job.model_path, job.model), md5_of(job.prompts_path)) as routes:
        choices = choose(specs, view, routes, served, setting)
    print(f"{job.name}, {setting.batch} at once: {choices.shuffled:.1f} experts per layer and step shuffled", end=", ")
    print(f"{choices.oracle:.1f} by the oracle ({choices.headroom:.1%} saved)")
    print(f"{'method':<9}{'signal':<13}{'clusters':>8}{'experts':>9}{'saved':>8}", end="")
    print(f"{'of oracle':>11}{'purity':>8}{'seconds':>9}")
    for choice in choices.ranked:
        spec = choice.spec
        purity, seconds = _made(spec, view)
        by = (spec.signal, spec.clusters) if spec.method != "label" else ("", "")
        row = f"{spec.method:<9}{by[0]:<13}{by[1]:>8}{choice.experts_per_step:>9.2f}{choice.saved:>8.1%}"
        print(f"{row}{choice.saved / choices.headroom:>11.0%}{purity:>8}{seconds:>9.2f}")


def candidates(view: PromptView) -> list[OrderSpec]:
    """All signals, cheapest first, and the label order where there are labels."""
    ways = [("cluster", signal) for signal in ("lexical", "token", "fingerprint", "predicted")]
    ways += [("greedy", "predicted"), ("exchange", "predicted")]
    specs = [
        OrderSpec.model_validate({"method": method, "signal": signal, "clusters": clusters})
        for method, signal in ways
        for clusters in CLUSTERS
    ]
    return [*specs, RECIPE, *([] if None in view.labels else [OrderSpec(method="label")])]


def _made(spec: OrderSpec, view: PromptView) -> tuple[str, float]:
    """Purity of the order of all prompts, and how long it took to make once its signal was loaded."""
    make_order(spec, view, "")
    started = time.perf_counter()
    purity = make_order(spec, view, "").purity
    return "" if purity is None else f"{purity:.1%}", time.perf_counter() - started


def _routes(served: ServedModel) -> Path:
    assert served.routes is not None  # of a job they always have a place
    return served.routes


if __name__ == "__main__":
    main()
