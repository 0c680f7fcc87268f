"""Measure what a lossy routing would gain and how it would change outputs, next to the model's own routing.

The routing is Opportunistic Expert Activation (arXiv 2511.02237). It gives tokens other experts than the model's own,
so it is a different model. Nothing here is promoted.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from orderproof.engines.protocol import Failure, Output, Request
from orderproof.engines.routing_engine import RoutingEngine
from orderproof.job.model import ModelFacts
from orderproof.job.output_key import output_key
from orderproof.job.spec import Job, OrderSpec
from orderproof.lossy.report import ARMS, LOSSY, SHUFFLED, SORTED, SORTED_LOSSY, ArmResult, LossyReport
from orderproof.lossy.routing import LossyError, refuse_k0
from orderproof.measure.evaluate import is_vacuous
from orderproof.measure.plan import measured_prompts, restrict
from orderproof.orders.order import Order
from orderproof.orders.registry import make_order
from orderproof.orders.shuffle_test import shuffle_like
from orderproof.outputs.output_change import compare
from orderproof.outputs.passes import CANDIDATE, CONTROL, PassOutputs
from orderproof.outputs.quantiles import t_quantile
from orderproof.outputs.scorers import score
from orderproof.prompts.tokenization import TokenizedPrompts

WARM_UP_BATCHES = 4

ArmProgress = Callable[[str, int, int], None]  # (arm, finished passes, total passes)


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
    """Run every arm once in each block, in random order, all in one engine in eager mode.

    Args:
        chosen: the order of the sorted arms, over all prompts, from `order_to_compare`.
        k0: how many of its own experts a token always keeps; less than the model's top_k.
        blocks: 5 to 40, as for a verdict.

    Raises:
        LossyError: k0 is not valid for the model, or the engine refused a request.
    """
    top_k = refuse_k0(model, k0)
    picked = measured_prompts(chosen.permutation, job.measure.prompts, job.engine.max_num_seqs)
    sample, candidate = prompts.take(picked), restrict(chosen, picked)
    _run(job, sample, candidate.permutation[: WARM_UP_BATCHES * job.engine.max_num_seqs], engine, None, "warm-up")
    passes: list[_Pass] = []
    for block in range(1, blocks + 1):
        shuffled = make_order(OrderSpec(method="shuffled", seed=job.measure.seed + block), sample, chosen.dataset_md5)
        for arm in randomize_arms(job.measure.seed, block, ARMS):
            order = candidate if arm in (SORTED, SORTED_LOSSY) else shuffled
            lossy = k0 if arm in (LOSSY, SORTED_LOSSY) else None
            passes.append(_run(job, sample, order.permutation, engine, lossy, arm, f"b{block:02d}"))
            progress(arm, len(passes), blocks * len(ARMS))
    return LossyReport(
        job=job.name,
        k0=k0,
        top_k=top_k,
        order=chosen.record(),
        dataset_md5=chosen.dataset_md5,
        scorer=job.measure.scorer,
        output_key=output_key(job, model),
        engine=engine.info.kind,
        file_like_shuffle=shuffle_like(np.arange(len(prompts)), prompts)[0],
        prompts=len(sample),
        blocks=blocks,
        toy=model.toy,
        arms=tuple(_result(job, passes, arm, candidate) for arm in ARMS[1:]),
        throughput_req_s=float(np.mean([item.rate for item in passes if item.arm == SHUFFLED])),
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
        stats = engine.run(requests, job.sampling, answers.append)
    for answer in answers:
        if isinstance(answer, Failure):
            words = f"{prompts.ids[answer.number]!r}: {answer.reason}"
            error = LossyError("the engine refused a prompt, so the pass is incomplete. Take it out of the prompts")
            raise error.about_prompts(words, log_text=job.reporting.log_text)
    outputs = [answer for answer in answers if isinstance(answer, Output)]
    table = pa.table(
        {
            "prompt_id": [prompts.ids[output.number] for output in outputs],
            "token_ids": pa.array(
                [[token for completion in output.completions for token in completion.token_ids] for output in outputs],
                pa.list_(pa.int32()),
            ),
            "score": pa.array([_score(job, prompts, output) for output in outputs], pa.float64()),
        }
    )
    ids = [prompts.ids[k] for k in np.sort(sent).tolist()]
    return _Pass(arm, len(outputs) / stats.wall_s, PassOutputs.from_tokens(f"{block} {arm}", arm, table, ids))


def _score(job: Job, prompts: TokenizedPrompts, output: Output) -> float | None:
    scorer, reference = job.measure.scorer, prompts.references[output.number]
    if scorer is None or reference is None:
        return None
    return float(np.mean([score(scorer, completion.text, reference) for completion in output.completions]))


def _result(job: Job, passes: Sequence[_Pass], arm: str, candidate: Order) -> ArmResult:
    """Gain and changed outputs of one arm against the shuffled arm."""
    control, own = ([item for item in passes if item.arm == name] for name in (SHUFFLED, arm))
    ratios = np.log([after.rate / before.rate for before, after in zip(control, own, strict=True)])
    low, mean, high = _mean_with_interval(ratios)
    roles: Mapping[str, str] = {SHUFFLED: CONTROL, arm: CANDIDATE}
    renamed = [
        PassOutputs(item.outputs.pass_id, roles[item.arm], item.outputs.digests, item.outputs.scores)
        for item in passes
        if item.arm in roles
    ]
    outputs = compare(renamed, candidate.inverse(), job.engine.max_num_seqs, vacuous=is_vacuous(job.sampling))
    return ArmResult(
        arm=arm,
        throughput_req_s=float(np.mean([item.rate for item in own])),
        gain=math.expm1(mean),
        gain_low=math.expm1(low),
        gain_high=math.expm1(high),
        outputs=outputs,
    )


def randomize_arms(seed: int, block: int, arms: Sequence[str]) -> list[str]:
    """The arms in a uniformly drawn order, independent for every block: a fixed order would read drift as gain."""
    return [arms[k] for k in np.random.default_rng([seed, block, 0]).permutation(len(arms))]


def _mean_with_interval(ratios: NDArray[np.float64]) -> tuple[float, float, float]:
    """Lower bound, mean and upper bound of one value per block: Student's t, two-sided 95 %."""
    reach = t_quantile(0.975, len(ratios) - 1) * float(ratios.std(ddof=1)) / math.sqrt(len(ratios))
    mean = float(ratios.mean())
    return mean - reach, mean, mean + reach
