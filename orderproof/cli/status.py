"""`orderproof status` and the commands that look at what there is: `log`, `doctor`, `ui`."""

from __future__ import annotations

from typing import Annotated

import typer

from orderproof.cli.conventions import PARAMS, Json, Name, NameOrAll, Params, examples, print_answer
from orderproof.job.params import load_job, load_jobs

commands = typer.Typer()


@commands.command(epilog=examples("orderproof status", "orderproof status six-domains --json"))
def status(job: NameOrAll = None, params: Params = PARAMS, as_json: Json = False) -> None:
    """What each job runs in today, its last runs, and whether one is at work now."""
    from orderproof.status.status import read_status
    from orderproof.status.text import status_block, status_table

    jobs = load_jobs(params) if job is None else {job: load_job(params, job)}
    statuses = [read_status(each) for each in jobs.values()]
    written = [each.model_dump(mode="json") for each in statuses]
    if job is None:
        print_answer(written, as_json, status_table(statuses))
    else:
        print_answer(written[0], as_json, status_block(statuses[0]))


@commands.command(name="log", epilog=examples("orderproof log six-domains", "orderproof log six-domains --json"))
def log_again(job: Name, params: Params = PARAMS, as_json: Json = False) -> None:
    """Send to MLflow every run that did not reach it. Sending twice changes nothing."""
    from orderproof.status.unsent import send_unsent

    sent = send_unsent(load_job(params, job))
    answer = {"job": job, "sent": [{"verb": run.verb, "id": run.id, "mlflow_run": run.mlflow_run} for run in sent]}
    lines = [f"MLflow has {run.verb} {run.id} as run {run.mlflow_run}" for run in sent]
    print_answer(answer, as_json, lines or [f"MLflow has all runs of {job}"])


@commands.command(epilog=examples("orderproof doctor", "orderproof doctor --json"))
def doctor(params: Params = PARAMS, as_json: Json = False) -> None:
    """What is installed, which engine each job would start, and which traps are set."""
    from orderproof.doctor.examine import examine

    checks = examine(params)
    print_answer([check.as_json() for check in checks], as_json, [check.line() for check in checks])
    raise typer.Exit(1 if any(check.state == "fail" for check in checks) else 0)


@commands.command(epilog=examples("orderproof ui", "orderproof ui --port 5001"))
def ui(params: Params = PARAMS, port: Annotated[int, typer.Option(min=1, max=65535)] = 5000) -> None:
    """Serve MLflow's pages on loopback."""
    from orderproof.runs.mlflow_client import serve_ui

    raise typer.Exit(serve_ui(params.resolve().parent, port))
