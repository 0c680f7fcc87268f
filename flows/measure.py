"""Is another order of this job's prompts worth it? Measure, decide, and pin the order if the evidence carries it.

In: the name of a job in params.yaml. Out: an `Outcome`, the trial's folder under reports/<job>/, the job's order beside
its dataset, and what MLflow, DVC and Prefect hold of them. Works with and without a Prefect server.

    orderproof measure six-domains
"""

from __future__ import annotations

from pathlib import Path

from prefect import flow, task
from prefect.cache_policies import NO_CACHE

from flows.accelerator import accelerator
from flows.measure_reporting import Reporter, announce, foretell
from flows.reporting import flow_run_id
from flows.server import end_server_with_this_process
from orderproof.engines.protocol import Engine
from orderproof.engines.start import start_engine
from orderproof.forecast.stored_prediction import read_stored_prediction
from orderproof.job.model import read_model
from orderproof.job.params import load_job
from orderproof.job.spec import Job
from orderproof.measure import plan as plans
from orderproof.measure import trial
from orderproof.measure.evaluate import judge
from orderproof.measure.outcome import Outcome, outcome_of
from orderproof.measure.plan import Plan
from orderproof.measure.reusable_verdict import find_reusable_verdict
from orderproof.measure.trial_store import Trial, read_history
from orderproof.prompts.tokenization import TokenizedPrompts
from orderproof.runs import recording, route_artifacts
from orderproof.validation.validate import validate_prompts

# NO_CACHE throughout, and no retries: the same call twice is two measurements.


@flow(name="measure-order", flow_run_name="measure {job}", persist_result=False)
def measure_order(
    job: str, params: str = "params.yaml", placebo: bool = False, only_if_changed: bool = False
) -> Outcome:
    """Measure a job's candidate order against what the job does today.

    Args:
        job: its name in params.yaml.
        params: path of params.yaml.
        placebo: compare one shuffle with others, to see what the rule says where nothing is to gain.
        only_if_changed: let the last verdict stand where neither job, prompts nor model changed since.
    """
    end_server_with_this_process()
    this = load_job(Path(params), job)
    inputs = recording.inputs_of(this)
    prompts = validate(this)
    with accelerator():  # until all is recorded: what a trial may spend depends on the one before it
        plan = make_plan(this, prompts, placebo)
        if plan.refusal:
            return announce(record(plan, recording.refuse(plan), inputs, prompts), this)
        measured, outcome = find_reusable_verdict(plan, let_stand=only_if_changed) or measure(plan)
        outcome = report(plan, measured, outcome)
        return announce(record(plan, outcome, inputs, prompts, measured), this)


def measure(plan: Plan) -> tuple[Trial, Outcome]:
    """Block after block, until a look gives the verdict."""
    foretell(plan)
    with start_engine(plan.job) as engine, Reporter(plan) as reporter:
        measured, verdict = begin(plan, engine, reporter), None
        while verdict is None:
            measured = measure_block(plan, engine, measured, len(measured.blocks()) + 1, reporter)
            verdict = judge(measured)
    return measured, outcome_of(measured, verdict)


@task(name="validate", task_run_name="validate prompts", cache_policy=NO_CACHE)
def validate(job: Job) -> TokenizedPrompts:
    """Great Expectations, before anything is spent."""
    return validate_prompts(job, job.root / "reports" / "validation" / job.name)


@task(name="plan", task_run_name="plan the trial", cache_policy=NO_CACHE)
def make_plan(job: Job, prompts: TokenizedPrompts, placebo: bool) -> Plan:
    """Arms, seeds, looks; or why nothing should be measured."""
    route_artifacts.restore_routes(job)
    model, md5, current = read_model(job.model_path, job.model, job.adapters), *recording.current_order(job, prompts)
    history, placebos = (read_history(trial.reports_of(job, placebo=kind)) for kind in (False, True))
    foretold = read_stored_prediction(job, model, md5)
    return plans.make_plan(
        job, model, prompts, md5, current, history, placebo=placebo, placebos=placebos, foretold=foretold
    )


@task(name="warm-up", task_run_name="register and warm up", cache_policy=NO_CACHE)
def begin(plan: Plan, engine: Engine, reporter: Reporter) -> Trial:
    """Register what will be measured, then one discarded pass."""
    begun = trial.begin(plan, engine, reporter.progress)
    route_artifacts.keep(plan.job, plan.chosen, begun.folder)
    return begun


@task(name="block", task_run_name="block {number}", cache_policy=NO_CACHE)
def measure_block(plan: Plan, engine: Engine, so_far: Trial, number: int, reporter: Reporter) -> Trial:
    """One pass of every arm, in an order that a coin decides."""
    after = trial.run_block(plan, engine, so_far, number, reporter.progress)
    reporter.block(after, number)
    return after


@task(name="report", task_run_name="write the page, tell MLflow", cache_policy=NO_CACHE)
def report(plan: Plan, measured: Trial, outcome: Outcome) -> Outcome:
    """The verdict in its folder, its pictures and page, and the trial in MLflow."""
    return recording.report(plan.job, measured, outcome, prefect_run=flow_run_id())


@task(name="promote", task_run_name="promote or keep, record in DVC", cache_policy=NO_CACHE)
def record(
    plan: Plan, outcome: Outcome, inputs: recording.Inputs, prompts: TokenizedPrompts, measured: Trial | None = None
) -> Outcome:
    """The order beside its dataset, in DVC, and published as far as the job asks for it."""
    return recording.record(plan, outcome, inputs, prompts, measured)
