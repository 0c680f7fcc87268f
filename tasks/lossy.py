"""What a lossy routing would gain, and what it would cost in outputs: measured side by side, decided by nobody.

In: a job, its prompts and a started `RoutingEngine`. Out: a `LossyReport`: of each arm its gain over shuffling, how
many outputs it changes beside what reshuffling changes, and its scores. The routing is Opportunistic Expert Activation
(arXiv 2511.02237): it gives tokens other experts than the model's own, so it is another model. Nothing here promotes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from orderproof.tasks.engines import Failure, Output, Request
from orderproof.tasks.engines.routing import RoutingEngine
from orderproof.tasks.errors import OrderproofError
from orderproof.tasks.evidence import CANDIDATE, CONTROL
from orderproof.tasks.files import write_atomically
from orderproof.tasks.jobs import Job, OrderSpec
from orderproof.tasks.judgement import is_vacuous
from orderproof.tasks.models import ModelFacts
from orderproof.tasks.orders import Order, make_order, view_of
from orderproof.tasks.outputs import OutputChange, PassOutputs, compare
from orderproof.tasks.outputs.scorers import score
from orderproof.tasks.plan import measured_prompts, restrict
from orderproof.tasks.prompts import TokenizedPrompts
from orderproof.tasks.signals.served import Served
from orderproof.tasks.trial import toss
from orderproof.tasks.verdict import Rule, estimate

SHUFFLED, SORTED, LOSSY, SORTED_LOSSY = "shuffled", "sorted", "shuffled, lossy", "sorted, lossy"
ARMS = (SHUFFLED, SORTED, LOSSY, SORTED_LOSSY)
WARM_UP_BATCHES = 4

Progress = Callable[[str, int, int], None]


class LossyError(OrderproofError):
    """A lossy comparison that cannot be made: why, and what to do."""


@dataclass(frozen=True)
class ArmResult:
    """One arm beside the shuffled one, in the same blocks."""

    arm: str
    throughput_req_s: float  # mean of its passes
    gain: float
    gain_low: float  # two-sided 95 %
    gain_high: float
    outputs: OutputChange


@dataclass(frozen=True)
class LossyReport:
    """The comparison."""

    job: str
    k0: int
    top_k: int
    order: str
    prompts: int
    blocks: int
    toy: bool
    arms: tuple[ArmResult, ...]  # all but the shuffled one
    throughput_req_s: float  # of the shuffled arm

    def as_json(self) -> dict[str, Any]:
        told = asdict(self)
        for arm, result in zip(told["arms"], self.arms, strict=True):
            arm["outputs"] = result.outputs.model_dump()
        return {"schema": 1, "lossy": True, "promotes": False, **told}


@dataclass(frozen=True)
class _Pass:
    arm: str
    rate: float
    outputs: PassOutputs


def compare_lossy(
    job: Job,
    model: ModelFacts,
    prompts: TokenizedPrompts,
    dataset_md5: str,
    engine: RoutingEngine,
    k0: int,
    blocks: int,
    progress: Progress = lambda arm, done, total: None,
) -> LossyReport:
    """Run every arm once in each block, in an order that a coin decides, all in one engine and eagerly.

    Args:
        k0: how many of a token's own experts it keeps for sure; fewer than the model's top_k.
        blocks: 5 to 40, as for a verdict.

    Raises:
        LossyError: k0 that changes nothing or is none, or a request that the engine refused.
    """
    top_k = refuse_k0(model, k0)
    chosen = make_order(job.order, view_of(prompts, Served.by(job)), dataset_md5)
    picked = measured_prompts(chosen.permutation, job.measure.prompts, job.engine.max_num_seqs)
    few, candidate = prompts.take(picked), restrict(chosen, picked)
    _run(job, few, candidate.permutation[: WARM_UP_BATCHES * job.engine.max_num_seqs], engine, None, "warm-up")
    passes: list[_Pass] = []
    for block in range(1, blocks + 1):
        shuffled = make_order(OrderSpec(method="shuffled", seed=job.measure.seed + block), few, dataset_md5)
        for arm in toss(job.measure.seed, block, 0, ARMS):
            order = candidate if arm in (SORTED, SORTED_LOSSY) else shuffled
            lossy = k0 if arm in (LOSSY, SORTED_LOSSY) else None
            passes.append(_run(job, few, order.permutation, engine, lossy, arm, f"b{block:02d}"))
            progress(arm, len(passes), blocks * len(ARMS))
    return LossyReport(
        job=job.name,
        k0=k0,
        top_k=top_k,
        order=chosen.method,
        prompts=len(few),
        blocks=blocks,
        toy=model.toy,
        arms=tuple(_result(job, passes, arm, candidate) for arm in ARMS[1:]),
        throughput_req_s=float(np.mean([one.rate for one in passes if one.arm == SHUFFLED])),
    )


def refuse_k0(model: ModelFacts, k0: int) -> int:
    """The model's top_k. Raises LossyError where `k0` of it make no sense."""
    if model.moe is None:
        raise LossyError(f"{model.path} ({model.architecture}) is a dense model: there is no routing to change")
    if not 1 <= k0 < model.moe.top_k:
        raise LossyError(
            f"k0 = {k0} makes no sense for {model.path}: a token uses {model.moe.top_k} experts there, so take 1 to "
            f"{model.moe.top_k - 1}"
        )
    return model.moe.top_k


def _run(
    job: Job,
    prompts: TokenizedPrompts,
    sent: np.ndarray[Any, Any],
    engine: RoutingEngine,
    k0: int | None,
    arm: str,
    block: str = "",
) -> _Pass:
    answers: list[Output | Failure] = []
    requests = [Request(k, prompts.token_ids(k), prompts.samplings[k]) for k in sent.tolist()]
    with engine.opportunistic(k0):
        figures = engine.run(requests, job.sampling, answers.append)
    for answer in answers:
        if isinstance(answer, Failure):
            raise LossyError(f"prompt {prompts.ids[answer.number]!r} was refused, so no pass is whole: {answer.reason}")
    outputs = [answer for answer in answers if isinstance(answer, Output)]
    table = pa.table(
        {
            "prompt_id": [prompts.ids[output.number] for output in outputs],
            "token_ids": pa.array(
                [[t for one in output.completions for t in one.token_ids] for output in outputs], pa.list_(pa.int32())
            ),
            "score": pa.array([_score(job, prompts, output) for output in outputs], pa.float64()),
        }
    )
    ids = [prompts.ids[k] for k in np.sort(sent).tolist()]
    return _Pass(arm, len(outputs) / figures.wall_s, PassOutputs.from_tokens(f"{block} {arm}", arm, table, ids))


def _score(job: Job, prompts: TokenizedPrompts, output: Output) -> float | None:
    scorer, reference = job.measure.scorer, prompts.references[output.number]
    if scorer is None or reference is None:
        return None
    return float(np.mean([score(scorer, one.text, reference) for one in output.completions]))


def _result(job: Job, passes: Sequence[_Pass], arm: str, candidate: Order) -> ArmResult:
    """Gain and outputs of one arm against the shuffled one."""
    control, own = ([one for one in passes if one.arm == name] for name in (SHUFFLED, arm))
    ratios = np.log([b.rate / a.rate for a, b in zip(control, own, strict=True)])
    seen = estimate(ratios, Rule(looks=(len(ratios),)))
    named: Mapping[str, str] = {SHUFFLED: CONTROL, arm: CANDIDATE}
    renamed = [
        PassOutputs(one.outputs.pass_id, named[one.arm], one.outputs.digests, one.outputs.scores)
        for one in passes
        if one.arm in named
    ]
    outputs = compare(renamed, candidate.inverse(), job.engine.max_num_seqs, vacuous=is_vacuous(job.sampling))
    return ArmResult(
        arm=arm,
        throughput_req_s=float(np.mean([one.rate for one in own])),
        gain=math.expm1(seen.mean),
        gain_low=math.expm1(seen.low),
        gain_high=math.expm1(seen.high),
        outputs=outputs,
    )


def reports_dir(job: Job) -> Path:
    """reports/lossy/<job>: out of reach of promotions and DVC."""
    return job.root / "reports" / "lossy" / job.name


def lines(report: LossyReport) -> list[str]:
    """The page as text; that it is lossy stands first."""
    told = [
        f"LOSSY: {report.job} with another routing than the model's own. It changes what is generated, and nothing is "
        "promoted by this page",
        f"Opportunistic Expert Activation, k0 = {report.k0} of {report.top_k} experts, decoding tokens only; "
        f"{report.prompts} prompts, {report.blocks} blocks, eagerly, against shuffled "
        f"({report.throughput_req_s:.2f} requests/s)" + ("; a toy model: nobody's gain" if report.toy else ""),
    ]
    for arm in report.arms:
        changed, floor = arm.outputs.d_ab, arm.outputs.d_aa
        order = f" ({report.order} order)" if arm.arm != LOSSY else ""
        told.append(
            f"  {arm.arm + order:32s} {arm.gain:+6.1%} ({arm.gain_low:+.1%} to {arm.gain_high:+.1%}); outputs changed: "
            f"{changed or 0:.1%}, by reshuffling alone {floor or 0:.1%}; {_scores(arm.outputs)}"
        )
    return told


def _scores(outputs: OutputChange) -> str:
    if outputs.scores is None:
        return "not scored (give references, and measure.scorer)"
    scores = outputs.scores
    low = "unknown" if scores.low is None else f"{scores.low:+.3f}"
    kept = "inside" if scores.passed else "NOT inside"
    return f"score {scores.difference:+.3f} (95 % lower bound {low}, {kept} its margin) on {scores.prompts} prompts"


def write_page(job: Job, report: LossyReport) -> Path:
    """lossy.json and lossy.md. Returns the page's path."""
    import json

    folder = reports_dir(job)
    write_atomically(folder / "lossy.json", json.dumps(report.as_json(), indent=1, ensure_ascii=False) + "\n")
    first, *rest = lines(report)
    body = "\n".join(f"- {line.strip()}" if line.startswith("  ") else f"{line}\n" for line in rest)
    write_atomically(folder / "lossy.md", f"# {first}\n\n{body}\n")
    return folder / "lossy.md"
