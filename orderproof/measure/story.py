"""Is another order of this job's prompts worth it? Measure, decide, and promote it if the evidence justifies it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from orderproof.engines.accelerator_lock import hold_accelerator
from orderproof.engines.protocol import Engine
from orderproof.engines.start import start_engine
from orderproof.job.spec import Job
from orderproof.measure import steps
from orderproof.measure.evaluate import judge
from orderproof.measure.plan import Plan
from orderproof.measure.preflight import refuse_model
from orderproof.measure.reusable_verdict import find_reusable_verdict
from orderproof.measure.steps import Outcome
from orderproof.measure.trial_progress import TrialProgress
from orderproof.measure.trial_store import Trial
from orderproof.prompts.tokenization import TokenizedPrompts
from orderproof.runs.inputs import Inputs, take_inputs
from orderproof.runs.progress import NewProgress, TerminalProgress
from orderproof.runs.run import Run


@dataclass(frozen=True)
class Steps:
    """The steps of a measurement. A flow puts Prefect tasks in their places."""

    validate: Callable[[Job], TokenizedPrompts] = steps.validate
    make_plan: Callable[[Job, TokenizedPrompts, Inputs, bool], Plan] = steps.make_plan
    warm_up: Callable[[Plan, Engine, TrialProgress], Trial] = steps.warm_up
    run_block: Callable[[Plan, Engine, Trial, int, TrialProgress], Trial] = steps.run_block
    report: Callable[[Plan, Outcome, str | None], Run] = steps.report
    refuse: Callable[[Job, Inputs, str, str | None], Run] = steps.refuse
    promote: Callable[[Plan, Run, Outcome, Inputs, TokenizedPrompts], Run] = steps.promote
    accelerator: Callable[[], AbstractContextManager[None]] = hold_accelerator
    progress: NewProgress = TerminalProgress
    prefect_run: Callable[[], str | None] = lambda: None


def measure(job: Job, *, aa: bool = False, only_if_changed: bool = False, run_with: Steps | None = None) -> Run:
    """Measure a job's candidate order against what the job does today.

    Args:
        aa: compare shuffles with shuffles, where nothing is to gain; never promotes.
        only_if_changed: keep the last verdict where neither job, prompts nor model changed since.

    Raises:
        OrderproofError: prompts, model or engine cannot be used, or changed during the run.
    """
    run_with = run_with or Steps()
    inputs, prefect_run = take_inputs(job), run_with.prefect_run()
    if not aa and (reason := refuse_model(job, inputs.model)):  # before the prompts are read: this takes no time
        return run_with.refuse(job, inputs, reason, prefect_run)
    prompts = run_with.validate(job)
    with run_with.accelerator():  # until all is recorded: what a trial may spend depends on the one before it
        plan = run_with.make_plan(job, prompts, inputs, aa)
        if plan.refusal:
            return run_with.refuse(job, inputs, plan.refusal, prefect_run)
        outcome = find_reusable_verdict(plan, only_if_changed=only_if_changed) or run_trial(plan, run_with)
        run = run_with.report(plan, outcome, prefect_run)
        return run_with.promote(plan, run, outcome, inputs, prompts)


def run_trial(plan: Plan, run_with: Steps) -> Outcome:
    """Run block after block, until a look gives the verdict."""
    with start_engine(plan.job) as engine, TrialProgress(plan, run_with.progress) as progress:
        trial, verdict = run_with.warm_up(plan, engine, progress), None
        while verdict is None:
            trial = run_with.run_block(plan, engine, trial, len(trial.blocks()) + 1, progress)
            verdict = judge(trial)
    return Outcome(trial, verdict)
