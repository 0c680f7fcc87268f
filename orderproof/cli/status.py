"""`orderproof status` and the commands that look at what there is: `log`, `doctor`, `ui`."""

from __future__ import annotations

from typing import Annotated

import typer

from orderproof.cli.conventions import PARAMS, Json, Name, NameOrAll, Params, examples, print_answer
from orderproof.job.params import load_job, load_jobs
from orderproof.job.spec import Job

commands = typer.Typer()


@commands.command(
    epilog=examples("orderproof status", "orderproof status six-domains --json", "orderproof status --savings")
)
def status(
    job: NameOrAll = None,
    params: Params = PARAMS,
    savings: Annotated[
        bool, typer.Option("--savings", help="What measuring cost and what promoted orders saved, from the ledgers.")
    ] = False,
    as_json: Json = False,
) -> None:
    """What each job runs in today, its last runs, and whether one is at work now."""
    from orderproof.status.status import read_status
    from orderproof.status.text import status_block, status_table

    jobs = load_jobs(params) if job is None else {job: load_job(params, job)}
    if savings:
        _print_savings(jobs, as_json)
        return
    statuses = [read_status(each) for each in jobs.values()]
    written = [each.model_dump(mode="json") for each in statuses]
    if job is None:
        print_answer(written, as_json, status_table(statuses))
    else:
        print_answer(written[0], as_json, status_block(statuses[0]))


def _print_savings(jobs: dict[str, Job], as_json: bool) -> None:
    from orderproof.status.savings import by_month, read_ledgers, sum_up
    from orderproof.status.text import ALL_JOBS, savings_lines

    ledgers = read_ledgers(jobs)
    entries = [entry for rows in ledgers.values() for entry in rows]
    savings = {name: sum_up(rows) for name, rows in ledgers.items()} | {ALL_JOBS: sum_up(entries)}
    months = by_month(entries)
    answer = {
        "jobs": {name: row.as_json() for name, row in savings.items() if name != ALL_JOBS},
        "all": savings[ALL_JOBS].as_json(),
        "months": {month: row.as_json() for month, row in months.items()},
    }
    print_answer(answer, as_json, savings_lines(savings, months))


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
