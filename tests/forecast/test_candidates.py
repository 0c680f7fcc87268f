"""Orders are offered cheapest first, and an order that cannot be made gives the reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from orderproof.forecast import candidates
from orderproof.forecast.candidates import candidates_of, name_of
from orderproof.job.spec import Job, OrderSpec
from orderproof.orders.view import view_of
from orderproof.signals.served_model import ServedModel
from tests.support.routed import Routed, make_routed
from tests.support.trial_maker import make_job

FREE = ["file", "length", "label", "label, windows of 64"]
SIGNALS = [f"cluster by {signal}" for signal in ("lexical", "token", "embedding", "fingerprint", "predicted")]


@pytest.fixture(scope="module")
def routed(tmp_path_factory: pytest.TempPathFactory) -> Routed:
    return make_routed(tmp_path_factory.mktemp("routed"), captured=40, others=8)


def names(job: Job, prompts: list[dict[str, str]]) -> list[str]:
    return [name_of(spec) for spec in candidates._specs(job, view_of(prompts))]


def test_ways_to_order_come_from_free_to_dear(tmp_path: Path, routed: Routed) -> None:
    assert names(make_job(tmp_path), routed.prompts) == [
        *FREE,
        *SIGNALS,
        "greedy by predicted",
        "exchange by predicted",
        "exchange by observed",
    ]


def test_of_many_batches_a_cluster_for_each_is_looked_at_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_job(tmp_path)
    many = [{"text": "a"}] * (20 * job.engine.max_num_seqs)
    assert names(job, many)[-4:] == [
        "cluster by token, 20 clusters",
        "cluster by predicted, 20 clusters",
        "exchange by predicted, 20 clusters",
        "exchange by observed, 20 clusters",
    ]
    monkeypatch.setattr(candidates, "MOST_CLUSTERS", 18)
    assert "cluster by token, 18 clusters" in names(job, many)
    own = make_job(tmp_path, order={"method": "exchange", "signal": "predicted", "clusters": 64})
    assert {spec.clusters for spec in candidates._specs(own, view_of(many)) if spec.method in candidates.GROUPING} == {
        64
    }


def test_answers_that_are_drawn_are_not_remembered(tmp_path: Path, routed: Routed) -> None:
    drawn = make_job(tmp_path, sampling={"temperature": 0.5, "max_tokens": 8})
    assert not any("observed" in name for name in names(drawn, routed.prompts))


@pytest.mark.parametrize("labels", [{}, {"label": "one"}])
def test_where_labels_tell_nothing_there_is_no_label_order(tmp_path: Path, labels: dict[str, str]) -> None:
    assert names(make_job(tmp_path), [{"text": "a", **labels}, {"text": "b", **labels}])[:3] == [*FREE[:2], SIGNALS[0]]


def test_the_jobs_own_order_is_among_them_with_its_own_parameters(tmp_path: Path, routed: Routed) -> None:
    own = {"method": "cluster", "signal": "token", "clusters": 6, "window": 16}
    specs = candidates._specs(make_job(tmp_path, order=own), routed.view)
    assert specs[-1] == OrderSpec.model_validate(own)
    assert {spec.clusters for spec in specs if spec.method == "cluster"} == {6}
    same = candidates._specs(make_job(tmp_path, order={**own, "window": None}), routed.view)
    assert len(same) == len(specs) - 1


def test_an_order_that_cannot_be_made_says_why_and_the_others_are_made(
    tmp_path: Path, routed: Routed, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = [OrderSpec(method="label"), OrderSpec(signal="token"), OrderSpec(signal="predicted")]
    monkeypatch.setattr(candidates, "_specs", lambda job, prompts: ways)
    view = view_of(routed.prompts, ServedModel(routed.served.model, None, tmp_path / "none.parquet"))
    label, token, predicted = candidates_of(make_job(tmp_path), view, "md5")
    for made in (label, token):
        assert made.problem is None
        assert made.order is not None
        assert sorted(made.order.permutation.tolist()) == np.arange(48).tolist()
    assert predicted.order is None
    assert "orderproof capture JOB" in (predicted.problem or "")
    assert [one.learns_from_routes for one in (label, token, predicted)] == [False, False, True]
