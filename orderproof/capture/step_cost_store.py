"""What a step costs on a job's engine, kept in data/<job>/step_costs.json."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from orderproof.capture.calibration import Calibration
from orderproof.job.files import write_atomically
from orderproof.job.model import ModelFacts
from orderproof.job.redaction import recorded_args, same_settings
from orderproof.job.spec import Job
from orderproof.routing.errors import RoutingError
from orderproof.routing.step_costs import StepCosts

SCHEMA: Literal["orderproof/step-costs/1"] = "orderproof/step-costs/1"


class StoredCosts(BaseModel):
    """Fitted constants, the model and engine they are valid for, and how well they fit."""

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


def write_costs(job: Job, model: ModelFacts, calibration: Calibration) -> StoredCosts:
    """Write a calibration beside the routes that it was fitted with."""
    fit = calibration.fit
    stored = StoredCosts(
        model=model.fingerprint,
        args=recorded_args(job),
        expert_ms_error=fit.expert_ms_error,
        steps=fit.steps,
        r_squared=fit.r_squared,
        residual=fit.residual,
        expert_ms_of_bandwidth=calibration.expert_ms_of_bandwidth,
        **asdict(fit.costs),
    )
    write_atomically(job.paths.step_costs, stored.model_dump_json(indent=1) + "\n")
    return stored


def read_costs(job: Job, model: ModelFacts) -> StoredCosts | None:
    """The job's constants; None: never fitted.

    Raises:
        RoutingError: the file is not readable, or was fitted on another model or with other engine settings.
    """
    path, remedy = job.paths.step_costs, f"Fit them again with `orderproof capture {job.name}`"
    try:
        stored = StoredCosts.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise RoutingError(f"{path} cannot be read as step costs: {type(error).__name__}. {remedy}") from None
    if stored.model != model.fingerprint or not same_settings(stored.args, recorded_args(job)):
        reason = "another model" if stored.model != model.fingerprint else "other engine.args"
        raise RoutingError(f"{path} was fitted on {reason}. {remedy}")
    return stored
