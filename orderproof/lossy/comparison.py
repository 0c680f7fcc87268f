"""What a lossy routing would gain, and what it would cost in outputs: measured side by side, decided by nobody.

In: a job, its prompts, an order of them and a started `RoutingEngine`. Out: a `LossyReport`: of each arm its gain over
shuffling, how many outputs it changes beside what reshuffling changes, and its scores. The routing is Opportunistic
Expert Activation (arXiv 2511.02237): it gives tokens other experts than the model's own, so it is another model.
Nothing here promotes.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from orderproof.engines.protocol import Failure, Output, Request
from orderproof.engines.routing_engine import RoutingEngine
from orderproof.job.model import ModelFacts
from orderproof.job.output_key import output_key
from orderproof.job.spec import Job, OrderSpec
from orderproof.lossy.report import ARMS, LOSSY, SHUFFLED, SORTED, SORTED_LOSSY, ArmResult, LossyReport
from orderproof.lossy.routing import LossyError, refuse_k0
from orderproof.measure.evaluate import is_vacuous
from orderproof.measure.plan import measured_prompts, restrict
from orderproof.measure.trial import randomize_arms
from orderproof.measure.verdict import Rule, estimate
from orderproof.orders.order import Order
from orderproof.orders.registry import make_order
from orderproof.orders.shuffle_test import shuffle_like
from orderproof.outputs.output_change import compare
from orderproof.outputs.passes import CANDIDATE, CONTROL, PassOutputs
from orderproof.outputs.scorers import score
from orderproof.prompts.tokenization import TokenizedPrompts

WARM_UP_BATCHES = 4

ArmProgress = Callable[[str, int, int], None]  # (arm, passes done, passes in all)


@dataclass(frozen=True)
class _Pass:
    arm: str
    rate: float
    outputs: PassOutputs


def compare_lossy(
    job: Job,
    model: ModelFacts,
    prompts: TokenizedPrompts,
    chosen: Order,
    engine: RoutingEngine,
    k0: int,
    blocks: int,
    progress: ArmProgress = lambda arm, done, total: None,
) -> LossyReport:
    """Run every arm once in each block, in an order that a coin decides, all in one engine and eagerly.

    Args:
        chosen: of the sorted arms, over all prompts: `order_to_compare`.
        k0: how many of a token's own experts it keeps for sure; fewer than the model's top_k.
        blocks: 5 to 40, as for a verdict.

    Raises:
        LossyError: k0 that changes nothing or is none, or a request that the engine refused.
    """
    top_k = refuse_k0(model, k0)
    picked = measured_prompts(chosen.permutation, job.measure.prompts, job.engine.max_num_seqs)
    few, candidate = prompts.take(picked), restrict(chosen, picked)
    _run(job, few, candidate.permutation[: WARM_UP_BATCHES * job.engine.max_num_seqs], engine, None, "warm-up")
    passes: list[_Pass] = []
    for block in range(1, blocks + 1):
        shuffled = make_order(OrderSpec(method="shuffled", seed=job.measure.seed + block), few, chosen.dataset_md5)
        for arm in randomize_arms(job.measure.seed, block, 0, ARMS):
            order = candidate if arm in (SORTED, SORTED_LOSSY) else shuffled
            lossy = k0 if arm in (LOSSY, SORTED_LOSSY) else None
            passes.append(_run(job, few, order.permutation, engine, lossy, arm, f"b{block:02d}"))
            progress(arm, len(passes), blocks * len(ARMS))
    return LossyReport(
        job=job.name,
        k0=k0,
        top_k=top_k,
        order=chosen.record(),
        dataset_md5=chosen.dataset_md5,
        scorer=job.measure.scorer,
        asked=output_key(job, model),
        engine=engine.info.kind,
        file_like_shuffle=shuffle_like(np.arange(len(prompts)), prompts)[0],
        prompts=len(few),
        blocks=blocks,
        toy=model.toy,
        arms=tuple(_result(job, passes, arm, candidate) for arm in ARMS[1:]),
        throughput_req_s=float(np.mean([one.rate for one in passes if one.arm == SHUFFLED])),
        created_utc=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


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
