"""`orderproof generate`, the job itself, and `reproduce`, the job again beside what it gave.

In: a job's name, perhaps a stream of prompts. Out: what the flow answered, as text or JSON.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Annotated, Any

import typer

from orderproof.cli.conventions import PARAMS, Json, Name, Params, checked_job, examples, prefect_around, say
from orderproof.job.spec import Job

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
    this = checked_job(params, job)
    kept = (
        f"Results are kept: `orderproof status {job}` tells whether the outputs are whole, and running again goes on "
        "otherwise"
    )
    with prefect_around(kept):
        from flows.batch import run_batch
        from orderproof.prompts.stream import LINGER_S

        run = run_batch(
            job,
            params=str(params.resolve()),
            restart=restart,
            prompts=prompts if prompts in (None, "-") else os.path.abspath(str(prompts)),
            follow=follow,
            linger=LINGER_S if linger is None else linger,
            output=output,
        )
    with contextlib.redirect_stdout(sys.stderr if output == "-" else sys.stdout):
        say(run.as_json(), as_json, _batch_lines(this, run))


@commands.command(
    epilog=examples(
        "orderproof reproduce six-domains",
        "orderproof reproduce six-domains --json --exit-code",
        "dvc repro --single-item baseline@six-domains",
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
    this = checked_job(params, job)
    kept = f"Results are kept: `orderproof reproduce {job}` goes on"
    with prefect_around(kept):
        from flows.baseline import reproduce_baseline

        made = reproduce_baseline(job, params=str(params.resolve()), restart=restart)
    say(made.as_json(), as_json, _reproduction_lines(this, made))
    raise typer.Exit(made.exit_code if exit_code else 0)


def _refuse_without_stream(**given: float | None) -> None:
    for name, value in given.items():
        if value is not None:
            raise typer.BadParameter("is of a stream alone: name one with --prompts", param_hint=f"--{name}")


def _batch_lines(job: Job, run: Any) -> list[str]:
    lines = ["", run.sentence(), f"order: {run.order_why}", f"outputs: {job.root / run.outputs}"]
    if run.time_per_batch_ms is not None:
        lines.append(f"time per batch: median {run.time_per_batch_ms:.1f} ms, p95 {run.time_per_batch_p95_ms:.1f} ms")
    if run.cost_per_1k_requests is not None:
        lines.append(f"cost: {run.cost_per_1k_requests:.4g} {run.currency} per thousand requests")
    lines += [f"failed: {id}: {reason}" for id, reason in run.failures]
    return [*lines, *(f"note: {note}" for note in run.notes)]


def _reproduction_lines(job: Job, made: Any) -> list[str]:
    lines = ["", made.sentence(), f"order: {made.order_why}"]
    lines += [f"changed since the baseline: {change}" for change in made.changes]
    if not made.changes_known:
        lines.append(f"{made.baseline} does not say what it rests on: what changed since cannot be told")
    lines += [f"another baseline than the last time, which differed in: {change}" for change in made.rebased]
    if said := made.bit_exact():
        lines.append(said)
    for one in made.outputs.most_different:
        lines.append(f"differs: {one.id} from token {one.first_divergence}, {one.similarity:.0%} alike")
    lines += [f"finish reason: {change} ({times})" for change, times in made.outputs.finish_changes.items()]
    if scores := made.scores:
        width = "unknown" if scores.half_width is None else f"±{scores.half_width:.4g}"
        lines.append(f"score: {scores.difference:+.4g} {width} (95 %) over {scores.outputs} outputs: {scores.answer}")
    lines.append(f"outputs of this time: {job.root / made.reproduced}")
    return [*lines, *(f"note: {note}" for note in made.notes)]
