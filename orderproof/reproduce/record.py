"""What is known of one reproduction: reports/baseline/<job>/<run>.json, and the newest as baseline.json.

In: what was generated again and how it compares. Out: a frozen `Reproduction` on disk, from which any tracker can be
told later. Knows nothing of engines, MLflow, Prefect or DVC.

baseline.json is an output of the DVC stage baseline@<job>. It holds nothing that is learnt afterwards (MLflow's run,
notes), so that a tracker that is told late leaves that stage clean.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from orderproof.generate.generation_record import GenerationRecord
from orderproof.generate.provenance import Provenance
from orderproof.job.errors import OrderproofError
from orderproof.job.files import write_atomically
from orderproof.job.spec import Job
from orderproof.reproduce.comparison import OutputsCompared
from orderproof.reproduce.scores import ScoresCompared

SCHEMA = "orderproof/baseline/1"
NEWEST_FILE = "baseline.json"
LEARNT_LATER = {"prefect_run", "mlflow_run", "notes"}
Answer = Literal["reproduced", "outputs differ", "scores moved"]
EXIT_CODES: dict[Answer, int] = {"reproduced": 0, "outputs differ": 20, "scores moved": 21}


class ReproductionError(OrderproofError):
    """A record of a reproduction that cannot be read or written."""


class Reproduction(GenerationRecord):
    """One reproduction of a job's outputs that came to its end."""

    schema_version: str = SCHEMA
    answer: Answer
    changes: tuple[str, ...]  # since the baseline was generated, in what decides an output: "name: then → now"
    changes_known: bool  # false: the baseline does not say what it rests on
    rebased: tuple[str, ...]  # what differs between this baseline and the one that was reproduced before, if another
    outputs: OutputsCompared
    scores: ScoresCompared | None  # null: no scorer, or nothing to score against
    baseline: str  # path from the project's folder
    baseline_md5: str
    provenance: Provenance | None  # of the baseline
    reproduced: str  # path from the project's folder
    reproduced_md5: str
    batch_invariant: bool  # vLLM was asked for it

    @property
    def exit_code(self) -> int:
        """For `--exit-code`."""
        return EXIT_CODES[self.answer]

    def sentence(self) -> str:
        """The reproduction on one line."""
        seen = self.outputs
        said = f"{self.lossy_first}{self.job}: {seen.identical} of {seen.compared} outputs identical"
        if seen.diverged:
            said += f", {seen.diverged} diverge (median at token {seen.first_divergence['median']:g})"
        if seen.altered:
            said += f", {seen.altered} of the same tokens have another text or finish reason"
        if seen.failed_then or seen.failed_now:
            said += f"; {seen.failed_now} failed, {seen.failed_then} in the baseline"
        if seen.only_then or seen.only_now:
            said += f"; {seen.only_then} are in the baseline alone, {seen.only_now} are new"
        if self.scores:
            moved = f"{self.scores.then:.4g} → {self.scores.now:.4g}"
            said += f"; score ({self.scores.scorer}) {self.scores.answer}: {moved}"
        return said

    def bit_exact(self) -> str | None:
        """Said only of what was seen: every output of the baseline was generated again, token for token."""
        seen = self.outputs
        return f"bit-exact: seen in {seen.identical} of {seen.identical} outputs" if seen.all_identical else None

    def as_json(self) -> dict[str, Any]:
        """The stable shape of `--json`."""
        told = self.model_dump(mode="json", exclude={"provenance": True, "outputs": {"same_until"}})
        share = self.outputs.identical_share
        return {**told, "identical_share": share, "bit_exact": self.bit_exact(), "exit_code": self.exit_code}


def answer_of(outputs: OutputsCompared, scores: ScoresCompared | None) -> Answer:
    """One word for a reproduction. Scores decide first: they are what a baseline is kept for."""
    if scores and scores.answer == "moved":
        return "scores moved"
    return "reproduced" if outputs.reproduced else "outputs differ"


def reports_of(job: Job) -> Path:
    """Where a job's reproductions are recorded."""
    return job.root / "reports" / "baseline" / job.name


def keep(job: Job, made: Reproduction) -> Path:
    """Write a reproduction's record, or write it again with what became of it. Raises ReproductionError."""
    return _write(reports_of(job) / f"{made.run}.json", made.model_dump_json(indent=1))


def keep_newest(job: Job, made: Reproduction) -> Path:
    """Write baseline.json. Raises ReproductionError."""
    return _write(reports_of(job) / NEWEST_FILE, made.model_dump_json(indent=1, exclude=LEARNT_LATER))


def read_newest(job: Job) -> Reproduction | None:
    """The last reproduction, wherever it was made; None if there is none. Raises ReproductionError."""
    path = reports_of(job) / NEWEST_FILE
    return _read(path) if path.exists() else None


def read_runs(job: Job) -> list[Reproduction]:
    """Every reproduction that was made here, oldest first. Raises ReproductionError."""
    return [_read(path) for path in sorted(reports_of(job).glob("2*.json"))]


def _write(path: Path, content: str) -> Path:
    try:
        write_atomically(path, content + "\n")
    except OSError as error:
        raise ReproductionError(
            f"{path} cannot be written: {error.strerror}. Mend that and run the reproduction again"
        ) from None
    return path


def _read(path: Path) -> Reproduction:
    try:
        return Reproduction.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise ReproductionError(
            f"{path} is not readable as the record of a reproduction: {' '.join(str(error).split())[:200]}"
        ) from None
