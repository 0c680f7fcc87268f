"""The result of a reproduction and the record of its run.

data/<job>/reproduced.json holds the newest result. It is an output of the DVC stage reproduce@<job>, so it is shared
with the outputs.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from orderproof.engines.protocol import EngineInfo
from orderproof.generate.generation import Batch, Generated
from orderproof.generate.provenance import Provenance
from orderproof.generate.record import basis_of, generation_figures, lossy_prefix
from orderproof.job.errors import OrderproofError
from orderproof.job.files import write_atomically
from orderproof.job.formatting import percentage
from orderproof.job.spec import Job
from orderproof.reproduce.comparison import OutputComparison
from orderproof.reproduce.scores import ScoreComparison
from orderproof.runs.run import Figure, Run
from orderproof.runs.run_store import identity_of

NEWEST_FILE = "reproduced.json"
Answer = Literal["reproduced", "outputs differ", "scores moved"]
EXIT_CODES: dict[Answer, int] = {"reproduced": 0, "outputs differ": 20, "scores moved": 21}


class ReproductionError(OrderproofError):
    """The record of a reproduction cannot be read or written."""


class Reproduction(BaseModel):
    """How the outputs of a second generation compare with the baseline."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal["orderproof/reproduction/1"] = "orderproof/reproduction/1"
    answer: Answer
    changes: tuple[str, ...]  # since the baseline, among what determines an output: "name: then → now"
    changes_known: bool  # false: the baseline has no provenance
    rebased: tuple[str, ...]  # how this baseline differs from that of the last reproduction
    outputs: OutputComparison
    scores: ScoreComparison | None  # null: no scorer, or nothing to score against
    baseline: str  # path relative to the project folder
    baseline_md5: str
    provenance: Provenance | None  # of the baseline
    reproduced: str  # path relative to the project folder
    reproduced_md5: str
    batch_invariant: bool  # whether the job asks vLLM for it

    def bit_exact(self) -> str | None:
        """The claim of bit-exact outputs, only if every output of the baseline was generated again, token for token."""
        outputs = self.outputs
        if not outputs.all_identical:
            return None
        return f"bit-exact: observed in {outputs.identical} of {outputs.identical} outputs"


def answer_of(outputs: OutputComparison, scores: ScoreComparison | None) -> Answer:
    """The answer of a reproduction. Scores decide first: they are the purpose of a baseline."""
    if scores and scores.answer == "moved":
        return "scores moved"
    return "reproduced" if outputs.reproduced else "outputs differ"


def reproduction_run(
    batch: Batch,
    reproduction: Reproduction,
    order_reason: str,
    generated: Generated,
    engine: EngineInfo | None,
    started: datetime.datetime,
) -> Run:
    """The run of a reproduction. `engine`: None if everything was generated before."""
    job = batch.job
    return Run(
        **identity_of(job, "reproduce", started),
        answer=reproduction.answer,
        exit_code=EXIT_CODES[reproduction.answer],
        sentence=_sentence(job, reproduction),
        lines=tuple(_lines(job, reproduction, order_reason)),
        basis=basis_of(batch, order_reason, engine),
        figures=(
            *_figures(reproduction),
            Figure(name="resumed", value=batch.checkpoint.resumed),
            Figure(name="generated", value=generated.outputs),
            *generation_figures(generated, engine),
        ),
        details=_details(reproduction),
        files={"outputs": reproduction.reproduced},
    )


def write_newest(job: Job, reproduction: Reproduction) -> Path:
    """Write data/<job>/reproduced.json. Raises ReproductionError."""
    path = job.data_dir / NEWEST_FILE
    try:
        write_atomically(path, reproduction.model_dump_json(indent=1) + "\n")
    except OSError as error:
        raise ReproductionError(
            f"{path} cannot be written: {error.strerror}. Fix the folder or its permissions, then run it again"
        ) from None
    return path


def read_newest(job: Job) -> Reproduction | None:
    """The newest result; None if there is none. Raises ReproductionError."""
    path = job.data_dir / NEWEST_FILE
    if not path.exists():
        return None
    try:
        return Reproduction.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise ReproductionError(
            f"{path} cannot be read as a reproduction: {' '.join(str(error).split())[:200]}. Restore it with "
            "`dvc checkout`, or delete it"
        ) from None


def _details(reproduction: Reproduction) -> dict[str, Any]:
    fields = reproduction.model_dump(mode="json", exclude={"provenance": True, "schema_version": True})
    return {**fields, "bit_exact": reproduction.bit_exact()}


def _sentence(job: Job, reproduction: Reproduction) -> str:
    outputs, scores = reproduction.outputs, reproduction.scores
    sentence = f"{lossy_prefix(job.lossy_k0)}{job.name}: {outputs.identical} of {outputs.compared} outputs identical"
    if outputs.diverged:
        sentence += f", {outputs.diverged} diverge (median at token {outputs.first_divergence['median']:g})"
    if outputs.altered:
        sentence += f", {outputs.altered} have the same tokens but another text or finish reason"
    if outputs.failed_then or outputs.failed_now:
        sentence += f"; {outputs.failed_now} failed, {outputs.failed_then} in the baseline"
    if outputs.only_then or outputs.only_now:
        sentence += f"; {outputs.only_then} only in the baseline, {outputs.only_now} new"
    if scores:
        sentence += f"; score ({scores.scorer}) {scores.answer}: {scores.then:.4g} → {scores.now:.4g}"
    return sentence


def _lines(job: Job, reproduction: Reproduction, order_reason: str) -> list[str]:
    lines = [f"order: {order_reason}"]
    lines += [f"changed since the baseline: {change}" for change in reproduction.changes]
    if not reproduction.changes_known:
        lines.append(f"{reproduction.baseline} has no provenance, so changes since then are unknown")
    lines += [
        f"the last reproduction had another baseline, with a different {change}" for change in reproduction.rebased
    ]
    if bit_exact := reproduction.bit_exact():
        lines.append(bit_exact)
    outputs = reproduction.outputs
    for output in outputs.most_different:
        similarity = percentage(output.similarity)
        lines.append(f"differs: {output.id} from token {output.first_divergence}, {similarity} similar")
    lines += [f"finish reason: {change} ({times})" for change, times in outputs.finish_changes.items()]
    if scores := reproduction.scores:
        width = "unknown" if scores.half_width is None else f"±{scores.half_width:.4g}"
        lines.append(f"score: {scores.difference:+.4g} {width} (95 %) over {scores.outputs} outputs: {scores.answer}")
    return lines


def _figures(reproduction: Reproduction) -> list[Figure]:
    outputs, scores = reproduction.outputs, reproduction.scores
    counts = ("outputs", "compared", "identical", "diverged", "altered", "failed_then", "failed_now")
    figures = [Figure(name=name, value=float(getattr(outputs, name))) for name in counts]
    figures.append(Figure(name="identical_share", value=outputs.identical_share))
    figures.append(Figure(name="first_divergence_median", value=outputs.first_divergence.get("median")))
    if scores:
        values = {"score_then": scores.then, "score_now": scores.now, "score_difference": scores.difference}
        figures += [Figure(name=name, value=value) for name, value in {**values, "score_se": scores.se}.items()]
    return figures
