"""`orderproof measure`, and the commands around its verdict: `decide`, `demote`, `validate`.

In: a job's name. Out: what the flow or task answered, as text or JSON.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from orderproof.cli.conventions import PARAMS, Json, Name, Params, checked_job, examples, prefect_around, say
from orderproof.job.errors import OrderproofError
from orderproof.job.params import load_job
from orderproof.job.spec import Job

commands = typer.Typer()

ExitCode = Annotated[bool, typer.Option("--exit-code", help="Exit with the verdict's own code (0, 10, 11, 12, 13).")]


@commands.command(
    epilog=examples(
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
    this = checked_job(params, job)  # a wrong key is told at once, not after a server has started
    kept = (
        f"Evidence is kept: `orderproof measure {job} --only-if-changed` pins a verdict that was reached or lets it "
        "stand, and measures otherwise"
    )
    with prefect_around(kept):
        from flows.measure import measure_order

        outcome = measure_order(job, params=str(params.resolve()), placebo=placebo, only_if_changed=only_if_changed)
    say(outcome.as_json(), as_json, _outcome_lines(this, outcome))
    raise typer.Exit(outcome.verdict.exit_code if exit_code else 0)


@commands.command(
    epilog=examples("orderproof decide six-domains", "orderproof decide six-domains --trial 20261129T144640Z-3f9a")
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
    from orderproof.measure.evaluate import judge
    from orderproof.measure.outcome import outcome_of
    from orderproof.measure.trial import reports_of
    from orderproof.measure.trial_store import VERDICT_FILE, find_trial

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
    say(
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


@commands.command(epilog=examples("orderproof demote six-domains --reason 'new model next week'"))
def demote(
    job: Name,
    params: Params = PARAMS,
    reason: Annotated[str, typer.Option(help="Kept in the record.")] = "",
    as_json: Json = False,
) -> None:
    """Go back to the file's own order. Evidence is kept."""
    from orderproof.prompts.prompt_file import read_prompts
    from orderproof.runs.recording import demote as demote_job

    this = load_job(params, job)
    record, notes = demote_job(this, [prompt.id for prompt in read_prompts(this.prompts_path)], reason)
    told = {"job": job, "promoted": False, "order": record.order.method, "notes": notes}
    kept = f"{job} runs in the file's own order again; the trials under {this.reports_dir} are kept"
    say(told, as_json, [kept, *(f"note: {note}" for note in notes)])


@commands.command(epilog=examples("orderproof validate six-domains"))
def validate(job: Name, params: Params = PARAMS, as_json: Json = False) -> None:
    """Check a job's prompts as `measure` would, and spend nothing."""
    from orderproof.validation.validate import validate_prompts

    this = checked_job(params, job)
    folder = this.root / "reports" / "validation" / this.name
    prompts = validate_prompts(this, folder)
    told = {
        "job": job,
        "valid": True,
        "prompts": len(prompts),
        "prompt_tokens": int(prompts.offsets[-1]),
        "folder": str(folder),
    }
    say(
        told,
        as_json,
        [
            f"{this.prompts}: {len(prompts)} prompts, {int(prompts.offsets[-1])} tokens, all valid",
            f"readable at {folder / 'validation'}",
        ],
    )


def _outcome_lines(job: Job, outcome: Any) -> list[str]:
    lines = ["", outcome.sentence(), outcome.verdict.reason]
    if outcome.promotion:
        lines.append(f"{job.name} runs in the {outcome.promotion.order.method} order (data/{job.name}/order.parquet)")
    if outcome.page:
        lines.append(f"page with pictures: {outcome.page}")
    if outcome.mlflow_run:
        from orderproof.runs.trial_tracking import where_to_see

        lines.append(f"MLflow: {where_to_see(job, outcome.mlflow_run)}")
    return [*lines, *(f"note: {note}" for note in outcome.notes)]
