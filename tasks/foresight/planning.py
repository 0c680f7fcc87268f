"""One job looked at before it is spent on: facts, predictions, what they are worth, and advice.

In: a job; its prompts, model, earlier trials, and its captured routes and fitted costs where there are some. Out: a
`Foresight`. Starts no engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from orderproof.tasks import recording
from orderproof.tasks.evidence import CONTROL, read_history
from orderproof.tasks.expectations import validate_prompts
from orderproof.tasks.expectations.prompt_suite import asked_tokens
from orderproof.tasks.foresight.advice import Advice, advise
from orderproof.tasks.foresight.candidates import Candidate, candidates_of
from orderproof.tasks.foresight.constants import KnownCosts, read_costs
from orderproof.tasks.foresight.economics import Worth, worth
from orderproof.tasks.foresight.facts import JobFacts, facts_of
from orderproof.tasks.foresight.prediction import Prediction, predict, unlearned
from orderproof.tasks.jobs import Job
from orderproof.tasks.models import ModelFacts, read_model
from orderproof.tasks.orders.view import view_of
from orderproof.tasks.plan import Plan, make_plan
from orderproof.tasks.prompts import TokenizedPrompts
from orderproof.tasks.routing.capture import routes_path
from orderproof.tasks.routing.choice import Choices, choose
from orderproof.tasks.routing.replay import Load
from orderproof.tasks.routing.routes import Routes, open_routes
from orderproof.tasks.routing.source import CapturedRoutes, captured_routes
from orderproof.tasks.routing.tally import Setting
from orderproof.tasks.signals.prediction import LEAST_PROMPTS
from orderproof.tasks.signals.served import Served
from orderproof.tasks.trial import reports_of
from orderproof.tasks.verdict import Rule


@dataclass(frozen=True, eq=False)
class Forecast:
    """What captured routes foretell."""

    captured: int  # prompts
    costs: KnownCosts
    candidates: tuple[Candidate, ...]  # that can be made, cheapest first
    predictions: tuple[Prediction, ...]  # of each
    choices: Choices | None  # the same ways to order on prompts they did not learn from; None: too few were captured
    shuffled_s: float  # one run of the whole job, shuffled
    impossible: tuple[Candidate, ...]  # and why


@dataclass(frozen=True, eq=False)
class Foresight:
    """The page before spending."""

    job: str
    model: ModelFacts
    facts: JobFacts
    rule: Rule  # looks to register
    detectable: float | None  # smallest gain the last look detects with 80 % power; None without earlier trials
    forecast: Forecast | None  # None: nothing was captured
    worth: Worth | None  # of the candidate that is advised
    advice: Advice
    dataset_md5: str
    sampling: dict[str, Any]  # the job's, which the predictions rest on

    @property
    def candidate(self) -> tuple[Candidate, Prediction] | None:
        """The one that is advised."""
        if self.forecast is None or self.advice.candidate is None:
            return None
        pairs = zip(self.forecast.candidates, self.forecast.predictions, strict=True)
        return next(pair for pair in pairs if pair[0].name == self.advice.candidate)


def foresee(job: Job, say: Callable[[str], None] = lambda _: None) -> Foresight:
    """Look at a job.

    Args:
        say: told what is being done, for the seconds that it takes.

    Raises:
        OrderproofError: prompts or model that no trial could use; routes or costs of others.
    """
    model = read_model(job.model_path, job.model, job.adapters)
    say("checking the prompts")
    prompts = validate_prompts(job, job.root / "reports" / "validation" / job.name)
    md5, current = recording.current_order(job, prompts)
    plan = make_plan(job, model, prompts, md5, current, read_history(reports_of(job, placebo=False)))
    facts = facts_of(job, model, prompts, current)
    forecast, routes_file = None, routes_path(job)
    if plan.refusal is None and routes_file.exists():
        known = read_costs(job, model)
        if known is not None:
            with open_routes(routes_file, model, md5) as routes:
                forecast = _forecast(job, prompts, routes, known, md5, say)
    advice = advise(plan.refusal, forecast, plan.rule, job, plan.detectable_gain_before, routes_file.exists())
    return Foresight(
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
    )


def _forecast(
    job: Job,
    prompts: TokenizedPrompts,
    routes: Routes,
    known: KnownCosts,
    dataset_md5: str,
    say: Callable[[str], None],
) -> Forecast:
    captured = np.array([k for k, prompt_id in enumerate(prompts.ids) if prompt_id in routes.place], np.int64)
    sample = prompts.take(captured)
    served, setting = Served.by(job), Setting.of(job)
    view = view_of(sample, served)
    say(f"ordering {len(sample)} captured prompts in every way")
    made = candidates_of(job, view, dataset_md5)
    possible = tuple(one for one in made if one.order is not None)
    say(f"replaying {len(possible)} orders of them")
    source = captured_routes(routes, sample.ids)
    loads = loads_of(job, sample, routes, source)
    orders = {one.name: one.order.permutation for one in possible if one.order is not None}
    predictions, shuffled = predict(
        orders, loads, source, setting, known.costs, known.expert_ms_error, job.measure.seed
    )
    choices = None
    if len(routes) >= 2 * LEAST_PROMPTS:
        say("asking them of prompts that they did not learn from")
        choices = choose([one.spec for one in possible], view, routes, served, setting, job.measure.seed)
        if len(sample) < len(prompts):
            predictions = _unlearned(possible, predictions, choices)
    return Forecast(
        captured=len(sample),
        costs=known,
        candidates=possible,
        predictions=tuple(predictions),
        choices=choices,
        shuffled_s=shuffled * len(prompts) / len(sample) / job.engine.replicas,
        impossible=tuple(one for one in made if one.order is None),
    )


def _unlearned(made: Sequence[Candidate], predictions: Sequence[Prediction], choices: Choices) -> list[Prediction]:
    """Predictions for a job most of whose prompts taught nothing."""
    saved = {choice.spec: choice.saved for choice in choices.ranked}
    return [
        unlearned(foretold, saved[one.spec]) if one.learns_from_routes else foretold
        for one, foretold in zip(made, predictions, strict=True)
    ]


def loads_of(job: Job, prompts: TokenizedPrompts, routes: Routes, source: CapturedRoutes) -> list[Load]:
    """The prompts as a replay takes them, with the lengths that were seen, or that are asked where they are fixed."""
    fixed = bool(job.sampling.get("ignore_eos"))
    loads = []
    for k, (read, most) in enumerate(zip(prompts.lengths, asked_tokens(job, prompts.samplings), strict=True)):
        made = int(routes.decode_tokens[source.stand_in(k)]) + 1
        loads.append(Load(k, int(read), most if fixed and most is not None else made))
    return loads


def _worth(job: Job, plan: Plan, forecast: Forecast | None, advice: Advice) -> Worth | None:
    if forecast is None or advice.candidate is None:
        return None
    pairs = zip(forecast.candidates, forecast.predictions, strict=True)
    candidate, foretold = next(pair for pair in pairs if pair[0].name == advice.candidate)
    ordering_s = candidate.seconds * plan.prompts_total / forecast.captured
    # What is won is won over today's order, which may group already: then it is an arm of the trial itself.
    control = plan.orders[CONTROL]
    grouped = control is not None and control.method == "file"
    today = next(one.gain for one in forecast.predictions if one.name == "file") if grouped else 0.0
    gain, low, high = ((1 + one) / (1 + today) - 1 for one in (foretold.gain, foretold.low, foretold.high))
    today_s = forecast.shuffled_s / (1 + today)
    pass_s = today_s * len(plan.prompts) / plan.prompts_total
    return worth((gain, low, high), today_s, ordering_s, pass_s, plan.rule, len(plan.orders), job.reporting)
