"""What a person sees of a reproduction: what changed since the baseline, and how the outputs compare.

In: a batch before it is generated, a reproduction when it ends. Out: Prefect's log and artifact. An artifact that
Prefect does not take is left out.
"""

from __future__ import annotations

from prefect.artifacts import create_markdown_artifact
from prefect.logging import get_run_logger

from flows.reporting import artifact_key, best_effort
from orderproof.engines.protocol import EngineInfo
from orderproof.generate.generation import Batch
from orderproof.generate.provenance import engine_provenance, provenance_of
from orderproof.job.spec import Job
from orderproof.reproduce.baseline_file import Baseline, changes
from orderproof.reproduce.record import Reproduction


def announce_changes(batch: Batch, baseline: Baseline) -> None:
    """Before anything is spent: settings, prompts, model, order. One that is made while it is sent is in the report."""
    log = get_run_logger()
    if baseline.provenance is None:
        log.warning("%s does not say what it rests on, so what changed since cannot be told", baseline.path)
        return
    changed = changes(baseline.provenance, provenance_of(batch.checkpoint.folder))
    log.info("since the baseline %s changed", f"{len(changed)} settings" if changed else "no setting")
    for change in changed:
        log.warning("changed since the baseline: %s", change)


def announce_engine(baseline: Baseline, engine: EngineInfo) -> None:
    """What of the engine and its machine is another, which shows only when it runs."""
    if baseline.provenance:
        now = baseline.provenance.model_copy(update={"engine": engine_provenance(engine)})
        for change in changes(baseline.provenance, now):
            get_run_logger().warning("changed since the baseline: %s", change)


def announce_reproduction(made: Reproduction, job: Job) -> Reproduction:
    """The comparison as Prefect's artifact, and in the log."""
    log = get_run_logger()
    log.info("%s", made.sentence())
    for note in made.notes:
        log.warning("%s", note)
    with best_effort("the comparison's artifact"):
        create_markdown_artifact(_markdown(made), key=artifact_key("baseline", job.name), description=made.sentence())
    return made


def _markdown(made: Reproduction) -> str:
    told = made.as_json()
    figures = {"answer": made.answer, **told["outputs"], **{f"score_{k}": v for k, v in (told["scores"] or {}).items()}}
    rows = "\n".join(f"| {name} | {value} |" for name, value in figures.items() if name != "most_different")
    changed = "".join(f"\n- changed since the baseline: {change}" for change in made.changes)
    most = "".join(f"\n- {one.id}: from token {one.first_divergence}" for one in made.outputs.most_different)
    notes = "".join(f"\n- {note}" for note in made.notes)
    return f"# {made.sentence()}\n\n| | |\n|---|---|\n{rows}\n{changed}{most}{notes}\n"
