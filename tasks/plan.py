"""The plan of a trial: which arms, which prompts, which seeds, how many blocks; or why there is nothing to measure.

In: a `Job`, its validated prompts, the order it runs in today and the trials that it had. Out: a `Plan`, whose
`manifest()` is registered before the first pass. Starts no engine; spends no accelerator time.
"""

from __future__ import annotations

import datetime
import hashlib
import platform
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderproof.tasks.engines import EngineInfo
from orderproof.tasks.evidence import CANDIDATE, CONTROL, SHUFFLED, Manifest, OrderRecord, Trial, canonical_json
from orderproof.tasks.jobs import Job, OrderSpec
from orderproof.tasks.models import ModelFacts, MoeFacts
from orderproof.tasks.orders import Order, make_order, shuffle_like
from orderproof.tasks.prompts import TokenizedPrompts
from orderproof.tasks.verdict import Rule, detectable_gain

QUIET_LOOKS, NOISY_LOOKS = (5, 10), (10, 20, 40)
NOISY_SD = 0.04  # of a block's log ratio: above it, ten blocks see only gains of more than about 6 %
RUN_BATCHES = 8  # length of the runs of neighbours in a sample, so that a run fills batches of its own
PREFILL_TOKENS_PER_OUTPUT_TOKEN = 100  # above it decode, where an order saves, is a sliver of the job
TOUCHED_BY_A_SORTED_BATCH = 0.999  # of the experts: above it there is nothing left to save
SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
# Published for Qwen3-30B-A3B: a domain sends 68-80 % of its routing to its favourite quarter of the experts.
FAVOURITE_SHARE, FAVOURITE_EXPERTS = 0.74, 0.25


@dataclass(frozen=True)
class Plan:
    """All that is decided before an engine starts."""

    job: Job
    model: ModelFacts
    prompts: TokenizedPrompts  # the measured ones, in the file's order
    dataset_md5: str
    prompts_total: int
    chosen: Order  # the candidate over the whole file: what a promotion pins
    orders: Mapping[str, Order | None]  # arm → its order over the measured prompts; None: a fresh shuffle per block
    control_why: str
    rule: Rule
    question: str
    attempt: int
    coin_seed: int
    shuffle_seeds: tuple[int, ...]
    detectable_gain_before: float | None
    placebo: bool
    refusal: str | None  # why nothing should be measured; None: go

    def manifest(self, engine: EngineInfo, probe_baseline_s: float) -> Manifest:
        """What is registered, once the engine has said what it is."""
        now = datetime.datetime.now(datetime.UTC)
        spec, control = self.job.engine, self.orders[CONTROL]
        candidate = self.orders[CANDIDATE]
        assert candidate is not None
        return Manifest(
            trial=f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}",
            job=self.job.name,
            placebo=self.placebo,
            question=self.question,
            attempt=self.attempt,
            rule=self.rule,
            arms=tuple(self.orders),
            control_why=self.control_why,
            control=control.record() if control else None,
            candidate=candidate.record(),
            coin_seed=self.coin_seed,
            shuffle_seeds=self.shuffle_seeds,
            validity={**self.job.measure.validity.model_dump(), "probe_baseline_s": probe_baseline_s},
            dataset_md5=self.dataset_md5,
            prompts_total=self.prompts_total,
            prompts_measured=len(self.prompts),
            measured_sha256=_sha256("\n".join(self.prompts.ids)),
            prompt_tokens=int(self.prompts.offsets[-1]),
            model=self.model.as_dict(),
            engine={
                "command": list(spec.command),
                "env": _without_secrets(spec.env),
                "args": spec.args,
                **engine.settings,
            },
            sampling=self.job.sampling,
            versions={**_versions(), **{f"engine_{name}": version for name, version in engine.versions.items()}},
            machine={**engine.machine, "load_s": round(engine.load_s, 2)},
            detectable_gain_before=self.detectable_gain_before,
            created_utc=now.isoformat(timespec="seconds"),
        )


def make_plan(
    job: Job,
    model: ModelFacts,
    prompts: TokenizedPrompts,
    dataset_md5: str,
    current: Order,
    history: Sequence[Trial],
    *,
    placebo: bool = False,
) -> Plan:
    """Decide everything that a trial needs, from numbers that exist before its first pass.

    Args:
        prompts: all of the job's prompts.
        current: the order in which the job runs today, over all prompts.
        history: the job's earlier trials, placebos left out.

    Raises:
        OrderError: the candidate cannot be made of these prompts.
    """
    spec = OrderSpec(method="shuffled", seed=job.measure.seed + 1) if placebo else job.order
    chosen = make_order(spec, prompts, dataset_md5)
    if current.method != "file" and np.array_equal(current.permutation, chosen.permutation):
        # The candidate was promoted before: whether it still pays shows against what the job would do without it.
        current = make_order(OrderSpec(method="file"), prompts, dataset_md5)
    measured = measured_prompts(chosen.permutation, job.measure.prompts, job.engine.max_num_seqs)
    subset = prompts.take(measured)
    question = _question(job, model, dataset_md5, chosen, subset.ids)
    attempt = 1 + sum(1 for trial in history if trial.manifest.question == question and _was_looked_at(trial))
    noise = _history_sd(job, model, history)
    looks = job.measure.looks or (NOISY_LOOKS if noise and noise > NOISY_SD else QUIET_LOOKS)
    measure = job.measure
    rule = Rule(
        metric=measure.metric,
        alpha=measure.alpha / 2 ** (attempt - 1),  # every further trial of one question spends half of what was left
        looks=looks,
        margin=measure.margin,
        worthwhile=measure.worthwhile,
        outputs=job.outputs,
    )
    control, why = _control(current, prompts, placebo)
    orders: dict[str, Order | None] = {CONTROL: restrict(control, measured) if control else None}
    orders[CANDIDATE] = restrict(chosen, measured)
    if control:
        orders[SHUFFLED] = None
    seeds = np.random.SeedSequence([measure.seed, attempt, int(placebo)]).generate_state(1 + max(looks), np.uint32)
    return Plan(
        job=job,
        model=model,
        prompts=subset,
        dataset_md5=dataset_md5,
        prompts_total=len(prompts),
        chosen=chosen,
        orders=orders,
        control_why=why,
        rule=rule,
        question=question,
        attempt=attempt,
        coin_seed=int(seeds[0]),
        shuffle_seeds=tuple(int(seed) for seed in seeds[1:]),
        detectable_gain_before=detectable_gain(noise, rule) if noise else None,
        placebo=placebo,
        refusal=None if placebo else structural_refusal(job, model, subset, chosen, control),
    )


def structural_refusal(
    job: Job, model: ModelFacts, prompts: TokenizedPrompts, candidate: Order, control: Order | None
) -> str | None:
    """Why no order can help here, as far as that is certain without a prediction; None if it may."""
    batch = job.engine.max_num_seqs
    if model.moe is None:
        return (
            f"{model.path} ({model.architecture}) is a dense model: every token reads all weights in any order, so "
            "there is nothing to gain"
        )
    if len(prompts) < 2:
        return "the job has a single prompt, which has only one order"
    if len(prompts) <= batch:
        return (
            f"all {len(prompts)} prompts run at once in one batch of {batch}, so their order decides nothing; "
            "sort only jobs of several batches"
        )
    if model.moe.top_k >= model.moe.experts:
        return f"{model.path} sends every token to all of its {model.moe.experts} experts, so no order saves any"
    touched = touched_by_a_sorted_batch(model.moe, batch)
    if touched > TOUCHED_BY_A_SORTED_BATCH:
        return (
            f"a batch of {batch} touches {touched:.2%} of the {model.moe.experts} experts even when sorted (top-"
            f"{model.moe.top_k}, published concentration of a domain), so no order saves any"
        )
    output_tokens = int(job.sampling.get("max_tokens") or 16)
    prompt_tokens = int(prompts.offsets[-1]) / len(prompts)
    if output_tokens < 2 or prompt_tokens / output_tokens > PREFILL_TOKENS_PER_OUTPUT_TOKEN:
        return (
            f"the job is nearly all prefill: {prompt_tokens:.0f} prompt tokens for at most {output_tokens} generated, "
            "and only decoding gains from an order"
        )
    if control and np.array_equal(control.permutation, candidate.permutation):
        return f"the candidate ({candidate.method}) is the order in which the job runs already"
    return None


def touched_by_a_sorted_batch(moe: MoeFacts, batch: int) -> float:
    """Expected share of a layer's experts that one decode step of a single-domain batch selects.

    Tokens pick experts independently, favourites with FAVOURITE_SHARE of the traffic:
    Σ_groups size·(1 − (1 − p)^batch), p = top_k · traffic / (size · experts).
    """
    groups = ((FAVOURITE_EXPERTS, FAVOURITE_SHARE), (1 - FAVOURITE_EXPERTS, 1 - FAVOURITE_SHARE))
    return sum(
        size * (1 - (1 - min(1.0, moe.top_k * traffic / (size * moe.experts))) ** batch) for size, traffic in groups
    )


def measured_prompts(permutation: NDArray[np.int64], wanted: int | None, batch: int) -> NDArray[np.int64]:
    """Which prompts a trial measures: all, or evenly spread runs of neighbours in the sorted order.

    Runs and not single prompts, because thinning the prompts would thin the clusters that make the gain.

    Returns:
        int64[measured]: indices in the file, ascending.
    """
    total = len(permutation)
    if wanted is None or wanted >= total:
        return np.arange(total)
    run = min(wanted, RUN_BATCHES * batch)
    runs = max(1, wanted // run)
    starts = np.floor((np.arange(runs) + 0.5) * total / runs - run / 2).astype(int).clip(0, total - run)
    picked = (starts[:, None] + np.arange(run)).ravel()
    return np.sort(permutation[picked])


def restrict(order: Order, measured: NDArray[np.int64]) -> Order:
    """The same order over the measured prompts alone, numbered by their place among the measured."""
    place = np.full(len(order.permutation), -1, np.int64)
    place[measured] = np.arange(len(measured))
    kept = place[order.permutation]
    return Order(kept[kept >= 0], order.method, order.parameters, order.seeds, order.dataset_md5)


def _control(current: Order, prompts: TokenizedPrompts, placebo: bool) -> tuple[Order | None, str]:
    """The arm that the candidate must beat: what the job does today, or shuffles if that is as good as shuffled."""
    if placebo:
        return None, "shuffled afresh in every block: a placebo compares one shuffle with others"
    looks_shuffled, p = shuffle_like(current.permutation, prompts)
    if looks_shuffled:
        return None, (
            f"shuffled afresh in every block: the job's current order ({current.method}) is like a shuffle "
            f"(permutation test on neighbours, p = {p:.3f})"
        )
    return current, (
        f"the job's current order ({current.method}), which groups similar prompts already (permutation "
        f"test on neighbours, p = {p:.3f}); shuffled is the third arm"
    )


def _question(job: Job, model: ModelFacts, dataset_md5: str, chosen: Order, measured: Sequence[str]) -> str:
    """Hash of what is asked: trials that share it share α."""
    engine = job.engine
    asked: dict[str, Any] = {
        "dataset": dataset_md5,
        "measured": _sha256("\n".join(measured)),
        "model": model.fingerprint,
        "engine": {"args": engine.args, "env": engine.env, "in_process": engine.in_process},
        "sampling": job.sampling,
        "candidate": OrderRecord.model_dump(chosen.record()),
        "metric": job.measure.metric,
        "margin": job.measure.margin,
        "outputs": job.outputs,
    }
    return _sha256(canonical_json(asked))


def _was_looked_at(trial: Trial) -> bool:
    """A trial counts as an attempt from its first whole block: whoever stopped it could have seen it."""
    return bool(trial.blocks())


def _history_sd(job: Job, model: ModelFacts, history: Sequence[Trial]) -> float | None:
    """Pooled standard deviation of blocks' log ratios in earlier trials on this model and engine."""
    squares, freedom = 0.0, 0
    for trial in history:
        manifest = trial.manifest
        if manifest.model["fingerprint"] != model.fingerprint or manifest.engine["args"] != job.engine.args:
            continue
        rates = [[getattr(b.passes[arm], manifest.rule.metric) for arm in (CONTROL, CANDIDATE)] for b in trial.blocks()]
        if len(rates) > 1:
            ratios = np.log([candidate / control for control, candidate in rates])
            squares += float(((ratios - ratios.mean()) ** 2).sum())
            freedom += len(ratios) - 1
    return float(np.sqrt(squares / freedom)) if freedom else None


def _without_secrets(env: Mapping[str, str]) -> dict[str, str]:
    """The manifest goes to trackers and remotes; a token must not."""
    return {name: "(hidden)" if SECRET.search(name) else value for name, value in env.items()}


def _versions() -> dict[str, str]:
    names = ("orderproof", "numpy", "scikit-learn", "sentence-transformers", "transformers", "prefect", "mlflow", "dvc")
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in names}}


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
