"""`orderproof status` and the commands that look at what there is: `log`, `doctor`, `ui`.

In: nothing, or a job's name. Out: what is on record, as text or JSON; `log` sends it to MLflow. No command runs a flow.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from orderproof.cli.conventions import PARAMS, Json, Name, NameOrAll, Params, examples, say
from orderproof.job.params import load_job, load_jobs

commands = typer.Typer()


@commands.command(epilog=examples("orderproof status", "orderproof status six-domains --json"))
def status(job: NameOrAll = None, params: Params = PARAMS, as_json: Json = False) -> None:
    """What each job runs in today, what the last verdict was, and how many attempts were made."""
    from orderproof.status.status import job_status
    from orderproof.status.text import status_lines

    jobs = load_jobs(params) if job is None else {job: load_job(params, job)}
    told = [job_status(one) for one in jobs.values()]
    say(told if job is None else told[0], as_json, status_lines(told))


@commands.command(name="log", epilog=examples("orderproof log six-domains", "orderproof log six-domains --placebo"))
def log_again(
    job: Name,
    params: Params = PARAMS,
    trial: Annotated[str | None, typer.Option(help="Without it the newest.")] = None,
    placebo: Annotated[bool, typer.Option(help="Look among the placebo trials.")] = False,
    as_json: Json = False,
) -> None:
    """Send to MLflow what did not reach it: batches, reproductions, a plan, a trial. Sending twice changes nothing."""
    from orderproof.forecast.tracking import log_waiting as log_plans
    from orderproof.generate.tracking import log_waiting
    from orderproof.measure.evaluate import judge
    from orderproof.measure.trial import reports_of
    from orderproof.measure.trial_store import find_trial
    from orderproof.reproduce.tracking import log_waiting as log_reproductions
    from orderproof.runs.recording import git_revision
    from orderproof.runs.trial_tracking import log_trial

    this = load_job(params, job)
    revision, reports = git_revision(this.root), reports_of(this, placebo)
    waiting: dict[str, dict[str, str | None]] = {"batch_runs": {}, "reproductions": {}, "plans": {}}
    if not (trial or placebo):
        waiting["batch_runs"] = {one.run: one.mlflow_run for one in log_waiting(this, dvc_revision=revision)}
        waiting["reproductions"] = {one.run: one.mlflow_run for one in log_reproductions(this, dvc_revision=revision)}
        waiting["plans"] = dict(log_plans(this, dvc_revision=revision))
    sent = {name: run for kind in waiting.values() for name, run in kind.items()}
    told: dict[str, Any] = {"job": job, "trial": None, "mlflow_run": None, **waiting}
    if not sent or any(reports.glob("*/manifest.json")):
        found = find_trial(reports, trial)
        run = log_trial(this, found, judge(found), dvc_revision=revision)
        told |= {"trial": found.manifest.trial, "mlflow_run": run}
    names = {told["trial"]: told["mlflow_run"], **sent}
    say(told, as_json, [f"MLflow has {name} as run {run}" for name, run in names.items() if name])


@commands.command(epilog=examples("orderproof doctor", "orderproof doctor --json"))
def doctor(params: Params = PARAMS, as_json: Json = False) -> None:
    """What is installed, which engine each job would start, and which traps are set."""
    from orderproof.doctor.examine import examine

    checks = examine(params)
    say([check.as_json() for check in checks], as_json, [check.line() for check in checks])
    raise typer.Exit(1 if any(check.state == "fail" for check in checks) else 0)


@commands.command(epilog=examples("orderproof ui", "orderproof ui --port 5001"))
def ui(params: Params = PARAMS, port: Annotated[int, typer.Option(min=1, max=65535)] = 5000) -> None:
    """Serve MLflow's pages on loopback."""
    from orderproof.runs.trial_tracking import serve_ui

    raise typer.Exit(serve_ui(params.resolve().parent, port))
