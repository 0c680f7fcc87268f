"""What is kept of a `JobForecast`: reports/plan/<job>/ with plan.json, plan.png and plan.html.

In: a `JobForecast`. Out: files, and the shape of `--json`. Decides nothing.
"""

from __future__ import annotations

import datetime
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from orderproof.forecast.picture import draw
from orderproof.forecast.planning import JobForecast, OrderForecast
from orderproof.forecast.prediction import over_today
from orderproof.forecast.stored_prediction import PLAN_FILE, plan_dir
from orderproof.forecast.text import COLUMNS, describe_basis, describe_job, describe_worth, order_in_params, order_rows
from orderproof.job.files import write_atomically
from orderproof.job.spec import Job
from orderproof.measure.page import data_uri, render

SCHEMA = "orderproof/plan/1"
PICTURE_FILE, PAGE_FILE = "plan.png", "plan.html"


def write_forecast(job: Job, seen: JobForecast) -> Path:
    """plan.json, plan.html, and plan.png where there are predictions. Returns the folder."""
    folder, now = plan_dir(job), datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    told = {**as_json(seen), "created_utc": now, "mlflow_run": None}
    if seen.forecast:
        draw(seen, folder / PICTURE_FILE)
    else:
        (folder / PICTURE_FILE).unlink(missing_ok=True)  # of an earlier plan
    write_atomically(folder / PAGE_FILE, render("plan.html.j2", _facts(seen, folder, now)))
    write_atomically(folder / PLAN_FILE, json.dumps(told, indent=1, ensure_ascii=False) + "\n")
    return folder


def as_json(seen: JobForecast) -> dict[str, Any]:
    """The stable shape of `--json`. Gains and shares are fractions, times seconds; absent things are null."""
    forecast, facts = seen.forecast, seen.facts
    return {
        "schema": SCHEMA,
        "job": seen.job,
        "toy": seen.model.toy,
        "dataset_md5": seen.dataset_md5,
        "sampling": seen.sampling,
        "left_out": list(seen.left_out),
        "model": seen.model.as_dict(),
        "facts": {**asdict(facts), "prefill_share": facts.prefill_share, "batches": facts.batches},
        "looks": list(seen.rule.looks),
        "detectable_gain": seen.detectable,
        "advice": asdict(seen.advice),
        "order": order_in_params(seen.candidate[0].spec) if seen.candidate else None,
        "worth": asdict(seen.worth) if seen.worth else None,
        "forecast": _forecast_json(forecast) if forecast else None,
    }


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
                **asdict(foretold),
                "gain_over_today": over_today(foretold, forecast.today)[0],
                "order": order_in_params(one.spec),
                "experts_saved_held_out": held_out.get(one.spec),
                "seconds": one.seconds,
            }
            for one, foretold in zip(forecast.candidates, forecast.predictions, strict=True)
        ],
        "impossible": {one.name: one.problem for one in forecast.impossible},
    }


def _facts(seen: JobForecast, folder: Path, created_utc: str) -> dict[str, Any]:
    """Everything that the template names."""
    forecast = seen.forecast
    return {
        "seen": seen,
        "created_utc": created_utc,
        "headline": _headline(seen),
        "gain": over_today(seen.candidate[1], forecast.today) if forecast and seen.candidate else None,
        "picture": data_uri(folder / PICTURE_FILE) if forecast else None,
        "facts": list(describe_job(seen)),
        "worth": list(describe_worth(seen)),
        "basis": describe_basis(forecast) if forecast else "",
        "columns": COLUMNS,
        "rows": list(order_rows(forecast)) if forecast else [],
        "impossible": forecast.impossible if forecast else (),
    }


def _headline(seen: JobForecast) -> str:
    return {
        "measure": f"Measure this order: {seen.advice.candidate}",
        "don't": "Don't measure: no order is worth a trial here",
        "capture": "Nothing is foretold yet: capture some routes first",
    }[seen.advice.answer]
