"""What a lossy comparison found: a value, its files under reports/<job>/lossy/, and the page.

In: the arms' figures. Out: k0-2.json, which is the evidence that an acceptance of k0 = 2 rests on, and k0-2.md for
people; and back from the file to the same value. Another k0 has files of its own. Knows nothing of engines, MLflow or
DVC.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from orderproof.job.files import write_atomically
from orderproof.job.formatting import signed
from orderproof.job.spec import Job
from orderproof.lossy.routing import LossyError, routing_named
from orderproof.orders.order_record import OrderRecord
from orderproof.outputs.output_change import TOLERANCE, OutputChange, ScoreChange

SHUFFLED, SORTED, LOSSY, SORTED_LOSSY = "shuffled", "sorted", "shuffled, lossy", "sorted, lossy"
ARMS = (SHUFFLED, SORTED, LOSSY, SORTED_LOSSY)
FEWEST_SCORED = 300  # prompts: if none of fewer changed, a loss of one point is not excluded (outputs/disagreement.py)


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ArmResult(_Frozen):
    """One arm beside the shuffled one, in the same blocks."""

    arm: str
    throughput_req_s: float  # mean of its passes
    gain: float
    gain_low: float  # two-sided 95 %
    gain_high: float
    outputs: OutputChange


class LossyReport(_Frozen):
    """The comparison, and what it was of: it says nothing of another model, dataset, setting, engine, order or k0."""

    schema_version: Literal["orderproof/lossy/3"] = "orderproof/lossy/3"
    lossy: Literal[True] = True
    promotes: Literal[False] = False  # nothing but a person's `accept_lossy` does
    job: str
    k0: int
    top_k: int
    order: OrderRecord  # of the sorted arms, over the whole file
    dataset_md5: str
    scorer: str | None
    asked: dict[str, Any]  # `output_key` of the job and its model
    engine: dict[str, Any]  # `EngineInfo.kind` of the one that ran it
    file_like_shuffle: bool  # the file's own order: the shuffled arm stands for it then
    prompts: int  # that were measured
    blocks: int
    toy: bool
    arms: tuple[ArmResult, ...]  # all but the shuffled one
    throughput_req_s: float  # of the shuffled arm
    created_utc: str

    def scores_of(self, arm: str) -> ScoreChange | None:
        """None: no output of that arm was scored."""
        return next(one.outputs.scores for one in self.arms if one.arm == arm)

    def passed(self, arm: str) -> bool:
        """Whether an arm's scores can show a loss, and are surely inside their margin."""
        return self.weakness(arm) is None

    def weakness(self, arm: str) -> str | None:
        """Why an arm does not carry the routing where it would run, and what to do; None: it does.

        Judged anew from the figures, whatever else the file says.
        """
        if arm == LOSSY and not self.file_like_shuffle:
            return (
                "the file's own order is not like a shuffle, so no arm stands for it: shuffle the file, or promote an "
                f"order (`orderproof measure {self.job}`)"
            )
        scores = self.scores_of(arm)
        if scores is None:
            return "nobody knows what it costs: give the prompts a `reference` and the job measure.scorer"
        if scores.prompts < FEWEST_SCORED:
            return (
                f"fewer than {FEWEST_SCORED} scored prompts cannot exclude a loss of one point: give more of them a "
                "`reference`"
            )
        if not 0 < scores.control < 1:
            return (
                f"with the model's own routing all score {scores.control:.0f}, and references that every output or "
                "none matches show no loss: give others"
            )
        if not _inside(scores):
            return "that is not surely inside its margin: try a larger --k0, more blocks or more prompts"
        return None

    def as_json(self) -> dict[str, Any]:
        """The stable shape of `--json` and of the file."""
        return self.model_dump(mode="json")


def evidence_path(job: Job, k0: int) -> Path:
    """Among the job's evidence, so that DVC takes it along to wherever the job is generated again."""
    return job.reports_dir / "lossy" / f"k0-{k0}.json"


def read_report(job: Job, k0: int) -> LossyReport | None:
    """The last comparison of this k0; None if there is none. Raises LossyError if it cannot be read."""
    path = evidence_path(job, k0)
    try:
        report = LossyReport.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise LossyError(
            f"{path} is not readable as a lossy comparison: {' '.join(str(error).split())[:200]}"
        ) from None
    if report.k0 != k0:
        raise LossyError(f"{path} is a lossy comparison of k0 = {report.k0}")
    return report


def write_page(job: Job, report: LossyReport) -> Path:
    """The evidence, and the page beside it, whose path is returned."""
    path = evidence_path(job, report.k0)
    write_atomically(path, report.model_dump_json(indent=1) + "\n")
    first, *rest = lines(report)
    body = "\n".join(f"- {line.strip()}" if line.startswith("  ") else f"{line}\n" for line in rest)
    write_atomically(path.with_suffix(".md"), f"# {first}\n\n{body}\n")
    return path.with_suffix(".md")


def lines(report: LossyReport) -> list[str]:
    """The page as text; that it is lossy stands first, how to accept it last, and only where scores carry it."""
    told = [
        f"LOSSY: {report.job} with another routing than the model's own. It changes what is generated, and nothing is "
        "promoted by this page",
        f"Opportunistic Expert Activation, k0 = {report.k0} of {report.top_k} experts, decoding tokens only; "
        f"{report.prompts} prompts, {report.blocks} blocks, eagerly, against shuffled "
        f"({report.throughput_req_s:.2f} requests/s)" + ("; a toy model: nobody's gain" if report.toy else ""),
    ]
    for arm in report.arms:
        changed, floor = arm.outputs.d_ab, arm.outputs.d_aa
        order = f" ({report.order.method} order)" if arm.arm != LOSSY else ""
        told.append(
            f"  {arm.arm + order:32s} {signed(arm.gain):>6} ({signed(arm.gain_low)} to {signed(arm.gain_high)}); "
            f"outputs changed: {changed or 0:.1%}, by reshuffling alone {floor or 0:.1%}; "
            f"{scores_said(arm.outputs.scores)}"
        )
    return [*told, *_how_to_accept(report)]


def scores_said(scores: ScoreChange | None) -> str:
    """What is known of an arm's scores, in words."""
    if scores is None:
        return "not scored"
    low = "unknown" if scores.low is None else f"{scores.low:+.3f}"
    kept = "inside" if _inside(scores) else "NOT inside"
    return f"score {scores.difference:+.3f} (95 % lower bound {low}, {kept} its margin) on {scores.prompts} prompts"


def _inside(scores: ScoreChange) -> bool:
    return scores.low is not None and scores.low > -TOLERANCE


def _how_to_accept(report: LossyReport) -> list[str]:
    where = {LOSSY: "no order is promoted", SORTED_LOSSY: f"this {report.order.method} order is promoted"}
    weak = {arm: why for arm in where if (why := report.weakness(arm))}
    told = ["", *(f"Not carried where {where[arm]}: {why}" for arm, why in weak.items())]
    accepted = [condition for arm, condition in where.items() if arm not in weak]
    if not accepted:
        return told
    return [
        *told,
        f"Scores carry it where {' and where '.join(accepted)}. Only a person can accept it: with `accept_lossy: {{k0: "
        f"{report.k0}}}` under jobs.{report.job} in params.yaml, `generate` and `reproduce` give "
        f"{routing_named(report.k0)} outputs, until that line is removed",
    ]
