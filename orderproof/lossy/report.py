"""The result of a lossy comparison: the evidence that an acceptance of the lossy routing needs, and its run."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from orderproof.job.formatting import signed
from orderproof.job.model import ModelFacts
from orderproof.job.spec import Job
from orderproof.lossy.routing import LossyError, routing_name
from orderproof.orders.order_record import OrderRecord
from orderproof.outputs.output_change import TOLERANCE, OutputChange, ScoreChange
from orderproof.runs.run import Basis, Figure, Run
from orderproof.runs.run_store import RECORD_FILE, identity_of, read_runs, run_folder

SHUFFLED, SORTED, LOSSY, SORTED_LOSSY = "shuffled", "sorted", "shuffled, lossy", "sorted, lossy"
ARMS = (SHUFFLED, SORTED, LOSSY, SORTED_LOSSY)
FEWEST_SCORED = (
    300  # prompts: fewer cannot exclude a loss of one point, even if no score changed (outputs/disagreement.py)
)


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ArmResult(_Frozen):
    """One arm compared with the shuffled arm of the same blocks."""

    arm: str
    throughput_req_s: float  # mean over passes
    gain: float
    gain_low: float  # two-sided 95 %
    gain_high: float
    outputs: OutputChange


class LossyReport(_Frozen):
    """The comparison and its conditions. It is not valid for another model, dataset, setting, engine, order or k0."""

    schema_version: Literal["orderproof/lossy/3"] = "orderproof/lossy/3"
    lossy: Literal[True] = True
    promotes: Literal[False] = False  # only a person accepts it, with `accept_lossy`
    job: str
    k0: int
    top_k: int
    order: OrderRecord  # of the sorted arms, over the whole file
    dataset_md5: str
    scorer: str | None
    output_key: dict[str, Any]  # of the job and its model
    engine: dict[str, Any]  # `EngineInfo.kind`
    file_like_shuffle: bool  # whether the file's order is like a shuffle, so that the shuffled arm represents it
    prompts: int  # measured
    blocks: int
    toy: bool
    arms: tuple[ArmResult, ...]  # all except the shuffled arm
    throughput_req_s: float  # of the shuffled arm
    created_utc: str

    def scores_of(self, arm: str) -> ScoreChange | None:
        """The change of an arm's scores; None if none of its outputs was scored."""
        return next(result.outputs.scores for result in self.arms if result.arm == arm)

    def passed(self, arm: str) -> bool:
        """Whether an arm's scores can show a loss, and their lower bound is inside the margin."""
        return self.weakness(arm) is None

    def weakness(self, arm: str) -> str | None:
        """Why an arm does not support the routing in the order that it stands for, and what to do; None: it does.

        Computed from the figures, not read from the file.
        """
        if arm == LOSSY and not self.file_like_shuffle:
            return (
                "the order of the file is not like a shuffle, so no arm represents it: shuffle the file, or promote an "
                f"order (`orderproof measure {self.job}`)"
            )
        scores = self.scores_of(arm)
        if scores is None:
            return "its effect on quality is unknown: add a `reference` to the prompts and set measure.scorer"
        if scores.prompts < FEWEST_SCORED:
            return (
                f"fewer than {FEWEST_SCORED} scored prompts cannot exclude a loss of one point: add a `reference` to "
                "more prompts"
            )
        if not 0 < scores.control < 1:
            return (
                f"with the model's own routing every score is {scores.control:.0f}, so a loss cannot show: use other "
                "references"
            )
        if not _inside(scores):
            return "the lower bound is not inside the margin: try a larger --k0, more blocks or more prompts"
        return None


def find_report(job: Job, k0: int) -> tuple[LossyReport, Path] | None:
    """The newest comparison with this k0, and the file of its record; None if there is none.

    Raises:
        LossyError, RunError: a record cannot be read.
    """
    for run in reversed(read_runs(job, "lossy")):
        try:
            report = LossyReport.model_validate(run.details)
        except ValidationError as error:
            raise LossyError(
                f"lossy comparison {run.id} cannot be read: {' '.join(str(error).split())[:200]}"
            ) from None
        if report.k0 == k0:
            return report, run_folder(job, "lossy", run.id) / RECORD_FILE
    return None


def lossy_run(job: Job, model: ModelFacts, report: LossyReport, started: datetime.datetime) -> Run:
    """The run of a comparison."""
    first, *lines = comparison_lines(report)
    return Run(
        **identity_of(job, "lossy", started),
        answer="compared",
        sentence=first,
        lines=tuple(lines),
        basis=Basis.of(job, model, report.dataset_md5, report.prompts, order=report.order, lossy_k0=report.k0),
        figures=tuple(_figures(report)),
        details=report.model_dump(mode="json"),
    )


def _figures(report: LossyReport) -> Iterator[Figure]:
    yield Figure(name="throughput_req_s", value=report.throughput_req_s)
    for arm in report.arms:
        name = arm.arm.replace(", ", "_")
        yield Figure(name=f"gain_{name}", value=arm.gain, low=arm.gain_low, high=arm.gain_high)
        yield Figure(name=f"output_diff_rate_{name}", value=arm.outputs.d_ab)


def comparison_lines(report: LossyReport) -> list[str]:
    """The comparison as text: first that it is lossy, last how to accept it, if scores allow that."""
    lines = [
        f"LOSSY: {report.job} with another routing than the model's own. It changes the outputs, and this comparison "
        "promotes nothing",
        f"Opportunistic Expert Activation, k0 = {report.k0} of {report.top_k} experts, only for decoded tokens; "
        f"{report.prompts} prompts, {report.blocks} blocks, eager mode, against shuffled "
        f"({report.throughput_req_s:.2f} requests/s)"
        + ("; toy model: do not expect this gain on your hardware" if report.toy else ""),
    ]
    for arm in report.arms:
        changed, floor = arm.outputs.d_ab, arm.outputs.d_aa
        order = f" ({report.order.method} order)" if arm.arm != LOSSY else ""
        lines.append(
            f"  {arm.arm + order:32s} {signed(arm.gain):>6} ({signed(arm.gain_low)} to {signed(arm.gain_high)}); "
            f"outputs changed: {changed or 0:.1%}, by reshuffling alone {floor or 0:.1%}; "
            f"{score_text(arm.outputs.scores)}"
        )
    return [*lines, *_how_to_accept(report)]


def score_text(scores: ScoreChange | None) -> str:
    """The change of an arm's scores as text."""
    if scores is None:
        return "not scored"
    low = "unknown" if scores.low is None else f"{scores.low:+.3f}"
    position = "inside" if _inside(scores) else "NOT inside"
    return f"score {scores.difference:+.3f} (95 % lower bound {low}, {position} the margin) on {scores.prompts} prompts"


def _inside(scores: ScoreChange) -> bool:
    return scores.low is not None and scores.low > -TOLERANCE


def _how_to_accept(report: LossyReport) -> list[str]:
    conditions = {LOSSY: "no order is promoted", SORTED_LOSSY: f"this {report.order.method} order is promoted"}
    weak = {arm: why for arm in conditions if (why := report.weakness(arm))}
    lines = ["", *(f"Not supported where {conditions[arm]}: {why}" for arm, why in weak.items())]
    supported = [condition for arm, condition in conditions.items() if arm not in weak]
    if not supported:
        return lines
    return [
        *lines,
        f"Scores support it where {' and where '.join(supported)}. Only a person can accept it: with `accept_lossy: "
        f"{{k0: {report.k0}}}` under jobs.{report.job} in params.yaml, `generate` and `reproduce` give "
        f"{routing_name(report.k0)} outputs until that line is removed",
    ]
