"""Write data/<job>/reproduced.parquet from a finished checkpoint, and compare it with the baseline."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from orderproof.generate.delivery import write_outputs
from orderproof.generate.generation import Batch
from orderproof.generate.provenance import provenance_of
from orderproof.job.hashing import md5_of
from orderproof.job.spec import BATCH_INVARIANT
from orderproof.outputs.disagreement import Float64, Int64
from orderproof.outputs.scorers import score
from orderproof.reproduce.baseline_file import REPRODUCED_FILE, Baseline, changes
from orderproof.reproduce.comparison import PairedScores, compare_outputs
from orderproof.reproduce.record import Reproduction, ReproductionError, answer_of, read_newest
from orderproof.reproduce.scores import ScoreComparison, compare_scores


def compare(batch: Batch, baseline: Baseline) -> Reproduction:
    """Write the new outputs and compare them with the baseline, which is only read.

    Raises:
        BaselineError: the baseline was replaced during the run.
        DeliveryError, ValidationFailed, PromptError: as `write_outputs`.
        ScorerError: the job's scorer cannot use a reference.
    """
    job = batch.job
    path = job.data_dir / REPRODUCED_FILE
    write_outputs(batch, path, job.root / "reports" / job.name / "validation")
    baseline.refuse_replaced()
    scorer = partial(_scores, batch, job.measure.scorer) if job.measure.scorer else None
    outputs, scored = compare_outputs(baseline.path, path, scorer=scorer, texts=job.reporting.log_text)
    scores = _compare_scores(batch, scored)
    return Reproduction(
        answer=answer_of(outputs, scores),
        changes=changes(baseline.provenance, provenance_of(batch.checkpoint.folder)),
        changes_known=baseline.provenance is not None,
        rebased=_rebased(batch, baseline),
        outputs=outputs,
        scores=scores,
        baseline=str(baseline.path.relative_to(job.root)),
        baseline_md5=baseline.md5,
        provenance=baseline.provenance,
        reproduced=str(path.relative_to(job.root)),
        reproduced_md5=md5_of(path),
        batch_invariant=job.engine.environment.get(BATCH_INVARIANT, "0") != "0",
    )


def _scores(batch: Batch, scorer: str, ids: Sequence[str], texts: Sequence[str | None]) -> Float64:
    """float64[n]: NaN if a request failed or its prompt has no reference."""
    prompts = batch.file.read(batch.file.places(ids).tolist())
    return np.array(
        [
            np.nan if text is None or prompt.reference is None else score(scorer, text, prompt.reference)
            for prompt, text in zip(prompts, texts, strict=True)
        ],
        np.float64,
    )


def _compare_scores(batch: Batch, scored: PairedScores | None) -> ScoreComparison | None:
    name = batch.job.measure.scorer
    return compare_scores(name, scored.then, scored.now, _neighbours(batch, scored)) if scored and name else None


def _neighbours(batch: Batch, scored: PairedScores) -> Int64:
    """int64[n]: the number of each output's group of neighbours, which were sent together and shared batches."""
    permutation = batch.checkpoint.order.permutation
    position = np.empty(len(permutation), np.int64)
    position[permutation] = np.arange(len(permutation))
    return position[batch.file.places(scored.ids)] // batch.job.engine.max_num_seqs


def _rebased(batch: Batch, baseline: Baseline) -> tuple[str, ...]:
    """How this baseline differs from that of the last reproduction: then `dvc repro` generated a new one first."""
    try:
        last = read_newest(batch.job)
    except ReproductionError:
        return ()
    if last is None or last.baseline_md5 == baseline.md5:
        return ()
    differing = changes(last.provenance, baseline.provenance) if baseline.provenance else ()
    return differing or (f"baseline: {last.baseline_md5} → {baseline.md5}",)
