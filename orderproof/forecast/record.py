"""A forecast as the record of a run, with its picture and page."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from orderproof.forecast.picture import draw
from orderproof.forecast.planning import JobForecast, OrderForecast
from orderproof.forecast.prediction import over_today
from orderproof.forecast.text import (
    COLUMNS,
    describe_basis,
    describe_job,
    describe_worth,
    lines,
    order_in_params,
    order_rows,
)
from orderproof.job.spec import Job
from orderproof.measure.predicted_gain import PredictedOrder, PredictedOrders
from orderproof.runs.mlflow_run import Tracking
from orderproof.runs.page import data_uri, render
from orderproof.runs.recorder import Presentation
from orderproof.runs.run import Basis, Figure, Run
from orderproof.runs.run_store import identity_of

PICTURE_FILE = "gains.png"
FACTS = ("batch", "replicas", "samples", "prompt_tokens", "output_tokens", "prefill_share", "batches",
         "touched", "touched_sorted", "neighbours_p", "labels")  # fmt: skip
WORTH = ("today_s", "saved_s", "saved_low_s", "saved_high_s", "ordering_s", "trial_s")


def plan_run(job: Job, job_forecast: JobForecast, started: datetime.datetime) -> Run:
    """The run of a plan."""
    first, *rest = lines(job_forecast)
    spec = order_in_params(job_forecast.candidate[0].spec) if job_forecast.candidate else None
    edit = f"set jobs.{job.name}.order to {json.dumps(spec)} in params.yaml, then " if spec else ""
    commands = {
        "measure": f"{edit}orderproof measure {job.name}",
        "don't": f"orderproof generate {job.name}",
        "capture": f"orderproof capture {job.name}",
    }
    return Run(
        **identity_of(job, "plan", started),
        answer=job_forecast.advice.answer,
        sentence=first.strip(),
        lines=(*rest, *job_forecast.facts.left_out_lines),
        next_command=commands[job_forecast.advice.answer],
        basis=Basis.of(job, job_forecast.model, job_forecast.dataset_md5, job_forecast.facts.prompts),
        figures=tuple(_figures(job_forecast)),
        details=_details(job, job_forecast, spec),
    )


def presentation(job_forecast: JobForecast) -> Presentation:
    """Picture, page and MLflow's part of a plan."""

    def draw_gains(folder: Path) -> None:
        if job_forecast.forecast:
            draw(job_forecast, folder / PICTURE_FILE)

    return Presentation(
        draw=draw_gains,
        page=lambda run, folder: render("plan.html.j2", _facts(job_forecast, run, folder)),
        tracking=tracking_of,
    )


def tracking_of(run: Run) -> Tracking:
    """What a plan adds to its MLflow run."""
    advice = run.details.get("advice")
    candidate = advice.get("candidate") if isinstance(advice, dict) else None
    order = run.details.get("order")
    return Tracking(
        tags={"advice": run.answer},
        params={
            "candidate": candidate or "none",
            "order.params": json.dumps(order) if order else "none",
            "looks": run.details.get("looks"),
        },
    )


def _details(job: Job, job_forecast: JobForecast, spec: dict[str, Any] | None) -> dict[str, Any]:
    """Gains and shares are fractions, times seconds; absent things are null."""
    forecast, facts = job_forecast.forecast, job_forecast.facts
    details = {
        "left_out": list(job_forecast.left_out),
        "model": job_forecast.model.as_dict(),
        "facts": {**asdict(facts), "prefill_share": facts.prefill_share, "batches": facts.batches},
        "looks": list(job_forecast.rule.looks),
        "advice": asdict(job_forecast.advice),
        "order": spec,
        "worth": asdict(job_forecast.worth) if job_forecast.worth else None,
        "forecast": _forecast_json(forecast) if forecast else None,
        "predicted": _predicted(job, job_forecast).model_dump(mode="json") if forecast else None,
    }
    written: dict[str, Any] = json.loads(json.dumps(details))  # tuples are lists in JSON
    return written


def _predicted(job: Job, job_forecast: JobForecast) -> PredictedOrders:
    """What a trial reads of it."""
    assert job_forecast.forecast is not None
    pairs = zip(job_forecast.forecast.candidates, job_forecast.forecast.predictions, strict=True)
    return PredictedOrders(
        args=job_forecast.forecast.costs.args,
        replicas=job.engine.replicas,
        captured_share=job_forecast.forecast.captured / job_forecast.facts.prompts,
        orders=tuple(
            PredictedOrder(spec=candidate.spec, gain=predicted.gain, low=predicted.low, high=predicted.high)
            for candidate, predicted in pairs
        ),
    )


def _figures(job_forecast: JobForecast) -> Iterator[Figure]:
    facts = {
        **asdict(job_forecast.facts),
        "prefill_share": job_forecast.facts.prefill_share,
        "batches": job_forecast.facts.batches,
    }
    yield Figure(name="prompts", value=job_forecast.facts.prompts)
    for name in FACTS:
        yield Figure(name=name, value=facts[name])
    if job_forecast.worth:
        for name in WORTH:
            yield Figure(name=name, value=getattr(job_forecast.worth, name))
    yield Figure(name="detectable_gain", value=job_forecast.detectable)
    if job_forecast.forecast is None:
        return
    forecast = job_forecast.forecast
    yield Figure(name="captured", value=forecast.captured)
    yield Figure(name="shuffled_s", value=forecast.shuffled_s)
    yield Figure(name="oracle_saves", value=forecast.choices.headroom if forecast.choices else None)
    yield Figure(name="today_gain", value=forecast.today.gain)
    for candidate, predicted in zip(forecast.candidates, forecast.predictions, strict=True):
        name = candidate.name.replace(",", "")  # MLflow allows no comma in a name
        yield Figure(name=f"gain/{name}", value=predicted.gain, low=predicted.low, high=predicted.high)
        yield Figure(name=f"experts_saved/{name}", value=predicted.experts_saved)
        if candidate.name == job_forecast.advice.candidate:
            yield Figure(name="predicted_gain", value=predicted.gain, low=predicted.low, high=predicted.high)


def _forecast_json(forecast: OrderForecast) -> dict[str, Any]:
    held_out = {choice.spec: choice.saved for choice in forecast.choices.ranked} if forecast.choices else {}
    return {
        "captured": forecast.captured,
        "shuffled_s": forecast.shuffled_s,
        "today": asdict(forecast.today),
        "costs": forecast.costs.model_dump(mode="json"),
        "oracle_saves": forecast.choices.headroom if forecast.choices else None,
        "orders": [
            {
                **asdict(predicted),
                "gain_over_today": over_today(predicted, forecast.today)[0],
                "order": order_in_params(candidate.spec),
                "experts_saved_held_out": held_out.get(candidate.spec),
                "seconds": candidate.seconds,
            }
            for candidate, predicted in zip(forecast.candidates, forecast.predictions, strict=True)
        ],
        "impossible": {candidate.name: candidate.problem for candidate in forecast.impossible},
    }


def _facts(job_forecast: JobForecast, run: Run, folder: Path) -> dict[str, Any]:
    """Everything that the template names."""
    forecast = job_forecast.forecast
    return {
        "job_forecast": job_forecast,
        "created_utc": run.ended_utc,
        "headline": _headline(job_forecast),
        "gain": over_today(job_forecast.candidate[1], forecast.today) if forecast and job_forecast.candidate else None,
        "picture": data_uri(folder / PICTURE_FILE) if forecast else None,
        "facts": list(describe_job(job_forecast)),
        "worth": list(describe_worth(job_forecast)),
        "basis": describe_basis(forecast) if forecast else "",
        "columns": COLUMNS,
        "rows": list(order_rows(forecast)) if forecast else [],
        "impossible": forecast.impossible if forecast else (),
    }


def _headline(job_forecast: JobForecast) -> str:
    return {
        "measure": f"Measure this order: {job_forecast.advice.candidate}",
        "don't": "Do not measure: no order is worth a trial here",
        "capture": "Nothing is predicted yet: capture some routes first",
    }[job_forecast.advice.answer]
