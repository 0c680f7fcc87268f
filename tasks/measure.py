"""The steps of a measurement as Prefect tasks."""

from __future__ import annotations

from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

from orderproof.engines.protocol import Engine
from orderproof.measure import steps
from orderproof.measure.plan import Plan
from orderproof.measure.story import Steps
from orderproof.measure.trial_progress import TrialProgress, block_gain, pass_row
from orderproof.measure.trial_store import Trial
from tasks.accelerator import accelerator
from tasks.artifacts import artifact_key, best_effort, prefect_run
from tasks.progress import PrefectProgress


@task(name="run block", task_run_name="block {number}", cache_policy=NO_CACHE)
def run_block(plan: Plan, engine: Engine, so_far: Trial, number: int, progress: TrialProgress) -> Trial:
    """The library's step, and a table of the block's passes."""
    after = steps.run_block(plan, engine, so_far, number, progress)
    rows = [pass_row(timed) for timed in after.passes if timed.block == number]
    gain = block_gain(after, number)
    description = f"block {number}: " + ("incomplete" if gain is None else f"candidate {gain:+.1%}")
    with best_effort("the block's table"):
        create_table_artifact(rows, key=artifact_key("block", plan.job.name), description=description)
    return after


STEPS = Steps(
    validate=task(task_run_name="validate prompts", cache_policy=NO_CACHE)(steps.validate),
    make_plan=task(task_run_name="plan the trial", cache_policy=NO_CACHE)(steps.make_plan),
    warm_up=task(task_run_name="register and warm up", cache_policy=NO_CACHE)(steps.warm_up),
    run_block=run_block,
    report=task(task_run_name="page, pictures, MLflow", cache_policy=NO_CACHE)(steps.report),
    refuse=task(task_run_name="refuse", cache_policy=NO_CACHE)(steps.refuse),
    promote=task(task_run_name="promote or keep, record in DVC", cache_policy=NO_CACHE)(steps.promote),
    accelerator=accelerator,
    progress=PrefectProgress,
    prefect_run=prefect_run,
)
