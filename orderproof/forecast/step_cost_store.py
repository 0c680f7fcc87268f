"""What a step costs on a job's engine: data/<job>/step_costs.json.

In: a `Calibration`, or such a file. Out: the file, written whole; `KnownCosts` of this job, or why there are none.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from orderproof.capture.calibration import Calibration
from orderproof.job.files import write_atomically
from orderproof.job.model import ModelFacts
from orderproof.job.spec import Job
from orderproof.routing.errors import RoutingError
from orderproof.routing.step_costs import StepCosts
from orderproof.signals.served_model import COSTS_FILE

SCHEMA: Literal["orderproof/step-costs/1"] = "orderproof/step-costs/1"


class KnownCosts(BaseModel):
    """Constants that were fitted, what they hold for, and how well they fit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal["orderproof/step-costs/1"] = SCHEMA
    model: str  # fingerprint
    args: dict[str, Any]  # vLLM's, of the engine that was timed
    batches: tuple[float, ...]
    base_ms: tuple[float, ...]
    expert_ms: float
    expert_ms_error: float  # standard error
    prefill_token_ms: float
    source: str
    steps: int
    r_squared: float
    residual: float  # sd of a step's residual over the mean step
    expert_ms_of_bandwidth: float | None  # to read an expert's bytes at the probe's speed

    @property
    def costs(self) -> StepCosts:
        return StepCosts(self.batches, self.base_ms, self.expert_ms, self.source, self.prefill_token_ms)

    @property
    def times_bandwidth(self) -> float | None:
        """The cost of an expert over the time to read its bytes: 1 where decode is bound by memory alone."""
        return self.expert_ms / self.expert_ms_of_bandwidth if self.expert_ms_of_bandwidth else None


def costs_path(job: Job) -> Path:
    return job.data_dir / COSTS_FILE


def write_costs(job: Job, model: ModelFacts, calibration: Calibration) -> KnownCosts:
    """Keep a calibration beside the routes that it rests on."""
    fit = calibration.fit
    known = KnownCosts(
        model=model.fingerprint,
        args=job.engine.args,
        expert_ms_error=fit.expert_ms_error,
        steps=fit.steps,
        r_squared=fit.r_squared,
        residual=fit.residual,
        expert_ms_of_bandwidth=calibration.expert_ms_of_bandwidth,
        **asdict(fit.costs),
    )
    write_atomically(costs_path(job), known.model_dump_json(indent=1) + "\n")
    return known


def read_costs(job: Job, model: ModelFacts) -> KnownCosts | None:
    """The job's constants; None: never fitted.

    Raises:
        RoutingError: the file is not readable, or is of another model or of other engine settings.
    """
    path, again = costs_path(job), f"Fit them again with `orderproof capture {job.name}`"
    try:
        known = KnownCosts.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise RoutingError(f"{path} cannot be read as constants of a step: {type(error).__name__}. {again}") from None
    if known.model != model.fingerprint or known.args != job.engine.args:
        what = "another model" if known.model != model.fingerprint else "other engine.args"
        raise RoutingError(f"{path} holds the constants of {what}. {again}")
    return known
