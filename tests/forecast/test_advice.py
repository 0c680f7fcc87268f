"""A plan's advice follows from what is refused, known and predicted."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orderproof.forecast.advice import advise
from orderproof.forecast.candidates import Candidate
from orderproof.forecast.prediction import Prediction
from orderproof.job.spec import OrderSpec
from orderproof.measure.verdict import Rule
from tests.support.trial_maker import make_job

RULE = Rule()
FILE = ("file", 0.0, 0.0)
PROMOTED = "label, promoted by trial T"
TOKEN = OrderSpec(signal="token")


def forecast(
    *orders: tuple[str, float, float], held_out: dict[str, float] | None = None, today: float = 0.0, whole: bool = True
) -> Any:
    """Of (name, gain, experts saved); `held_out` as choose() would give it, `today`: the gain of the order of today."""
    width = 0.02
    specs = {name: OrderSpec(method="file", seed=k) for k, (name, *_) in enumerate(orders)}
    ranked = [SimpleNamespace(spec=specs[name], saved=saved) for name, saved in (held_out or {}).items()]
    return SimpleNamespace(
        whole=whole,
        candidates=[Candidate(name, spec, None, None, 0.1) for name, spec in specs.items()],
        predictions=[Prediction(name, gain, gain - width, gain + width, saved, 20.0) for name, gain, saved in orders],
        today=Prediction(PROMOTED, today, today, today, 0.0, 20.0),
        choices=SimpleNamespace(ranked=ranked) if held_out else None,
    )


def test_a_refused_order_is_not_measured_whatever_is_predicted(tmp_path: Path) -> None:
    advice = advise("it is dense", forecast(FILE, ("label", 0.2, 0.3)), RULE, make_job(tmp_path), None)
    assert (advice.answer, advice.reason) == ("don't", "it is dense")


def test_without_routes_they_are_asked_for(tmp_path: Path) -> None:
    advice = advise(None, None, RULE, make_job(tmp_path), None)
    assert advice.answer == "capture"
    assert "orderproof capture six-domains" in advice.reason


def test_the_largest_gain_is_measured(tmp_path: Path) -> None:
    seen = forecast(FILE, ("label", 0.17, 0.35), ("cluster by token", 0.2, 0.4))
    advice = advise(None, seen, RULE, make_job(tmp_path), 0.05)
    assert (advice.answer, advice.candidate) == ("measure", "cluster by token")
    assert "cluster by token, is predicted to gain +20.0% (+18.0% to +22.0%)" in advice.reason


def test_of_orders_that_save_alike_the_cheapest_is_measured(tmp_path: Path) -> None:
    seen = forecast(FILE, ("label", 0.195, 0.395), ("cluster by embedding", 0.2, 0.4))
    assert advise(None, seen, RULE, make_job(tmp_path), None).candidate == "label"


def test_an_order_is_chosen_by_prompts_that_it_did_not_learn_from(tmp_path: Path) -> None:
    orders = (FILE, ("cluster by token", 0.15, 0.3), ("cluster by predicted", 0.3, 0.5))
    held_out = {"file": 0.0, "cluster by token": 0.3, "cluster by predicted": 0.25}
    assert advise(None, forecast(*orders), RULE, make_job(tmp_path), None).candidate == "cluster by predicted"
    chosen = advise(None, forecast(*orders, held_out=held_out), RULE, make_job(tmp_path), None)
    assert chosen.candidate == "cluster by token"


def remembering(observed_held_out: float, whole: bool) -> Any:
    """A forecast whose last order knows the answers of the captured prompts."""
    orders = (FILE, ("label", 0.2, 0.35), ("exchange by observed", 0.25, 0.44))
    held_out = {"file": 0, "label": 0.35, "exchange by observed": observed_held_out}
    seen = forecast(*orders, held_out=held_out, whole=whole)
    spec = OrderSpec(method="exchange", signal="observed")
    seen.candidates[2] = Candidate("exchange by observed", spec, None, None, 0.1)
    seen.choices.ranked[2].spec = spec
    return seen


def test_an_order_that_remembers_counts_by_the_same_prompts_again(tmp_path: Path) -> None:
    advice = advise(None, remembering(0.2, whole=True), RULE, make_job(tmp_path), None)
    assert advice.candidate == "exchange by observed"
    assert advice.reason.startswith("the best order for the same prompts again, exchange by observed")


def test_an_order_that_remembers_a_sample_counts_by_the_prompts_that_it_does_not_know(tmp_path: Path) -> None:
    assert advise(None, remembering(0.2, whole=False), RULE, make_job(tmp_path), None).candidate == "label"
    advice = advise(None, remembering(0.4, whole=False), RULE, make_job(tmp_path), None)
    assert advice.candidate == "exchange by observed"
    assert advice.reason.startswith("the best order, exchange by observed")


@pytest.mark.parametrize(
    ("gain", "today", "detectable", "reason"),
    [
        (0.005, 0.0, None, "+2.5%) over shuffled: below the minimum effect of 3%"),
        (0.02, 0.0, None, "most likely below the minimum effect of 3%"),
        (0.06, 0.0, 0.08, "the smallest gain that a trial detects here is 8.0%"),
        (0.20, 0.19, None, "but today's order (label, promoted by trial T) has +19.0%"),
        (0.155, 0.10, 0.08, "and +5.0% over today's order (label, promoted by trial T), and the smallest gain"),
    ],
)
def test_a_trial_that_would_show_nothing_is_advised_against(
    tmp_path: Path, gain: float, today: float, detectable: float | None, reason: str
) -> None:
    seen = forecast(FILE, ("label", gain, 0.3), today=today)
    advice = advise(None, seen, RULE, make_job(tmp_path), detectable)
    assert advice.answer == "don't"
    assert reason in advice.reason


def test_what_runs_today_and_not_what_the_file_holds_is_to_be_beaten(tmp_path: Path) -> None:
    seen = forecast(("file", 0.16, 0.3), ("label", 0.17, 0.35), today=-0.05)
    assert advise(None, seen, RULE, make_job(tmp_path), 0.2).answer == "measure"


def test_a_promoted_order_that_loses_is_worth_leaving_even_for_the_files_own(tmp_path: Path) -> None:
    seen = forecast(FILE, ("label", -0.05, -0.1), today=-0.05)
    advice = advise(None, seen, RULE, make_job(tmp_path), 0.04)
    assert (advice.answer, advice.candidate) == ("measure", "file")
    assert "and +5.3% over today's order (label, promoted by trial T), which loses" in advice.reason
