"""The steps of a capture as Prefect tasks."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from orderproof.capture import steps
from orderproof.capture.story import Steps
from tasks.accelerator import accelerator
from tasks.artifacts import prefect_run
from tasks.progress import PrefectProgress

STEPS = Steps(
    validate=task(task_run_name="validate prompts", cache_policy=NO_CACHE)(steps.validate),
    draw_sample=task(task_run_name="draw the sample", cache_policy=NO_CACHE)(steps.draw_sample),
    capture=task(task_run_name="capture the sample's routes", cache_policy=NO_CACHE)(steps.capture),
    learn=task(task_run_name="learn to predict routes", cache_policy=NO_CACHE)(steps.learn),
    calibrate=task(task_run_name="time some steps", cache_policy=NO_CACHE)(steps.calibrate),
    report=task(task_run_name="tabulate and draw", cache_policy=NO_CACHE)(steps.report),
    accelerator=accelerator,
    progress=PrefectProgress,
    prefect_run=prefect_run,
)
