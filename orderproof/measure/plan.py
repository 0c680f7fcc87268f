"""The plan of a trial: which arms, which prompts, which seeds, how many blocks; or why there is nothing to measure.

In: a `Job`, its validated prompts, the order it runs in today and the trials that it had. Out: a `Plan`, whose
`manifest()` is registered before the first pass. Starts no engine; spends no accelerator time.
"""

from __future__ import annotations

import datetime
import hashlib
import logging
import platform
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderproof.engines.protocol import EngineInfo
from orderproof.forecast.stored_prediction import StoredPrediction
from orderproof.job.hashing import canonical_json, ids_sha256
from orderproof.job.model import ModelFacts
from orderproof.job.spec import SECTIONS_BESIDE_JOBS, UNMEASURED_KEYS, Job, OrderSpec
from orderproof.measure.preflight import foretold_refusal, structural_refusal
from orderproof.measure.trial_history import attempts, detectable_excess_before, noise_sd
from orderproof.measure.trial_store import History, Manifest
from orderproof.measure.verdict import Rule, detectable_gain
from orderproof.orders.order import Order
from orderproof.orders.registry import make_order
from orderproof.orders.shuffle_test import shuffle_like
from orderproof.orders.view import view_of
from orderproof.outputs.passes import CANDIDATE, CONTROL, SHUFFLED
from orderproof.prompts.tokenization import TokenizedPrompts
from orderproof.signals.served_model import ServedModel

QUIET_LOOKS, NOISY_LOOKS = (5, 10), (10, 20, 40)
NOISY_SD = 0.04  # of a block's log ratio: above it, ten blocks see only gains of more than about 6 %
RUN_BATCHES = 8  # length of the runs of neighbours in a sample, so that a run fills batches of its own
NONE = History()

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan:
    """All that is decided before an engine starts."""

    job: Job
    model: ModelFacts
    prompts: TokenizedPrompts  # the measured ones, in the file's order
    dataset_md5: str
    chosen: Order  # the candidate over the whole file: what a promotion pins
    orders: Mapping[str, Order | None]  # arm → its order over the measured prompts; None: a fresh shuffle per block
    control_why: str
    rule: Rule
    question: str
    attempt: int
    coin_seed: int
    shuffle_seeds: tuple[int, ...]
    noise_sd: float | None  # of a block's log ratio, in earlier trials on this model and engine
    detectable_excess_before: float | None
    placebo: bool
    foretold: StoredPrediction | None  # of the candidate, by the last plan
    refusal: str | None  # why nothing should be measured; None: go

    @property
    def prompts_total(self) -> int:
        """Of the whole job."""
        return len(self.chosen)

    @property
    def settings(self) -> str:
        """Hash of the question and all else in params.yaml that decides a measurement."""
        return _settings(self.job, self.question)

    @property
    def detectable_gain_before(self) -> float | None:
        """The smallest gain that the last look detects with 80 % power; None without earlier trials."""
        return detectable_gain(self.noise_sd, self.rule) if self.noise_sd else None

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
            settings=self.settings,
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
            measured_sha256=ids_sha256(self.prompts.ids),
            prompt_tokens=int(self.prompts.offsets[-1]),
            model=self.model.as_dict(),
            engine={
                "command": spec.command_for_records,
                "env": spec.environment_for_records,
                "args": spec.args,
                **engine.settings,
            },
            sampling=self.job.sampling,
            versions={**_versions(), **{f"engine_{name}": version for name, version in engine.versions.items()}},
            machine={**engine.machine, "load_s": round(engine.load_s, 2)},
            detectable_gain_before=self.detectable_gain_before,
            detectable_excess_before=self.detectable_excess_before,
            foretold=self.foretold,
            created_utc=now.isoformat(timespec="seconds"),
        )


def make_plan(
    job: Job,
    model: ModelFacts,
    prompts: TokenizedPrompts,
    dataset_md5: str,
    current: Order,
    history: History,
    *,
    placebo: bool = False,
    placebos: History = NONE,
    foretold: StoredPrediction | None = None,
) -> Plan:
    """Decide everything that a trial needs, from numbers that exist before its first pass.

    Args:
        prompts: all of the job's prompts.
        current: the order in which the job runs today, over all prompts.
        history, placebos: the job's earlier trials and, so that the next one has coins of its own, placebos.
        foretold: what the last `orderproof plan` predicted of this candidate, which may refuse the trial.

    Raises:
        OrderError: the candidate cannot be made of these prompts.
    """
    compared = _compared(job, prompts, dataset_md5, current, placebo)
    question = _question(job, model, dataset_md5, compared.chosen)
    attempt = _attempt(job, question, history, placebo)
    noise = noise_sd(job, model, history)
    rule = _rule(job, attempt, noise)
    coin_seed, *shuffle_seeds = _draw_seeds(job, question, placebo, len(placebos if placebo else history), rule)
    size = len(compared.prompts)
    return Plan(
        job=job,
        model=model,
        prompts=compared.prompts,
        dataset_md5=dataset_md5,
        chosen=compared.chosen,
        orders=compared.orders,
        control_why=compared.control_why,
        rule=rule,
        question=question,
        attempt=attempt,
        coin_seed=coin_seed,
        shuffle_seeds=tuple(shuffle_seeds),
        noise_sd=noise,
        detectable_excess_before=detectable_excess_before(job, model, dataset_md5, history, size, rule.looks[-1]),
        placebo=placebo,
        foretold=None if placebo else foretold,
        refusal=None if placebo else _refusal(job, model, compared, foretold, rule, noise),
    )


@dataclass(frozen=True)
class _Compared:
    """What a trial sets side by side."""

    prompts: TokenizedPrompts  # the measured ones
    chosen: Order  # the candidate, over the whole file
    control: Order | None  # over the whole file; None: shuffles
    control_why: str
    orders: Mapping[str, Order | None]  # arm → its order over the measured prompts


def _compared(job: Job, prompts: TokenizedPrompts, dataset_md5: str, current: Order, placebo: bool) -> _Compared:
    spec = OrderSpec(method="shuffled", seed=job.measure.seed + 1) if placebo else job.order
    chosen = make_order(spec, view_of(prompts, ServedModel.of_job(job)), dataset_md5)
    if current.method != "file" and np.array_equal(current.permutation, chosen.permutation):
        # The candidate was promoted before: whether it still pays shows against what the job would do without it.
        current = make_order(OrderSpec(method="file"), prompts, dataset_md5)
    control, why = _control(current, prompts, placebo)
    measured = measured_prompts(chosen.permutation, job.measure.prompts, job.engine.max_num_seqs)
    orders: dict[str, Order | None] = {CONTROL: restrict(control, measured) if control else None}
    orders[CANDIDATE] = restrict(chosen, measured)
    if control:
        orders[SHUFFLED] = None
    return _Compared(prompts.take(measured), chosen, control, why, orders)


def _attempt(job: Job, question: str, history: History, placebo: bool) -> int:
    """Which trial of this question it is, from 1. Placebos spend no α: nothing is promoted by one."""
    if placebo:
        return 1
    attempt = 1 + attempts(history, question)
    if history.unreadable:
        _tell_unreadable(job, history, attempt)
    return attempt


def _refusal(
    job: Job, model: ModelFacts, compared: _Compared, foretold: StoredPrediction | None, rule: Rule, noise: float | None
) -> str | None:
    """Why nothing should be measured: for certain, or by what was foretold."""
    certain = structural_refusal(job, model, compared.prompts, compared.chosen, compared.control)
    return certain or foretold_refusal(foretold, rule, detectable_gain(noise, rule) if noise else None)


def _rule(job: Job, attempt: int, noise: float | None) -> Rule:
    measure = job.measure
    return Rule(
        metric=measure.metric,
        alpha=measure.alpha / 2 ** (attempt - 1),  # every further trial of one question spends half of what was left
        looks=measure.looks or (NOISY_LOOKS if noise and noise > NOISY_SD else QUIET_LOOKS),
        margin=measure.margin,
        min_effect=measure.min_effect,
        outputs=job.outputs,
    )


def _draw_seeds(job: Job, question: str, placebo: bool, earlier: int, rule: Rule) -> list[int]:
    """The coin's seed, and one for each block's shuffle: no two trials share any."""
    entropy = [job.measure.seed, int(placebo), earlier, int(question, 16)]
    return [int(seed) for seed in np.random.SeedSequence(entropy).generate_state(1 + rule.looks[-1], np.uint32)]


def _tell_unreadable(job: Job, history: History, attempt: int) -> None:
    logger.warning(
        "%s: registered trials that cannot be read (%s) count as attempts at this question, so this is attempt %d and "
        "α is %g: bring them back (`dvc checkout reports/%s`) to have them counted for what they asked",
        job.name,
        ", ".join(history.unreadable),
        attempt,
        job.measure.alpha / 2 ** (attempt - 1),
        job.name,
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
        f"the job's current order ({current.method}), which is not like a shuffle (permutation "
        f"test on neighbours, p = {p:.3f}); shuffled is the third arm"
    )


def _question(job: Job, model: ModelFacts, dataset_md5: str, chosen: Order) -> str:
    """Hash of what is claimed of which data: trials that share it share α.

    What a trial merely chooses (margin, metric, sample, the policy for outputs) is no part of it: asking again with
    another margin is asking again.
    """
    engine = job.engine.model_dump(mode="json", include={"args", "in_process"})
    if job.engine.batch_invariant:
        engine["batch_invariant"] = True
    if job.engine.replicas > 1:
        engine["replicas"] = job.engine.replicas
    asked: dict[str, Any] = {
        "dataset": dataset_md5,
        "model": model.fingerprint,
        "engine": engine,
        "sampling": job.model_dump(mode="json", include={"sampling"}),
        "candidate": chosen.sha256,
    }
    return _sha256(canonical_json(asked))


def _settings(job: Job, question: str) -> str:
    beside = {"name", "root", *SECTIONS_BESIDE_JOBS, *UNMEASURED_KEYS}
    measured = job.model_dump(mode="json", exclude=beside)
    return _sha256(canonical_json({"question": question, "job": measured}))


def _versions() -> dict[str, str]:
    names = ("orderproof", "numpy", "scikit-learn", "sentence-transformers", "transformers", "prefect", "mlflow", "dvc")
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in names}}


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
