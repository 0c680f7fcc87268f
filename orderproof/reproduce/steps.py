"""The steps of a reproduction that a generation does not have. story.py combines them."""

from __future__ import annotations

import logging
from pathlib import Path

from orderproof.engines.protocol import EngineInfo
from orderproof.generate.generation import Batch
from orderproof.generate.provenance import engine_provenance, provenance_of
from orderproof.job.spec import Job
from orderproof.lossy.routing import routing_name
from orderproof.prompts.source import PromptSource
from orderproof.reproduce import baseline_file, reproduction
from orderproof.reproduce.baseline_file import Baseline, changes
from orderproof.reproduce.picture import draw_divergence
from orderproof.reproduce.record import Reproduction, write_newest
from orderproof.runs import recorder
from orderproof.runs.inputs import Inputs
from orderproof.runs.mlflow_run import Tracking
from orderproof.runs.recorder import Presentation
from orderproof.runs.run import Run

logger = logging.getLogger(__name__)


def find_baseline(job: Job, source: PromptSource) -> Baseline:
    """Find the job's outputs; they must be for these prompts."""
    return baseline_file.find_baseline(job, source)


def compare(batch: Batch, baseline: Baseline) -> Reproduction:
    """Compare each output, and the scores if there is a scorer."""
    return reproduction.compare(batch, baseline)


def report(job: Job, run: Run, compared: Reproduction) -> Run:
    """Write the run with its picture and page, and send it to MLflow."""
    write_newest(job, compared)
    return recorder.keep(job, run, presentation(run, compared))


def record(job: Job, run: Run, compared: Reproduction, inputs: Inputs) -> Run:
    """Record the result in DVC, and publish it if the job asks for it."""
    return recorder.record(job, run, inputs, {compared.baseline: compared.baseline_md5})


def presentation(run: Run, compared: Reproduction) -> Presentation:
    """The picture of a reproduction, and its tags and parameters in MLflow."""

    def draw(folder: Path) -> None:
        draw_divergence(run, compared, folder / "divergence.png")

    return Presentation(draw=draw, tracking=tracking_of)


def tracking_of(run: Run) -> Tracking:
    """What a reproduction adds to its MLflow run."""
    details = run.details
    differences = details.get("changes")
    changed = "; ".join(map(str, differences)) if isinstance(differences, list) else ""
    return Tracking(
        tags={"baseline_md5": str(details.get("baseline_md5"))},
        params={
            "changes": changed or ("none" if details.get("changes_known") else "unknown"),
            "batch_invariant": details.get("batch_invariant"),
            "routing": routing_name(run.basis.lossy_k0),
        },
    )


def log_changes(batch: Batch, baseline: Baseline) -> None:
    """Log, before the engine starts, which settings, prompts, model or order changed since the baseline."""
    if baseline.provenance is None:
        logger.warning("%s has no provenance, so changes since then are unknown", baseline.path)
        return
    changed = changes(baseline.provenance, provenance_of(batch.checkpoint.folder))
    logger.info("settings that changed since the baseline: %d", len(changed))
    for change in changed:
        logger.warning("changed since the baseline: %s", change)


def log_engine_changes(baseline: Baseline, engine: EngineInfo) -> None:
    """Log what changed in the engine and its machine, which is known only when it runs."""
    if baseline.provenance:
        now = baseline.provenance.model_copy(update={"engine": engine_provenance(engine)})
        for change in changes(baseline.provenance, now):
            logger.warning("changed since the baseline: %s", change)
