"""What the last plan foretold of the order that a trial is about to measure.

In: a job and its reports/plan/<job>/plan.json. Out: `Foretold`, where that plan was about these prompts, this model,
these settings of engine and sampling, and this order; otherwise None, because a prediction of something else refuses
nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from orderproof.job.model import ModelFacts
from orderproof.job.spec import Job, OrderSpec

PLAN_FILE = "plan.json"


class StoredPrediction(BaseModel):
    """A predicted gain over shuffled, with its interval; fractions."""

    model_config = ConfigDict(frozen=True)

    gain: float
    low: float
    high: float
    # Of the job's prompts; below 1 their groups were thinner than the file's, and the gain is a low one.
    captured_share: float = 1.0


def plan_dir(job: Job) -> Path:
    """reports/plan/<job>."""
    return job.root / "reports" / "plan" / job.name


def read_stored_prediction(job: Job, model: ModelFacts, dataset_md5: str) -> StoredPrediction | None:
    """The prediction for the job's own order; None: there is none that fits."""
    try:
        plan: dict[str, Any] = json.loads((plan_dir(job) / PLAN_FILE).read_bytes())
        forecast = plan["forecast"]
        fits = (
            plan["dataset_md5"] == dataset_md5
            and plan["sampling"] == job.sampling
            and plan["facts"]["replicas"] == job.engine.replicas
            and forecast["costs"]["model"] == model.fingerprint
            and forecast["costs"]["args"] == job.engine.args
        )
        own = next(one for one in forecast["orders"] if OrderSpec.model_validate(one["order"]) == job.order)
        share = forecast["captured"] / plan["facts"]["prompts"]
        return StoredPrediction.model_validate({**own, "captured_share": share}) if fits else None
    except (OSError, ArithmeticError, ValueError, KeyError, TypeError, StopIteration):
        return None
