"""Blocks of paired passes → records.

In: a `Plan` and a started `Engine`. Out: a `Trial` whose folder grows by one block at a time. Decides nothing: the coin
and the seeds come from the plan, a block is repeated for failed requests and throttling alone, and the verdict is
judgement.py's.
"""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from orderproof.engines.protocol import Completion, Engine, Failure, Figures, Output, Request, Share
from orderproof.engines.requests import RequestList
from orderproof.job.sampling import asked_samples, asked_tokens
from orderproof.job.spec import Job, OrderSpec
from orderproof.measure.plan import Plan
from orderproof.measure.trial_store import SAMPLE_END, TOKENS_SCHEMA, Pass, Trial, record, register
from orderproof.orders.order import Order
from orderproof.orders.registry import make_order
from orderproof.outputs.scorers import score

SERIES_POINTS = 100  # of a pass's step times, for its picture
WARM_UP_BATCHES = 8
BASELINE_PROBES = 5

PassProgress = Callable[[str, int, int], None]  # (pass id, finished requests, all requests)


def no_progress(pass_id: str, finished: int, requests: int) -> None:
    """Tell nobody."""


def reports_of(job: Job, placebo: bool) -> Path:
    """Where a job's trials lie; placebos apart, out of reach of promotions and DVC."""
    return job.root / "reports" / "placebo" / job.name if placebo else job.reports_dir


def begin(plan: Plan, engine: Engine, progress: PassProgress = no_progress) -> Trial:
    """Register the trial in a new folder, then warm the engine up with one discarded pass."""
    probes = [engine.probe(plan.job.measure.validity.probe_mib) for _ in range(BASELINE_PROBES)]
    manifest = plan.manifest(engine.info, statistics.median(probes))
    trial = register(reports_of(plan.job, plan.placebo) / manifest.trial, manifest)
    few = min(len(plan.prompts), WARM_UP_BATCHES * plan.job.engine.max_num_seqs * plan.job.engine.replicas)
    shuffle = _shuffle(plan, manifest.coin_seed)
    warm_up = Order(np.argsort(np.argsort(shuffle.permutation[:few])), "shuffled", {}, shuffle.seeds, plan.dataset_md5)
    picked = np.sort(shuffle.permutation[:few])
    timed, tokens = _run_pass(plan, engine, trial, (0, 0, 0), "warm-up", warm_up, picked, progress)
    return record(trial, timed, tokens)


def run_block(plan: Plan, engine: Engine, trial: Trial, number: int, progress: PassProgress = no_progress) -> Trial:
    """One valid pass of every arm, side by side in time; a block with a bad pass is kept, discarded and repeated."""
    for attempt in range(plan.job.measure.validity.repeats + 1):
        trial = _attempt_block(plan, engine, trial, number, attempt, progress)
        if trial.blocks() and trial.blocks()[-1].number == number:
            break
    return trial


def _attempt_block(
    plan: Plan, engine: Engine, trial: Trial, number: int, attempt: int, progress: PassProgress
) -> Trial:
    everyone = np.arange(len(plan.prompts))
    for turn, arm in enumerate(randomize_arms(plan.coin_seed, number, attempt, tuple(plan.orders))):
        order = plan.orders[arm] or _shuffle(plan, plan.shuffle_seeds[number - 1])
        timed, tokens = _run_pass(plan, engine, trial, (number, attempt, turn), arm, order, everyone, progress)
        trial = record(trial, timed, tokens)
    return trial


def randomize_arms(coin_seed: int, block: int, attempt: int, arms: Sequence[str]) -> list[str]:
    """The arms in a uniformly drawn order, independent for every block: a fixed order would read drift as gain."""
    return [arms[k] for k in np.random.default_rng([coin_seed, block, attempt]).permutation(len(arms))]


def _shuffle(plan: Plan, seed: int) -> Order:
    return make_order(OrderSpec(method="shuffled", seed=seed), plan.prompts, plan.dataset_md5)


def _run_pass(
    plan: Plan,
    engine: Engine,
    trial: Trial,
    place: tuple[int, int, int],
    arm: str,
    order: Order,
    picked: np.ndarray,
    progress: PassProgress,
) -> tuple[Pass, pa.Table]:
    """Time one pass of `order` over the picked prompts, with the probe before and after it."""
    block, attempt, _ = place
    pass_id = f"b{block:02d}{f'r{attempt}' if attempt else ''}-{arm}"
    prompts, sampling, mib = plan.prompts, plan.job.sampling, plan.job.measure.validity.probe_mib
    sent = picked[order.permutation]  # index among the measured prompts, in the order of sending
    answers: list[Output | Failure] = []

    def sink(answer: Output | Failure) -> None:
        answers.append(answer)
        progress(pass_id, len(answers), len(sent))

    requests = [Request(k, prompts.token_ids(k), prompts.samplings[k], prompts.lora(k)) for k in sent.tolist()]
    started = datetime.datetime.now(datetime.UTC)
    before = engine.probe(mib)
    asked = list(asked_tokens(plan.job, [request.sampling for request in requests]))
    samples = asked_samples(plan.job, [request.sampling for request in requests])
    figures = engine.run(RequestList(requests, asked, list(samples)), sampling, sink)
    after = engine.probe(mib)
    done = _outputs(sent, answers)
    tokens = _tokens_table(plan, sent, done)
    generated = sum(output.output_tokens for output in done if output)
    timed = _pass_record(trial, place, pass_id, arm, order, started, figures, tokens, generated, (before, after))
    cut = _cut_short(done, asked)
    reasons = _why_invalid(timed, cut)
    return timed.model_copy(update={"cut_short": cut, "invalid": reasons}), tokens


def _outputs(sent: np.ndarray, answers: Sequence[Output | Failure]) -> list[Output | None]:
    """What each request generated, in the order of sending; None: nothing."""
    by_number = {answer.number: answer for answer in answers if isinstance(answer, Output)}
    return [by_number.get(k) for k in sent.tolist()]


def _tokens_table(plan: Plan, sent: np.ndarray, done: Sequence[Output | None]) -> pa.Table:
    """TOKENS_SCHEMA rows in the order of sending."""
    prompts, scorer = plan.prompts, plan.job.measure.scorer
    lengths = np.diff(prompts.offsets)[sent]
    references = [prompts.references[k] for k in sent.tolist()]
    scores = [
        statistics.fmean(score(scorer, one.text, reference) for one in output.completions)
        if scorer and output and reference is not None
        else None
        for output, reference in zip(done, references, strict=True)
    ]
    columns = [
        [prompts.ids[k] for k in sent.tolist()],
        list(range(len(sent))),
        _admission(done),
        lengths.tolist(),
        [_end_to_end(output.completions) if output else [] for output in done],
        [",".join(one.finish_reason for one in output.completions) if output else "failed" for output in done],
        ["\n\n".join(one.text for one in output.completions) if output else "" for output in done],
        scores,
    ]
    return pa.Table.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, TOKENS_SCHEMA, strict=True)],
        schema=TOKENS_SCHEMA,
    )


def _end_to_end(completions: Sequence[Completion]) -> list[int]:
    tokens = list(completions[0].token_ids)
    for one in completions[1:]:
        tokens += [SAMPLE_END, *one.token_ids]
    return tokens


def _admission(outputs: Sequence[Output | None]) -> list[int]:
    """Each request's place in the scheduler's order of admission; -1 for one that never ran."""
    clock = np.array([output.scheduled_s if output else np.inf for output in outputs])
    rank = np.argsort(np.argsort(clock, kind="stable"), kind="stable")
    return [int(place) if output else -1 for place, output in zip(rank, outputs, strict=True)]


def _inversions(admitted: np.ndarray, shares: Sequence[Share]) -> int:
    """Requests that were admitted before one sent earlier: an order that a replica's scheduler undid."""
    replicas = {share.replica for share in shares}
    sent = [np.concatenate([admitted[s.start : s.stop] for s in shares if s.replica == k]) for k in replicas]
    return sum(map(_inverted, sent or [admitted]))


def _inverted(admitted: np.ndarray) -> int:
    ran = admitted[admitted >= 0]
    return int((ran < np.maximum.accumulate(ran)).sum()) if len(ran) else 0


def _cut_short(done: Sequence[Output | None], asked: Iterable[int | None]) -> int:
    """Requests that ended for length with fewer tokens than asked: vLLM lets the model's length cut them silently."""
    return sum(
        any(one.finish_reason == "length" and len(one.token_ids) < most for one in output.completions)
        for output, most in zip(done, asked, strict=True)
        if output and most is not None
    )


def _pass_record(
    trial: Trial,
    place: tuple[int, int, int],
    pass_id: str,
    arm: str,
    order: Order,
    started: datetime.datetime,
    figures: Figures,
    tokens: pa.Table,
    generated: int,
    probes: tuple[float, float],
) -> Pass:
    finished = sum(reason != "failed" for reason in tokens["finish_reason"].to_pylist())
    steps = figures.step_ms
    return Pass(
        pass_id=pass_id,
        block=place[0],
        attempt=place[1],
        arm=arm,
        turn=place[2],
        seed=order.seeds.get("shuffle", order.seeds.get("seed")) if order.method == "shuffled" else None,
        order_sha256=order.sha256,
        manifest_sha256=trial.manifest.sha256,
        started_utc=started.isoformat(timespec="seconds"),
        wall_s=figures.wall_s,
        requests=finished,
        prompt_tokens=int(np.sum(tokens["prompt_tokens"].to_numpy())),
        output_tokens=generated,
        throughput_req_s=finished / figures.wall_s,
        throughput_tok_s=generated / figures.wall_s,
        steps=len(steps),
        time_per_batch_ms=float(np.median(steps)) if len(steps) else 0.0,
        time_per_batch_p95_ms=float(np.percentile(steps, 95)) if len(steps) else 0.0,
        running_mean=float(figures.running.mean()) if len(steps) else 0.0,
        preempted=figures.preempted,
        admission_inversions=_inversions(tokens["admitted"].to_numpy(), figures.shares),
        prefix_queries=figures.prefix_queries,
        prefix_hits=figures.prefix_hits,
        failed=len(tokens) - finished,
        cut_short=0,
        steal=figures.steal,
        probe_before_s=probes[0],
        probe_after_s=probes[1],
        accelerator=dict(figures.accelerator),
        replica_wall_s=figures.replica_s,
        step_ms_series=_series(steps),
        running_series=_series(figures.running),
    )


def _series(values: np.ndarray) -> tuple[float, ...]:
    """Medians of up to SERIES_POINTS equal runs."""
    runs = np.array_split(values, min(SERIES_POINTS, len(values))) if len(values) else []
    return tuple(round(float(np.median(run)), 3) for run in runs)


def _why_invalid(timed: Pass, cut_short: int) -> tuple[str, ...]:
    """Reasons to discard a pass: failed requests and throttling. Probe, steal and load are context on record.

    A shared machine is noisy all the time, in both arms alike; the interval of the gain shows that noise.
    """
    checks = {
        f"{timed.failed} requests failed": timed.failed > 0,
        f"{cut_short} requests were cut short of the tokens asked by the model's length": cut_short > 0,
        "the accelerator throttled": any(timed.accelerator.get(key) for key in ("throttled", "after_throttled")),
    }
    return tuple(reason for reason, holds in checks.items() if holds)
