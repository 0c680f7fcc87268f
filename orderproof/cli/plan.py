"""`orderproof plan`, before anything is spent, and what it rests on: `capture`; and `lossy`, which never promotes."""

from __future__ import annotations

from typing import Annotated

import typer

from orderproof.cli.conventions import (
    PARAMS,
    Json,
    Name,
    NameOrAll,
    Params,
    checked_job,
    examples,
    log_to_standard_error,
    print_run,
)
from orderproof.cli.status import status

commands = typer.Typer()


@commands.command(
    epilog=examples("orderproof plan", "orderproof plan six-domains", "orderproof plan six-domains --json")
)
def plan(job: NameOrAll = None, params: Params = PARAMS, as_json: Json = False) -> None:
    """Before spending: what an order could gain for a job, which one to measure, or why not. Without JOB: every job."""
    if job is None:
        status(None, params, as_json=as_json)
        return
    from rich.console import Console

    from orderproof.forecast.story import plan as plan_job

    checked = checked_job(params, job)
    with Console(stderr=True).status("reading the job") as line:
        run = plan_job(checked, line.update)
    print_run(checked, run, as_json)


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
    """Which experts every token of a sample chooses: into data/JOB/routes.parquet, and what batches read.

    A capture that is stopped leaves the routes of the last one as they were.
    """
    checked = checked_job(params, job)
    log_to_standard_error()
    from orderproof.capture.story import capture as capture_routes

    print_run(checked, capture_routes(checked, prompts=prompts, seed=seed, time_steps=time_steps), as_json)


@commands.command(
    epilog=examples("orderproof lossy six-domains --k0 2", "orderproof lossy six-domains --blocks 10 --json")
)
def lossy(
    job: Name,
    params: Params = PARAMS,
    k0: Annotated[int, typer.Option("--k0", min=1, help="How many of its own experts a token keeps.")] = 2,
    blocks: Annotated[int, typer.Option(min=5, max=40, help="Passes of each of the four arms.")] = 5,
    as_json: Json = False,
) -> None:
    """LOSSY: what another routing than the model's own would gain, and how many outputs it changes. Never promotes.

    Where its scores stay inside their margin, a person may accept it: the page says how.
    """
    checked = checked_job(params, job)
    log_to_standard_error()
    from orderproof.lossy.story import compare_routings

    print_run(checked, compare_routings(checked, k0=k0, blocks=blocks), as_json)
