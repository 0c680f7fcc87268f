"""The plan of a trial: which arms, which prompts, which slices, how many blocks; or why there is nothing to measure.

A plan starts no engine. Its `manifest()` is registered before the first slice, once the engine has warmed up.
"""

from __future__ import annotations

import datetime
import hashlib
import logging
import platform
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderproof.engines.protocol import EngineInfo
from orderproof.job.hashing import canonical_json, ids_sha256
from orderproof.job.model import ModelFacts
from orderproof.job.redaction import args_without_secrets, recorded_engine
from orderproof.job.spec import SECTIONS_BESIDE_JOBS, UNMEASURED_KEYS, Job, OrderSpec
from orderproof.measure.predicted_gain import PredictedGain
from orderproof.measure.preflight import prediction_refusal, structural_refusal
from orderproof.measure.slice_design import (
    WASHOUT_BATCHES,
    Kind,
    batches_per_slice,
    fewest_prompts,
    slice_sizes,
)
from orderproof.measure.trial_history import (
    Noise,
    attempts,
    detectable_excess_before,
    noise_before,
    stopped_trial,
)
from orderproof.measure.trial_records import Manifest, SliceDesign, WarmUp
from orderproof.measure.trial_store import History, Trial
from orderproof.measure.verdict import Rule
from orderproof.orders.order import Order
from orderproof.orders.registry import make_order
from orderproof.orders.shuffle_test import shuffle_like
from orderproof.orders.view import view_of
from orderproof.outputs.passes import CANDIDATE, CONTROL, SHUFFLED
from orderproof.prompts.tokenization import TokenizedPrompts
from orderproof.signals.served_model import ServedModel

SHORT_LOOKS, LONG_LOOKS = (2, 3, 5, 8, 12), (2, 4, 8, 16, 32)
# Sampling that may end an answer before `max_tokens`, beside the model's own end.
ENDS_EARLY = ("stop", "stop_token_ids", "structured_outputs", "repetition_detection")
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
    kind: Kind  # of slices
    resumable: Trial | None  # of the same settings, stopped before its verdict
    noise: Noise | None  # of a block, in earlier trials on this model and engine
    detectable_excess_before: float | None
    aa: bool
    predicted: PredictedGain | None  # of the candidate, by the last plan
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
        return self.noise.detectable(self.rule) if self.noise else None

    @property
    def seats(self) -> int:
        """Prompts that run at once, on all replicas."""
        return self.job.engine.max_num_seqs * self.job.engine.replicas

    def slices(self, engine: EngineInfo, warm_up: WarmUp) -> SliceDesign:
        """How the prompts are cut, once it is known how fast they run."""
        rate = warm_up.requests / warm_up.seconds if warm_up.seconds > 0 else None
        batches = batches_per_slice(self.kind, len(self.prompts), self.seats, rate)
        sizes = slice_sizes(len(self.prompts), self.seats, batches)
        candidate = self.orders[CANDIDATE]
        assert candidate is not None
        fixed = fixed_lengths(self.job, self.prompts.samplings)
        return SliceDesign(
            kind=self.kind,
            seats=self.seats,
            sizes=sizes,
            labels=_labels(candidate.permutation, sizes, self.prompts.labels),
            washout=0 if self.kind == "clean" else self.seats * (1 if fixed else WASHOUT_BATCHES),
            salted=bool(engine.settings.get("prefix_caching")),
            warm_up=warm_up,
        )

    def manifest(self, engine: EngineInfo, probe_baseline_s: float, warm_up: WarmUp) -> Manifest:
        """What is registered, once the engine has reported its kind and has warmed up."""
        now = datetime.datetime.now(datetime.UTC)
        control, candidate = self.orders[CONTROL], self.orders[CANDIDATE]
        assert candidate is not None
        return Manifest(
            trial=f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}",
            job=self.job.name,
            aa=self.aa,
            question=self.question,
            settings=self.settings,
            attempt=self.attempt,
            rule=self.rule,
            arms=tuple(self.orders),
            control_why=self.control_why,
            control=control.record() if control else None,
            candidate=candidate.record(),
            coin_seed=self.coin_seed,
            slices=self.slices(engine, warm_up),
            validity={**self.job.measure.validity.model_dump(), "probe_baseline_s": probe_baseline_s},
            dataset_md5=self.dataset_md5,
            prompts_total=self.prompts_total,
            prompts_measured=len(self.prompts),
            measured_sha256=ids_sha256(self.prompts.ids),
            prompt_tokens=int(self.prompts.offsets[-1]),
            model=self.model.as_dict(),
            engine={**recorded_engine(self.job), **engine.settings},
            sampling=self.job.sampling,
            versions={**_versions(), **{f"engine_{name}": version for name, version in engine.versions.items()}},
            machine={**engine.machine, "load_s": round(engine.load_s, 2)},
            detectable_gain_before=self.detectable_gain_before,
            detectable_excess_before=self.detectable_excess_before,
            predicted=self.predicted,
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
    aa: bool = False,
    aa_trials: History = NONE,
    predicted: PredictedGain | None = None,
) -> Plan:
    """Decide everything that a trial needs, from numbers that exist before its first pass.

    Args:
        prompts: all of the job's prompts.
        current: the order in which the job runs today, over all prompts.
        history, aa_trials: the job's earlier trials and, so that the next one has coins of its own, aa_trials.
        predicted: what the last `orderproof plan` predicted of this candidate, which may refuse the trial.

    Raises:
        OrderError: the candidate cannot be made of these prompts.
    """
    compared = _compared(job, prompts, dataset_md5, current, aa)
    question = _question(job, model, dataset_md5, compared.chosen)
    attempt = _attempt(job, question, history, aa)
    noise = noise_before(job, model, history)
    rule = _rule(job, attempt, noise, predicted)
    size = len(compared.prompts)
    settings = _settings(job, question)
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
        coin_seed=_draw_seed(job, question, aa, len(aa_trials if aa else history)),
        kind=kind_of_slices(job, compared.prompts),
        resumable=stopped_trial(aa_trials if aa else history, settings, tuple(compared.orders)),
        noise=noise,
        detectable_excess_before=detectable_excess_before(job, model, dataset_md5, history, size, rule.looks[-1]),
        aa=aa,
        predicted=None if aa else predicted,
        refusal=_refusal(job, model, compared, None if aa else predicted, rule, noise, aa),
    )


@dataclass(frozen=True)
class _Compared:
    """What a trial sets side by side."""

    prompts: TokenizedPrompts  # the measured ones
    chosen: Order  # the candidate, over the whole file
    control: Order | None  # over the whole file; None: shuffles
    control_why: str
    orders: Mapping[str, Order | None]  # arm → its order over the measured prompts


def _compared(job: Job, prompts: TokenizedPrompts, dataset_md5: str, current: Order, aa: bool) -> _Compared:
    spec = OrderSpec(method="shuffled", seed=job.measure.seed + 1) if aa else job.order
    chosen = make_order(spec, view_of(prompts, ServedModel.of_job(job)), dataset_md5)
    if current.method != "file" and np.array_equal(current.permutation, chosen.permutation):
        # The candidate was promoted before: whether it still pays shows against what the job would do without it.
        current = make_order(OrderSpec(method="file"), prompts, dataset_md5)
    control, why = _control(current, prompts, aa)
    measured = measured_prompts(chosen.permutation, job.measure.prompts, job.engine.max_num_seqs)
    orders: dict[str, Order | None] = {CONTROL: restrict(control, measured) if control else None}
    orders[CANDIDATE] = restrict(chosen, measured)
    if control:
        orders[SHUFFLED] = None
    return _Compared(prompts.take(measured), chosen, control, why, orders)


def _attempt(job: Job, question: str, history: History, aa: bool) -> int:
    """Which trial of this question it is, from 1. A/A tests spend no alpha: they promote nothing."""
    if aa:
        return 1
    attempt = 1 + attempts(history, question)
    if history.unreadable:
        _tell_unreadable(job, history, attempt)
    return attempt


def _refusal(
    job: Job,
    model: ModelFacts,
    compared: _Compared,
    predicted: PredictedGain | None,
    rule: Rule,
    noise: Noise | None,
    aa: bool,
) -> str | None:
    """Why nothing should be measured: for certain, or by what was predicted. An A/A test needs only enough prompts."""
    too_few = too_few_prompts(job, compared.prompts)
    if aa:
        return too_few
    certain = structural_refusal(job, model, compared.prompts, compared.chosen, compared.control)
    return certain or too_few or prediction_refusal(predicted, rule, noise.detectable(rule) if noise else None)


def too_few_prompts(job: Job, prompts: TokenizedPrompts) -> str | None:
    """Why so few prompts cannot be cut into slices; None: they can."""
    seats = job.engine.max_num_seqs * job.engine.replicas
    fewest = fewest_prompts(kind_of_slices(job, prompts), seats)
    if len(prompts) >= fewest:
        return None
    return (
        f"{len(prompts)} prompts are too few to measure with {seats} running at once: a trial needs at least {fewest} "
        f"({fewest // seats} times as many as run at once). Lower max_num_seqs, or measure a larger job"
    )


def kind_of_slices(job: Job, prompts: TokenizedPrompts) -> Kind:
    """`clean` where every answer has the same number of tokens; `fed` where a slice would end with few running."""
    return "clean" if fixed_lengths(job, prompts.samplings) else "fed"


def fixed_lengths(job: Job, samplings: Sequence[Mapping[str, Any] | None]) -> bool:
    """Whether every answer is sure to have the same number of tokens."""
    asked = {
        (merged.get("max_tokens", 0), merged.get("n", 1), merged.get("ignore_eos") is True)
        for merged in ({**job.sampling, **(own or {})} for own in samplings)
        if not any(merged.get(key) for key in ENDS_EARLY)
    }
    early = any((own or {}).get(key) or job.sampling.get(key) for own in samplings for key in ENDS_EARLY)
    return not early and len(asked) == 1 and next(iter(asked))[2] and bool(next(iter(asked))[0])


def _labels(
    candidate: NDArray[np.int64], sizes: Sequence[int], labels: Sequence[str | None] | None
) -> tuple[str | None, ...]:
    """Of each stratum the label of most of its prompts."""
    found: list[str | None] = []
    for part in np.split(candidate, np.cumsum(sizes)[:-1]) if sizes else []:
        counts = Counter(label for label in (labels[k] for k in part.tolist()) if label) if labels else Counter()
        found.append(counts.most_common(1)[0][0] if counts else None)
    return tuple(found)


def _rule(job: Job, attempt: int, noise: Noise | None, predicted: PredictedGain | None) -> Rule:
    measure = job.measure

    def rule(looks: tuple[int, ...]) -> Rule:
        return Rule(
            alpha=measure.alpha / 2 ** (attempt - 1),  # every further trial of one question spends half of the rest
            looks=looks,
            margin=measure.margin,
            min_effect=measure.min_effect,
            outputs=job.outputs,
            budget_s=60 * measure.budget_minutes if measure.budget_minutes else None,
        )

    short = rule(measure.looks or SHORT_LOOKS)
    too_short = noise is not None and predicted is not None and noise.detectable(short) > predicted.gain
    return rule(LONG_LOOKS) if too_short and not measure.looks else short


def _draw_seed(job: Job, question: str, aa: bool, earlier: int) -> int:
    """Of coins, slots and shuffles: no two trials share it."""
    entropy = [job.measure.seed, int(aa), earlier, int(question, 16)]
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint32)[0])


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


def _control(current: Order, prompts: TokenizedPrompts, aa: bool) -> tuple[Order | None, str]:
    """The arm that the candidate must beat: what the job does today, or shuffles if that is as good as shuffled."""
    if aa:
        return None, "shuffled afresh in every block: an A/A test compares one shuffle with others"
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
    engine = {"args": args_without_secrets(job.engine), "in_process": job.engine.in_process}
    if job.engine.batch_invariant:
        engine["batch_invariant"] = True
    if job.engine.server:
        engine |= {"server": True, "model": job.engine.model, "concurrency": job.engine.concurrency}
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
    measured["engine"].update(recorded_engine(job))  # the hash of a secret could be guessed
    return _sha256(canonical_json({"question": question, "job": measured}))


def _versions() -> dict[str, str]:
    names = ("orderproof", "numpy", "scikit-learn", "sentence-transformers", "transformers", "prefect", "mlflow", "dvc")
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in names}}


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
