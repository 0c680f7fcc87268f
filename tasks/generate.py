"""The steps of the job itself as Prefect tasks."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from orderproof.generate import steps
from orderproof.generate.story import Steps
from tasks.accelerator import accelerator
from tasks.artifacts import prefect_run
from tasks.progress import PrefectProgress

STEPS = Steps(
    validate=task(task_run_name="validate prompts", cache_policy=NO_CACHE)(steps.validate),
    choose_order=task(task_run_name="take or make the order", cache_policy=NO_CACHE)(steps.choose_order),
    open_stream=task(task_run_name="open the stream", cache_policy=NO_CACHE)(steps.open_stream),
    generate=task(task_run_name="generate", cache_policy=NO_CACHE)(steps.generate),
    restore=task(task_run_name="restore the file's order, validate outputs", cache_policy=NO_CACHE)(steps.restore),
    report=task(task_run_name="page, picture, MLflow", cache_policy=NO_CACHE)(steps.report),
    record=task(task_run_name="record in DVC", cache_policy=NO_CACHE)(steps.record),
    accelerator=accelerator,
    progress=PrefectProgress,
    prefect_run=prefect_run,
)
