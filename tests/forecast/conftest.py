"""One job with a forecast, made once: prompts of two kinds, their captured routes and the costs of a step."""

from __future__ import annotations

import pytest

from orderproof.forecast import candidates
from orderproof.forecast.planning import JobForecast, forecast_job
from orderproof.job.spec import Job, OrderSpec
from tests.support.captured_job import calibrated, make_job

WAYS = [
    OrderSpec(method="file"),
    OrderSpec(method="label"),
    OrderSpec(method="greedy"),  # not possible: it needs another signal
    OrderSpec(method="label", window=64),
]


@pytest.fixture(scope="session")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, JobForecast]:
    """A job, and what is known of it before anything is spent: measure the label order."""
    job = make_job(tmp_path_factory.mktemp("plan"))
    calibrated(job)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(candidates, "_specs", lambda job, prompts: WAYS)
        return job, forecast_job(job)
