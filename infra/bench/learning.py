"""How many prompts to capture: what a prediction learned from few and from many of them saves of others' experts.

It prints a line per number of prompts that the prediction learned from, with its R² and, by simulation on held-out
captured prompts, which share of a shuffle's experts the orders save, and which share of the greedy oracle's saving:
means and standard deviations over random draws of the held-out prompts. The job's routes must be captured (`orderproof
capture JOB --prompts N`). Nothing is timed on an engine.

    python infra/demo/make_chat.py 13056 -o data/chat-large/prompts.jsonl    # and a job of it in params.yaml
    python infra/bench/learning.py chat-large
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from signals import RECIPE

from orderproof.forecast.order_cross_validation import experts_read, learned_from
from orderproof.job.hashing import md5_of
from orderproof.job.model import read_model
from orderproof.job.params import load_job
from orderproof.job.spec import OrderSpec
from orderproof.orders.shuffled import shuffle
from orderproof.orders.view import PromptView, view_of
from orderproof.prompts.prompt_file import read_prompts
from orderproof.prompts.tokenization import tokenize
from orderproof.routing.routes import Routes, open_routes
from orderproof.routing.simulate import EngineShape
from orderproof.signals.predictor_file import predictor_of
from orderproof.signals.served_model import ServedModel


def main() -> None:
    options = _arguments()
    job = load_job(options.params, options.job)
    served, setting = ServedModel.of_job(job), EngineShape.of(job)
    view = view_of(tokenize(job, read_prompts(job.prompts_path)), served)
    assert served.routes is not None  # of a job they always have a place
    with open_routes(served.routes, read_model(job.model_path, job.model), md5_of(job.prompts_path)) as routes:
        if max(options.learned) + options.held > len(routes):
            raise SystemExit(f"{len(routes)} prompts are captured: fewer than --learned and --held together")
        place = {prompt_id: i for i, prompt_id in enumerate(view.ids)}
        captured = view.take([place[prompt_id] for prompt_id in routes.ids])
        draws = [list(_draw(captured, routes, setting, options, k)) for k in range(options.draws)]
    print(f"{job.name}: {options.held} prompts held out, {options.draws} draws of them; {options.clusters} clusters")
    print(
        f"{'learned from':<16}{'R²':>8}{'saved by clusters':>22}{'of oracle':>12}{'by exchange':>18}{'of oracle':>12}"
    )
    for rows in zip(*draws, strict=True):
        name, means, sds = rows[0][0], *((f(np.array([row[1] for row in rows]), axis=0)) for f in (np.mean, _sd))
        cells = [f"{mean:.1%} ± {sd:.1%}" for mean, sd in zip(means, sds, strict=True)]
        print(f"{name:<16}{means[0]:>8.2f}{cells[1]:>22}{means[2]:>9.0%} ± {sds[2]:.0%}", end="")
        print(f"{cells[3]:>18}{means[4]:>6.0%} ± {sds[4]:.0%}" if len(means) > 3 else "")


def _draw(
    captured: PromptView, routes: Routes, setting: EngineShape, options: argparse.Namespace, seed: int
) -> Iterator[tuple[str, list[float]]]:
    """The rows of one draw: name, and R², then experts saved and their share of the oracle's, by each order."""
    predicted = [
        OrderSpec.model_validate({"method": method, "signal": "predicted", "clusters": options.clusters})
        for method in ("cluster", "exchange")
    ]
    drawn = shuffle(len(routes), seed)
    held, others = np.sort(drawn[: options.held]), drawn[options.held :]

    def saved(specs: Sequence[OrderSpec], served: ServedModel) -> NDArray[np.float64]:
        """Shares of a shuffle's experts: by each way to order, and by the oracle."""
        *read, shuffled = experts_read(specs, replace(captured, served=served), routes, held, setting, seed)
        return 1 - np.array(read) / shuffled

    recipe, most = saved([RECIPE], captured.served)
    yield "nothing: recipe", [np.nan, recipe, recipe / most]
    for number in options.learned:
        with learned_from(routes, np.sort(others[:number]), captured, captured.served) as known:
            r2 = predictor_of(known, "predicted").record.decode.r2
            by_order = saved(predicted, known)[:-1]
        yield f"{number} prompts", [r2, *(value for share in by_order for value in (share, share / most))]
    yield "the oracle", [np.nan, most, 1.0]


def _sd(values: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    return np.std(values, axis=axis, ddof=min(1, len(values) - 1))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job")
    parser.add_argument("--params", type=Path, default=Path("params.yaml"))
    parser.add_argument("--learned", type=int, nargs="+", default=[384, 1536, 4096, 9984], help="prompts")
    parser.add_argument("--held", type=int, default=3072, help="prompts that are held out and ordered")
    parser.add_argument("--clusters", type=int, default=192, help="of those; the recipe has its 16")
    parser.add_argument("--draws", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    main()
