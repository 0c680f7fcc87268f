"""`orderproof generate`, the job itself, and `reproduce`, the job again beside the outputs that it gave."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Annotated

import typer

from orderproof.cli.conventions import (
    PARAMS,
    Json,
    Name,
    Params,
    checked_job,
    examples,
    log_to_standard_error,
    print_run,
)

commands = typer.Typer()

Restart = Annotated[bool, typer.Option(help="Begin anew; an unfinished run's results are moved aside, never deleted.")]
Stream = Annotated[
    str | None,
    typer.Option(
        metavar="STREAM",
        help="Instead of the job's own prompts, JSON lines as they come: `-` for standard input, or a path. They "
        "are ordered window by window in the promoted way and kept in data/JOB/streamed.jsonl, outside DVC.",
    ),
]
Follow = Annotated[
    float | None,
    typer.Option(min=0, metavar="SECONDS", help="STREAM is a file that grows: it ends when nothing was added so long."),
]
Linger = Annotated[
    float | None,
    typer.Option(
        min=0,
        metavar="SECONDS",
        show_default="5.0",
        help="Of STREAM: while the engine has less to do than it could, a window waits so long for its next prompt.",
    ),
]
Output = Annotated[
    str | None,
    typer.Option(
        help="Results as JSON lines too, in the prompts' order, a window as soon as it is complete: a path, or `-`."
    ),
]


@commands.command(
    epilog=examples(
        "orderproof generate six-domains",
        "orderproof generate six-domains --json",
        "orderproof generate six-domains --restart",
        "producer | orderproof generate six-domains --prompts - --output - | consumer",
        "orderproof generate six-domains --prompts growing.jsonl --follow 60",
    )
)
def generate(
    job: Name,
    params: Params = PARAMS,
    restart: Restart = False,
    prompts: Stream = None,
    follow: Follow = None,
    linger: Linger = None,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Run the whole job in its promoted order into data/JOB/outputs.parquet; after a crash, go on where it was.

    A stream goes on too: give the same prompts from the beginning again, and those that are finished are not sent.
    """
    if prompts is None:
        _refuse_without_stream(follow=follow, linger=linger)
    checked = checked_job(params, job)
    log_to_standard_error()
    from orderproof.generate.story import generate as generate_job
    from orderproof.prompts.stream import LINGER_S, Stream

    stream = None
    if prompts is not None:
        path = prompts if prompts == "-" else os.path.abspath(prompts)
        stream = Stream(path, follow, LINGER_S if linger is None else linger)
    run = generate_job(checked, restart=restart, stream=stream, output=output)
    with contextlib.redirect_stdout(sys.stderr if output == "-" else sys.stdout):
        print_run(checked, run, as_json)


@commands.command(
    epilog=examples(
        "orderproof reproduce six-domains",
        "orderproof reproduce six-domains --json --exit-code",
        "dvc repro --single-item reproduce@six-domains",
    )
)
def reproduce(
    job: Name,
    params: Params = PARAMS,
    restart: Restart = False,
    as_json: Json = False,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 20 where outputs differ, with 21 where scores moved.")
    ] = False,
) -> None:
    """Run the whole job again in its pinned order and say how its outputs and scores compare with those it has."""
    checked = checked_job(params, job)
    log_to_standard_error()
    from orderproof.reproduce.story import reproduce as reproduce_job

    run = reproduce_job(checked, restart=restart)
    print_run(checked, run, as_json)
    raise typer.Exit(run.exit_code if exit_code else 0)


def _refuse_without_stream(**given: float | None) -> None:
    for name, value in given.items():
        if value is not None:
            raise typer.BadParameter("needs a stream: name one with --prompts", param_hint=f"--{name}")
