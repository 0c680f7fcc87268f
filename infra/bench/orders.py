"""Predicted and measured: what orders gain over shuffled, by replay of captured routes and on the real engine.

An order is a method or a signal, with `/N` for windows of N prompts and `xN` for N clusters, and the signal of
`cluster`, `greedy` or `exchange` after a hyphen; `oracle` is greedy by the real routes, `recipe` and `multilingual` are
the published recipe (recipe.py). It prints a line per order with its measured gain, and the predicted one where the
job's routes were captured (`orderproof capture JOB`); with --json it writes one object. All orders are measured in one
interleaved comparison.

    python infra/bench/orders.py six-domains --blocks 5
    python infra/bench/orders.py six-domains --orders label label/64 label/128     # what windows keep
    python infra/bench/orders.py six-domains --batch 32 --orders label token       # another batch size
    python infra/bench/orders.py six-domains --predict-only
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import get_args

import arms
import numpy as np
import recipe

from orderproof.capture.step_cost_store import read_costs
from orderproof.forecast.candidates import GROUPING
from orderproof.forecast.order_cross_validation import oracle
from orderproof.forecast.planning import requests_of
from orderproof.forecast.prediction import Prediction, predict
from orderproof.job.formatting import signed, with_interval
from orderproof.job.model import read_model
from orderproof.job.spec import Job, OrderSpec, SignalName
from orderproof.measure.plan import restrict
from orderproof.orders.order import Order
from orderproof.routing.route_source import captured_routes
from orderproof.routing.routes import Routes, open_routes
from orderproof.routing.simulate import EngineShape
from orderproof.signals.registry import texts_of
from orderproof.signals.served_model import ServedModel

ORDERS = ("file", "label", "label/128", "embedding", "lexical", "token", "predicted", "greedy")
SHUFFLED, ORACLE = "shuffled", "oracle"
NAME = re.compile(r"([a-z]+)(?:-([a-z]+))?(?:x(\d+))?(?:/(\d+))?")


def main() -> None:
    options = _arguments()
    job = arms.named(options)
    at = _at(job, options.batch)
    prompts = arms.prompts_of(at)
    orders: dict[str, Order | None] = {name: _order(at, prompts, name) for name in options.orders}
    predicted = _predict(job, prompts, orders, EngineShape.of(at))
    measured = {}
    if not options.predict_only:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(options.keep or scratch).resolve()
            found = arms.compare(at, prompts, {SHUFFLED: None, **orders}, options.blocks, folder)
        print(arms.table(found))
        measured = {arm.name: arm for arm in found}
    _print_table(predicted, measured)
    if options.json:
        figures = {name: {"predicted": asdict(predicted[name]) if name in predicted else None,
                       "measured": asdict(measured[name]) if name in measured else None}
                for name in (SHUFFLED, *orders)}  # fmt: skip
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


def spec_of(name: str) -> OrderSpec:
    """`label/128`, `tokenx64`, `greedy`, `exchange-observed`: the short names of this script."""
    found = NAME.fullmatch(name)
    if not found:
        raise SystemExit(f"{name!r} names no order: write for example label, label/128, token, tokenx64, greedy")
    word, signal, clusters, window = found.groups()
    if signal and word not in GROUPING:
        raise SystemExit(f"{name!r} names no order: a signal stands alone or after {', '.join(GROUPING)}")
    fields: dict[str, object] = {"method": word} | ({"signal": signal} if signal else {})
    if word in get_args(SignalName):
        fields = {"method": "cluster", "signal": word}
    elif word in ("greedy", "exchange") and not signal:
        fields |= {"signal": "predicted"}
    fields |= {"clusters": int(clusters)} if clusters else {}
    return OrderSpec.model_validate(fields | ({"window": int(window)} if window else {}))


def _at(job: Job, batch: int | None) -> Job:
    """The job whose engine runs so many sequences at once; None: as many as it does."""
    if batch is None:
        return job
    args = {**job.engine.args, "max_num_seqs": batch}
    return job.model_copy(update={"engine": job.engine.model_copy(update={"args": args})})


def _order(job: Job, prompts: arms.Prompts, name: str) -> Order:
    if name in (recipe.ENGLISH, recipe.MULTILINGUAL):
        sent = recipe.order(texts_of(prompts.view, range(len(prompts.view))), name)
        return Order(sent, name, {}, {}, prompts.dataset_md5)
    if name != ORACLE:
        return prompts.order(spec_of(name))
    with routes_of(job, prompts) as routes:
        places = [routes.place.get(prompt_id, -1) for prompt_id in prompts.tokenized.ids]
        if -1 in places:
            raise SystemExit(f"{ORACLE} needs the routes of every prompt: orderproof capture {job.name} --prompts N")
        beside = prompts.view.at_once()
        assert beside is not None  # of a job it is always known
        sent = oracle(routes, np.array(places), beside)
    return Order(sent, ORACLE, {}, {}, prompts.dataset_md5)


def routes_of(job: Job, prompts: arms.Prompts) -> Routes:
    path = ServedModel.of_job(job).routes
    assert path is not None  # of a job they always have a place
    return open_routes(path, read_model(job.model_path, job.model), prompts.dataset_md5)


def _predict(
    job: Job, prompts: arms.Prompts, orders: dict[str, Order | None], shape: EngineShape
) -> dict[str, Prediction]:
    """Of the captured prompts, by name; empty where there are none. At other batch sizes, the nearest timed costs."""
    known = read_costs(job, read_model(job.model_path, job.model))
    if known is None:
        return {}
    with routes_of(job, prompts) as routes:
        places = np.array([k for k, prompt_id in enumerate(prompts.tokenized.ids) if prompt_id in routes.place])
        sample = prompts.tokenized.take(places)
        source = captured_routes(routes, sample.ids)
        requests = requests_of(job, sample, source)
        sent = {name: restrict(order, places).permutation for name, order in orders.items() if order is not None}
        predictions, _ = predict(sent, requests, source, shape, known.costs, known.expert_ms_error)
    return {prediction.name: prediction for prediction in predictions}


def _print_table(predicted: dict[str, Prediction], measured: dict[str, arms.Arm]) -> None:
    if not predicted:
        return
    print(f"\n{'order':12}{'experts':>9}   {'predicted gain':28}{'measured gain':28}")
    for name, prediction in predicted.items():
        arm = measured.get(name)
        measured_gain = with_interval(arm.gain, arm.low, arm.high) if arm and arm.gain is not None else ""
        predicted_gain = with_interval(prediction.gain, prediction.low, prediction.high)
        print(f"{name:12}{signed(-prediction.experts_saved):>9}   {predicted_gain:28}{measured_gain:28}")


def _arguments() -> argparse.Namespace:
    parser = arms.arguments(__doc__)
    parser.add_argument("--orders", nargs="+", default=list(ORDERS), metavar="ORDER")
    parser.add_argument("--batch", type=int, help="sequences at once; without it the job's max_num_seqs")
    parser.add_argument("--predict-only", action="store_true", help="start no engine")
    return parser.parse_args()


if __name__ == "__main__":
    main()
