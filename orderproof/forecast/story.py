"""Before anything is spent: what could an order gain for this job, and which one should be measured?"""

from __future__ import annotations

import datetime
from collections.abc import Callable

from orderproof.forecast.planning import forecast_job
from orderproof.forecast.record import plan_run, presentation
from orderproof.job.spec import Job
from orderproof.runs import recorder
from orderproof.runs.run import Run


def plan(job: Job, report: Callable[[str], None] = lambda _: None) -> Run:
    """Forecast what each order would gain, and advise to measure one of them, to capture routes, or not to.

    Args:
        report: called with what is being done, for the seconds that it takes.

    Raises:
        OrderproofError: prompts or model that no trial could use; routes or costs of others.
    """
    started = datetime.datetime.now(datetime.UTC)
    job_forecast = forecast_job(job, report)
    run = recorder.with_origin(job, plan_run(job, job_forecast, started), None)
    report("sending the plan to MLflow")
    return recorder.keep(job, run, presentation(job_forecast))
