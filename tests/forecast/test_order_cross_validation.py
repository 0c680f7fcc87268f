"""Ways to order are ranked by the experts that they save on prompts they did not learn from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from orderproof.forecast import order_cross_validation
from orderproof.forecast.order_cross_validation import choose, oracle
from orderproof.job.spec import OrderSpec
from orderproof.orders.order import Order
from orderproof.orders.registry import make_order
from orderproof.orders.view import PromptView
from orderproof.routing.errors import RoutingError
from orderproof.routing.routes import Routes
from orderproof.routing.routes_writer import write_routes
from orderproof.routing.simulate import EngineShape, simulate_captured
from orderproof.signals.served_model import UNKNOWN_MODEL
from tests.support.routed import Routed, make_routed
from tests.support.routes_maker import PAIR_RECORD, pair_routes


@pytest.fixture(scope="module")
def routed(tmp_path_factory: pytest.TempPathFactory) -> Routed:
    return make_routed(tmp_path_factory.mktemp("routed"), captured=160, others=0)


def test_experts_are_counted_once_per_step_however_many_prompts_use_them(tmp_path: Path) -> None:
    routes = pair_routes(tmp_path / "routes.parquet", (0, 1), (2, 3), (0, 1), (2, 3))
    alike, unlike = np.array([0, 2, 1, 3]), np.array([0, 1, 2, 3])
    assert simulate_captured(routes, alike, EngineShape(2)).experts_per_layer == 2
    assert simulate_captured(routes, unlike, EngineShape(2)).experts_per_layer == 4
    assert simulate_captured(routes, unlike, EngineShape(1)).experts_per_layer == 2


def test_the_window_slides(tmp_path: Path) -> None:
    """Two run at once: five steps of p0 and p1; nothing waits for a batch to end."""
    with write_routes(tmp_path / "routes.parquet", PAIR_RECORD) as writer:
        for k, (pair, tokens) in enumerate([((0, 1), 9), ((2, 3), 1), ((0, 1), 4), ((0, 1), 4)]):
            writer.add(f"p{k}", 1, np.tile(np.array(pair), (tokens, 1, 1)))
    with Routes(tmp_path / "routes.parquet") as routes:
        # p1 ends with the first step, p2 takes its place for four steps, p3 for the last four of p0
        assert simulate_captured(routes, np.arange(4), EngineShape(2)).experts_per_layer == pytest.approx(
            (4 + 8 * 2) / 9
        )


def test_the_oracle_groups_by_the_real_experts(tmp_path: Path) -> None:
    routes = pair_routes(tmp_path / "routes.parquet", (0, 1), (2, 3), (0, 1), (2, 3), (0, 1))
    assert oracle(routes, np.array([1, 2, 3, 4]), beside=2).tolist() == [0, 2, 1, 3]


def test_ways_to_order_are_ranked_by_what_they_save_on_prompts_they_did_not_learn_from(routed: Routed) -> None:
    specs = [
        OrderSpec(method="length"),
        OrderSpec(method="label"),
        OrderSpec(signal="lexical", clusters=2),
        OrderSpec(signal="predicted", clusters=2),
        OrderSpec(method="greedy", signal="predicted", clusters=2),
        OrderSpec(method="exchange", signal="predicted", clusters=2),
    ]
    with routed.routes() as routes:
        choices = choose(specs, routed.view, routes, routed.served, EngineShape(8))
        again = choose(specs, routed.view, routes, routed.served, EngineShape(8))
    assert choices == again
    saved = {choice.spec: choice.saved for choice in choices.ranked}
    assert [choice.saved for choice in choices.ranked] == sorted(saved.values(), reverse=True)
    assert abs(saved[specs[0]]) < 0.05
    for spec in specs[1:]:
        assert 0.1 < saved[spec] <= choices.headroom + 0.02


def test_routes_unrelated_to_words_leave_a_prediction_no_better_than_a_shuffle(tmp_path: Path) -> None:
    """What was learned from the prompts themselves would show as a gain here."""
    routed = make_routed(tmp_path, captured=160, others=0)
    words = [prompt["text"] for prompt in routed.prompts]
    for prompt, k in zip(routed.prompts, np.random.default_rng(3).permutation(160), strict=True):
        prompt["text"] = words[k]
    with routed.routes() as routes:
        specs = [OrderSpec(signal="predicted", clusters=8)]
        specs += [OrderSpec(method=method, signal="predicted") for method in ("greedy", "exchange")]
        choices = choose(specs, routed.view, routes, routed.served, EngineShape(8))
    assert choices.headroom > 0.15
    assert all(abs(choice.saved) < 0.05 for choice in choices.ranked)


def test_no_prompt_is_ordered_by_what_its_own_routes_taught(routed: Routed, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[set[str], set[str]]] = []

    def watched(spec: OrderSpec, view: PromptView, md5: str) -> Order:
        assert view.served.routes is not None
        assert view.at_once() == 4, "prompts of two samples, on the engine that is asked about"
        with Routes(view.served.routes) as known:
            seen.append((set(view.ids), set(known.ids)))
        return make_order(spec, view, md5)

    monkeypatch.setattr(order_cross_validation, "make_order", watched)
    with routed.routes() as routes:
        choose([OrderSpec(signal="predicted")], routed.view, routes, replace(routed.served, samples=2), EngineShape(8))
    (ordered, learned), other = seen
    assert not ordered & learned
    assert (learned, ordered) == other
    assert len(ordered | learned) == 160


def test_too_few_captured_prompts_are_refused(tmp_path: Path) -> None:
    routes, view = pair_routes(tmp_path / "routes.parquet", (0, 1), (2, 3)), make_routed(tmp_path / "x").view
    with pytest.raises(RoutingError, match=r"2 captured prompts.* 64"):
        choose([OrderSpec()], view, routes, UNKNOWN_MODEL, EngineShape(8))
