"""The steps of a lossy comparison as Prefect tasks."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from orderproof.lossy import steps
from orderproof.lossy.story import Steps
from tasks.accelerator import accelerator
from tasks.artifacts import prefect_run
from tasks.progress import PrefectProgress

STEPS = Steps(
    validate=task(task_run_name="validate prompts", cache_policy=NO_CACHE)(steps.validate),
    choose_order=task(task_run_name="take or make the order", cache_policy=NO_CACHE)(steps.choose_order),
    compare=task(task_run_name="measure the arms side by side", cache_policy=NO_CACHE)(steps.compare),
    report=task(task_run_name="keep the evidence, record in DVC", cache_policy=NO_CACHE)(steps.report),
    accelerator=accelerator,
    progress=PrefectProgress,
    prefect_run=prefect_run,
)
