"""`orderproof measure`, and the commands around its verdict: `decide`, `demote`, `validate`."""

from __future__ import annotations

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
    print_answer,
    print_run,
)
from orderproof.job.params import load_job

commands = typer.Typer()

ExitCode = Annotated[bool, typer.Option("--exit-code", help="Exit with the verdict's own code (0, 10, 11, 12, 13).")]


@commands.command(
    epilog=examples(
        "orderproof measure six-domains",
        "orderproof measure six-domains --json --exit-code",
        "orderproof measure six-domains --aa",
    )
)
def measure(
    job: Name,
    params: Params = PARAMS,
    aa: Annotated[
        bool, typer.Option("--aa", help="A/A test: compare shuffles with shuffles; never promotes, never reaches DVC.")
    ] = False,
    only_if_changed: Annotated[bool, typer.Option(help="Keep the last verdict if nothing changed since.")] = False,
    as_json: Json = False,
    exit_code: ExitCode = False,
) -> None:
    """Measure the candidate order against what the job does today; promote it if the evidence justifies it.

    Evidence of a run that was stopped is kept: `--only-if-changed` records a verdict that was reached already.
    """
    checked = checked_job(params, job)
    log_to_standard_error()
    from orderproof.measure.story import measure as measure_job

    run = measure_job(checked, aa=aa, only_if_changed=only_if_changed)
    print_run(checked, run, as_json)
    raise typer.Exit(run.exit_code if exit_code else 0)


@commands.command(
    epilog=examples("orderproof decide six-domains", "orderproof decide six-domains --trial 20261129T144640Z-3f9a")
)
def decide(
    job: Name,
    params: Params = PARAMS,
    trial: Annotated[str | None, typer.Option(help="A trial's folder name; without it the newest.")] = None,
    aa: Annotated[bool, typer.Option("--aa", help="Look among the A/A tests.")] = False,
    as_json: Json = False,
    exit_code: ExitCode = False,
) -> None:
    """Recompute a verdict from its trial's folder alone, offline, and say whether it is the one on record."""
    from orderproof.measure.decide import decide as decide_trial

    decision = decide_trial(load_job(params, job), trial, aa=aa)
    recorded = "the same as recorded, bit for bit" if decision.same_as_recorded else "NOT the verdict on record"
    lines = [decision.sentence, decision.verdict.reason, *decision.differences]
    lines.append(f"recomputed from {decision.folder}: {recorded}")
    print_answer(decision.as_json(), as_json, lines)
    raise typer.Exit(1 if not decision.same_as_recorded else decision.verdict.exit_code if exit_code else 0)


@commands.command(epilog=examples("orderproof demote six-domains --reason 'new model next week'"))
def demote(
    job: Name,
    params: Params = PARAMS,
    reason: Annotated[str, typer.Option(help="Kept in the record.")] = "",
    as_json: Json = False,
) -> None:
    """Go back to the file's own order. Evidence is kept."""
    from orderproof.prompts.source import open_prompts
    from orderproof.runs import promotion, recorder

    demoted = load_job(params, job)
    with open_prompts(demoted) as prompts:
        record = promotion.demote(demoted, list(prompts.ids), reason)
    notes = recorder.record_again(demoted, record.headline)
    if demoted.lossy_k0 is not None:
        notes.append(
            "the lossy routing stays accepted: remove accept_lossy from params.yaml to go back to the model's own"
        )
    answer = {"job": job, "promoted": False, "order": record.order.method, "notes": notes}
    kept = f"{job} runs in the file's own order again; the trials under {demoted.reports_dir} are kept"
    print_answer(answer, as_json, [kept, *(f"note: {note}" for note in notes)])


@commands.command(epilog=examples("orderproof validate six-domains", "orderproof validate six-domains --no-engine"))
def validate(
    job: Name,
    params: Params = PARAMS,
    engine: Annotated[
        bool, typer.Option(help="Ask vLLM too, in seconds and without weights: engine.args, adapters and sampling.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Check a job's prompts as `measure` would, and its settings, and spend nothing."""
    from orderproof.validation.validate import LEFT_OUT, validate_prompts, validate_settings

    checked = checked_job(params, job)
    log_to_standard_error()
    folder = checked.root / "reports" / checked.name / "validation"
    prompts = validate_prompts(checked, folder)
    if engine:
        prompts = validate_settings(checked, prompts)
    tokens = int(prompts.offsets[-1])
    answer = {"job": job, "valid": True, "prompts": len(prompts), "prompt_tokens": tokens,
              "left_out": prompts.rows_left_out, "folder": str(folder), "notices": list(prompts.notices)}  # fmt: skip
    valid = f"{checked.prompts_name}: {len(prompts)} prompts, {tokens} tokens, all valid"
    left_out = [notice for notice in prompts.notices if notice.startswith(LEFT_OUT)]
    lines = [valid, *left_out, f"report: {folder / 'validation'}"]
    print_answer(answer, as_json, lines)
