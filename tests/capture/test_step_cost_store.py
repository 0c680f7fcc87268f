"""What a step costs is read again only for what it was fitted to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orderproof.capture.step_cost_store import read_costs
from orderproof.job.spec import Job
from orderproof.routing.errors import RoutingError
from tests.support.captured_job import COSTS, calibrated, model_of
from tests.support.captured_job import make_job as make_captured


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    job = make_captured(tmp_path_factory.mktemp("constants"), captured=32)
    calibrated(job)
    return job


def test_what_was_fitted_is_read_again(job: Job) -> None:
    known = read_costs(job, model_of(job))
    assert known is not None
    assert known.costs == COSTS
    assert (known.steps, known.r_squared, known.expert_ms_of_bandwidth) == (400, 0.9, 0.05)
    assert known.times_bandwidth == pytest.approx(2)
    assert known.model_copy(update={"expert_ms_of_bandwidth": None}).times_bandwidth is None


def test_a_job_that_was_never_timed_has_no_constants(job: Job) -> None:
    assert read_costs(job.model_copy(update={"name": "other"}), model_of(job)) is None


def test_constants_of_another_model_or_engine_are_refused(job: Job) -> None:
    other = job.model_copy(update={"engine": job.engine.model_copy(update={"args": {"max_num_seqs": 4}})})
    with pytest.raises(RoutingError, match=r"another model.*orderproof capture it"):
        read_costs(job, replace(model_of(job), fingerprint="other"))
    with pytest.raises(RoutingError, match=r"other engine\.args"):
        read_costs(other, model_of(job))


@pytest.mark.parametrize("content", ["", "{}", "[1]", None])
def test_a_damaged_or_a_newer_file_is_named_with_what_to_do(job: Job, tmp_path: Path, content: str | None) -> None:
    broken = job.model_copy(update={"root": tmp_path})
    if content is None:
        content = job.paths.step_costs.read_text().replace("step-costs/1", "step-costs/2")
    broken.paths.step_costs.parent.mkdir(parents=True)
    broken.paths.step_costs.write_text(content)
    with pytest.raises(RoutingError, match=r"step_costs\.json cannot be read.*orderproof capture it"):
        read_costs(broken, model_of(job))
