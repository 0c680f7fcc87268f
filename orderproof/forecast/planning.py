"""One job looked at before it is spent on: facts, predictions, what they are worth, and advice.

In: a job; its prompts, model, earlier trials, and its captured routes and fitted costs where there are some. Out: a
`JobForecast`. Starts no engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from orderproof.capture.step_cost_store import StoredCosts, read_costs
from orderproof.forecast.advice import Advice, advise
from orderproof.forecast.candidates import Candidate, candidates_of
from orderproof.forecast.economics import Worth, worth
from orderproof.forecast.job_profile import JobFacts, left_out, profile_job
from orderproof.forecast.order_cross_validation import Choices, choose
from orderproof.forecast.prediction import Prediction, over_today, predict, shrink_to_unseen
from orderproof.job.model import ModelFacts, read_model
from orderproof.job.sampling import asked_samples, asked_tokens
from orderproof.job.spec import Job, OrderSpec
from orderproof.measure.plan import Plan, make_plan, restrict
from orderproof.measure.trial_store import read_history
from orderproof.measure.verdict import Rule
from orderproof.orders.order import Order
from orderproof.orders.view import view_of
from orderproof.prompts.prompt_files import find_files
from orderproof.prompts.tokenization import TokenizedPrompts
from orderproof.routing.replay import SimRequest
from orderproof.routing.route_source import CapturedRoutes, captured_routes
from orderproof.routing.routes import Routes, open_routes
from orderproof.routing.simulate import EngineShape
from orderproof.runs import promotion, route_artifacts
from orderproof.runs.run_store import verb_folder
from orderproof.signals.predictor import LEAST_PROMPTS
from orderproof.signals.registry import ROUTING_SIGNALS
from orderproof.signals.served_model import ServedModel
from orderproof.validation.validate import validate_prompts


@dataclass(frozen=True, eq=False)
class OrderForecast:
    """What captured routes predict for each order."""

    captured: int  # prompts
    whole: bool  # they are all of the job's
    costs: StoredCosts
    devices: int  # over which each replica's experts are spread
    candidates: tuple[Candidate, ...]  # that can be made, cheapest first
    predictions: tuple[Prediction, ...]  # of each
    today: Prediction  # of the order in which the job runs today
    choices: Choices | None  # the same ways to order on prompts they did not learn from; None: too few were captured
    shuffled_s: float  # one run of the whole job, shuffled
    impossible: tuple[Candidate, ...]  # and why


@dataclass(frozen=True, eq=False)
class JobForecast:
    """A job's facts, predictions, their worth and the advice."""

    job: str
    model: ModelFacts
    facts: JobFacts
    rule: Rule  # looks to register
    detectable: float | None  # smallest gain the last look detects with 80 % power; None without earlier trials
    forecast: OrderForecast | None  # None: nothing was captured
    worth: Worth | None  # of the candidate that is advised
    advice: Advice
    dataset_md5: str
    sampling: dict[str, Any]  # the job's, which the predictions rest on
    left_out: tuple[str, ...]  # of the job's engine, by the predictions

    @property
    def candidate(self) -> tuple[Candidate, Prediction] | None:
        """The one that is advised."""
        if self.forecast is None or self.advice.candidate is None:
            return None
        pairs = zip(self.forecast.candidates, self.forecast.predictions, strict=True)
        return next(pair for pair in pairs if pair[0].name == self.advice.candidate)


def forecast_job(job: Job, say: Callable[[str], None] = lambda _: None) -> JobForecast:
    """Forecast what each order would gain for a job, and advise.

    Args:
        say: called with what is being done, for the seconds that it takes.

    Raises:
        OrderproofError: prompts or model that no trial could use; routes or costs of others.
    """
    model = read_model(job.model_path, job.model, job.adapters)
    say("checking the prompts")
    prompts = validate_prompts(job, job.root / "reports" / job.name / "validation")
    md5 = find_files(job).md5()
    current = promotion.current_order(job, md5, prompts.ids)
    route_artifacts.restore_routes(job, md5)
    plan = make_plan(job, model, prompts, md5, current, read_history(verb_folder(job, "measure")))
    facts = profile_job(job, model, prompts, current, _promoted_by(job, current))
    forecast, routes_file = None, job.paths.routes
    if plan.refusal is None and routes_file.exists():
        known = read_costs(job, model)
        if known is not None:
            with open_routes(routes_file, model, md5) as routes:
                forecast = _forecast(job, prompts, routes, known, current, facts.today, say)
    advice = advise(plan.refusal, forecast, plan.rule, job, plan.detectable_gain_before, routes_file.exists())
    return JobForecast(
        job=job.name,
        model=model,
        facts=facts,
        rule=plan.rule,
        detectable=plan.detectable_gain_before,
        forecast=forecast,
        worth=_worth(job, plan, forecast, advice),
        advice=advice,
        dataset_md5=md5,
        sampling=job.sampling,
        left_out=tuple(left_out(job)),
    )


def _promoted_by(job: Job, current: Order) -> str | None:
    """The trial that pinned the order of today; None: it is the file's own."""
    pinned = promotion.read_promotion(job)
    return pinned.trial if pinned and pinned.promoted and pinned.order == current.record() else None


def _forecast(
    job: Job,
    prompts: TokenizedPrompts,
    routes: Routes,
    known: StoredCosts,
    current: Order,
    today: str,
    say: Callable[[str], None],
) -> OrderForecast:
    places = np.array([k for k, prompt_id in enumerate(prompts.ids) if prompt_id in routes.place], np.int64)
    sample = prompts.take(places)
    served, setting = ServedModel.of_job(job), EngineShape.of(job)
    whole = len(sample) == len(prompts)
    share = len(sample) / len(prompts)  # of the job, which as large a share of its replicas runs
    setting = replace(setting, replicas=max(1, round(share * setting.replicas)))
    view = view_of(sample, served)
    say(f"ordering {len(sample)} captured prompts in every way")
    made = candidates_of(job, view, current.dataset_md5)
    possible = tuple(one for one in made if one.order is not None)
    say(f"replaying {len(possible)} orders of them")
    source = captured_routes(routes, sample.ids)
    requests = requests_of(job, sample, source)
    orders = {one.name: one.order.permutation for one in possible if one.order is not None}
    orders[today] = restrict(current, places).permutation
    (*predictions, runs), shuffled = predict(
        orders, requests, source, setting, known.costs, known.expert_ms_error, job.measure.seed
    )
    choices = None
    if len(routes) >= 2 * LEAST_PROMPTS:
        say("comparing them on prompts that they did not learn from")
        alone = replace(setting, replicas=1)
        specs = [one.spec for one in possible]
        learned = None if whole else _learned_today(current)
        specs += [learned] if learned and learned not in specs else []
        choices = choose(specs, view, routes, served, alone, job.measure.seed)
        if not whole:
            predictions = _shrink_learned(possible, predictions, choices)
            runs = shrink_to_unseen(runs, _saved(choices)[learned]) if learned else runs
    return OrderForecast(
        captured=len(sample),
        whole=whole,
        costs=known,
        devices=setting.devices,
        candidates=possible,
        predictions=tuple(predictions),
        today=runs,
        choices=choices,
        shuffled_s=shuffled / share * setting.replicas / job.engine.replicas,
        impossible=tuple(one for one in made if one.order is None),
    )


def _shrink_learned(made: Sequence[Candidate], predictions: Sequence[Prediction], choices: Choices) -> list[Prediction]:
    """Predictions for a job most of whose prompts taught nothing."""
    saved = _saved(choices)
    return [
        shrink_to_unseen(predicted, saved[one.spec]) if one.learns_from_routes else predicted
        for one, predicted in zip(made, predictions, strict=True)
    ]


def _learned_today(current: Order) -> OrderSpec | None:
    """The way to order of today, where it learns from routes."""
    return current.record().spec() if current.parameters.get("signal") in ROUTING_SIGNALS else None


def _saved(choices: Choices) -> dict[OrderSpec, float]:
    return {choice.spec: choice.saved for choice in choices.ranked}


def requests_of(job: Job, prompts: TokenizedPrompts, source: CapturedRoutes) -> list[list[SimRequest]]:
    """Each prompt's samples as a replay takes them, with the captured length, or the requested one where it is fixed.

    One sample of a prompt was captured; the others are assumed to be as long.
    """
    fixed = bool(job.sampling.get("ignore_eos"))
    asked = zip(asked_tokens(job, prompts.samplings), asked_samples(job, prompts.samplings), strict=True)
    requests = []
    for k, (prompt_tokens, (limit, samples)) in enumerate(zip(prompts.lengths.tolist(), asked, strict=True)):
        generated = limit if fixed and limit is not None else source.generated(k)
        requests.append([SimRequest(k, prompt_tokens, generated, sample) for sample in range(samples)])
    return requests


def _worth(job: Job, plan: Plan, forecast: OrderForecast | None, advice: Advice) -> Worth | None:
    if forecast is None or advice.candidate is None:
        return None
    pairs = zip(forecast.candidates, forecast.predictions, strict=True)
    candidate, predicted = next(pair for pair in pairs if pair[0].name == advice.candidate)
    ordering_s = candidate.seconds * plan.prompts_total / forecast.captured
    today_s = forecast.shuffled_s / (1 + forecast.today.gain)
    pass_s = today_s * len(plan.prompts) / plan.prompts_total
    gain, arms = over_today(predicted, forecast.today), len(plan.orders)
    return worth(gain, today_s, ordering_s, pass_s, plan.rule, arms, job.reporting)
