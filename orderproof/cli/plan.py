"""`orderproof plan`, before anything is spent, and what it rests on: `capture`; `lossy`, of what is not promoted.

In: a job's name. Out: what the flow or task answered, as text or JSON.
"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from orderproof.cli.conventions import PARAMS, Json, Name, NameOrAll, Params, checked_job, examples, prefect_around, say
from orderproof.cli.status import status

commands = typer.Typer()


@commands.command(
    epilog=examples("orderproof plan", "orderproof plan six-domains", "orderproof plan six-domains --json")
)
def plan(job: NameOrAll = None, params: Params = PARAMS, as_json: Json = False) -> None:
    """Before spending: what an order could gain for a job, which one to measure, or why not. Without JOB: every job."""
    if job is None:
        status(None, params, as_json)
        return
    from rich.console import Console

    from orderproof.forecast.page import PAGE_FILE, write_forecast
    from orderproof.forecast.planning import forecast_job
    from orderproof.forecast.stored_prediction import PLAN_FILE
    from orderproof.forecast.text import lines
    from orderproof.forecast.tracking import log_plan
    from orderproof.runs.recording import git_revision
    from orderproof.runs.trial_tracking import TrackingError, where_to_see

    this = checked_job(params, job)
    with Console(stderr=True).status("looking at the job") as line:
        seen = forecast_job(this, line.update)
        folder = write_forecast(this, seen)
        line.update("telling MLflow")
        run = note = None
        try:
            run = log_plan(this, dvc_revision=git_revision(this.root))
        except TrackingError as error:
            note = str(error)
    page = [f"page: {folder / PAGE_FILE}", *([f"MLflow: {where_to_see(this, run)}"] if run else [])]
    say(json.loads((folder / PLAN_FILE).read_bytes()), as_json, [*lines(seen), "", *page])
    if note:
        typer.echo(f"note: {note}", err=True)


@commands.command(
    epilog=examples("orderproof capture six-domains", "orderproof capture six-domains --prompts 256 --json")
)
def capture(
    job: Name,
    params: Params = PARAMS,
    prompts: Annotated[
        int | None, typer.Option(min=2, help="Sample so many; without it 32 batches' worth, and at least 4,096.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the sample.")] = 0,
    time_steps: Annotated[bool, typer.Option(help="Also fit what a step costs, on the job's own engine.")] = True,
    as_json: Json = False,
) -> None:
    """Which experts every token of a sample chooses: into data/JOB/routes.parquet, and what batches touch."""
    checked_job(params, job)
    with prefect_around("A capture that did not end leaves the routes of the last one as they were: run it again"):
        from flows.capture import capture_routes
        from orderproof.capture.report import lines

        report = capture_routes(job, params=str(params.resolve()), prompts=prompts, seed=seed, time_steps=time_steps)
    say(report.as_json(), as_json, ["", *lines(report)])


@commands.command(
    epilog=examples("orderproof lossy six-domains --k0 2", "orderproof lossy six-domains --blocks 10 --json")
)
def lossy(
    job: Name,
    params: Params = PARAMS,
    k0: Annotated[int, typer.Option("--k0", min=1, help="How many of its own experts a token keeps for sure.")] = 2,
    blocks: Annotated[int, typer.Option(min=5, max=40, help="Passes of each of the four arms.")] = 5,
    as_json: Json = False,
) -> None:
    """LOSSY: what another routing than the model's own would gain, and how many outputs it changes. Never promotes.

    Where its scores stay inside their margin, a person may accept it: the page says how.
    """
    checked_job(params, job)
    with prefect_around("Nothing is kept of a lossy comparison that did not end: run it again"):
        from flows.lossy import measure_lossy
        from orderproof.lossy.report import lines

        report = measure_lossy(job, params=str(params.resolve()), k0=k0, blocks=blocks)
    say(report.as_json(), as_json, ["", *lines(report)])
