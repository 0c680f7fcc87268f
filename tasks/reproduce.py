"""The steps of a reproduction as Prefect tasks."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from orderproof.reproduce import steps
from orderproof.reproduce.story import Steps
from tasks import generate

STEPS = Steps(
    generation=generate.STEPS,
    find_baseline=task(task_run_name="find the baseline", cache_policy=NO_CACHE)(steps.find_baseline),
    compare=task(task_run_name="compare with the baseline", cache_policy=NO_CACHE)(steps.compare),
    report=task(task_run_name="page, picture, MLflow", cache_policy=NO_CACHE)(steps.report),
    record=task(task_run_name="record in DVC", cache_policy=NO_CACHE)(steps.record),
)
