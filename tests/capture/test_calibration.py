"""The costs of a step are found again in timed steps; doubtful or unusable passes are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic import RoutingShape, draw_tokens

from orderproof.capture import calibration
from orderproof.capture.calibration import TimedSteps, calibrate, fit_costs, fit_passes, join_steps
from orderproof.engines.protocol import EngineInfo, Failure, Output, PassStats, Request, Steps
from orderproof.job.spec import Job
from orderproof.prompts.tokenization import TokenizedPrompts
from orderproof.routing.errors import RoutingError
from orderproof.routing.route_source import captured_routes
from orderproof.routing.routes import Routes, RoutesRecord
from orderproof.routing.routes_writer import write_routes
from orderproof.routing.simulate import EngineShape
from orderproof.routing.step_costs import StepCosts
from tests.support.fake_engine import WORDS, FakeEngine, grouped, prompts_of
from tests.support.replay_engine import ReplayEngine, Settings
from tests.support.trial_maker import logging_text, make_job

TRUE = StepCosts((2, 4, 8), (1.0, 1.4, 2.2), 0.02, "the truth", prefill_token_ms=0.05)
BATCH, SIZE, PROMPT_TOKENS, GENERATED = 8, 90, 5, 24


def drawn_steps(seed: int, noise: float, steps: int = 4000) -> TimedSteps:
    """Steps of three batch sizes that cost what TRUE says, but for the noise."""
    generator = np.random.default_rng(seed)
    running = generator.choice([2, 4, 8], steps)
    experts = running * generator.integers(8, 16, steps)
    prefill_tokens = np.where(generator.random(steps) < 0.1, generator.integers(1, 50, steps), 0)
    ms = TRUE.ms(running, experts, prefill_tokens) * np.exp(noise * generator.standard_normal(steps))
    return TimedSteps(ms, running, experts, prefill_tokens)


# -- the fit -----------------------------------------------------------------------------------------------------------


def test_steps_without_noise_give_the_constants_back() -> None:
    fit = fit_costs(drawn_steps(0, noise=0.0), "timed")
    assert fit.costs.batches == TRUE.batches
    assert fit.costs.base_ms == pytest.approx(TRUE.base_ms)
    assert fit.costs.expert_ms == pytest.approx(TRUE.expert_ms)
    assert fit.costs.prefill_token_ms == pytest.approx(TRUE.prefill_token_ms)
    assert (fit.costs.source, fit.steps) == ("timed", 4000)
    assert fit.r_squared == pytest.approx(1)
    assert fit.residual == pytest.approx(0, abs=1e-6)


def test_the_error_of_an_experts_cost_covers_the_truth() -> None:
    fits = [fit_costs(drawn_steps(seed, noise=0.05, steps=400), "timed") for seed in range(40)]
    misses = np.array([(fit.costs.expert_ms - TRUE.expert_ms) / fit.expert_ms_error for fit in fits])
    assert abs(misses.mean()) < 0.6
    assert 0.6 < misses.std() < 1.5
    assert fits[0].residual == pytest.approx(0.05, rel=0.3)
    assert 0.9 < fits[0].r_squared < 1


def test_hiccups_of_the_host_are_no_property_of_the_model() -> None:
    steps = drawn_steps(1, noise=0.02)
    slow = np.random.default_rng(0).random(len(steps.ms)) < 0.03
    fit = fit_costs(replace(steps, ms=np.where(slow, 20 * steps.ms, steps.ms)), "timed")
    assert fit.costs.expert_ms == pytest.approx(TRUE.expert_ms, rel=0.1)
    assert fit.costs.base_ms == pytest.approx(TRUE.base_ms, rel=0.15)


@pytest.mark.parametrize("expert_ms", [0.0, -0.01])
def test_no_cost_is_below_zero_whatever_noise_says(expert_ms: float) -> None:
    steps = drawn_steps(3, noise=0.02)
    fit = fit_costs(replace(steps, ms=steps.ms + (expert_ms - TRUE.expert_ms) * steps.experts), "timed")
    assert 0 <= fit.costs.expert_ms < 0.001
    assert min(fit.costs.base_ms) > 0


def test_batch_sizes_seen_a_few_times_have_no_base_of_their_own() -> None:
    steps = drawn_steps(2, noise=0.0)
    rare = replace(steps, running=np.where(np.arange(len(steps.ms)) < 7, 5, steps.running))
    assert fit_costs(rare, "timed").costs.batches == TRUE.batches


def test_passes_on_a_machine_that_changes_make_the_cost_doubtful() -> None:
    """Each pass alone is without noise; from one to the next the machine is up to a fifth slower or faster."""
    factors = np.exp(0.1 * np.random.default_rng(0).standard_normal((40, 6)))
    held = {"passes": 0, "steps": 0}
    for run in factors:
        passes = [drawn_steps(seed, noise=0.0, steps=300) for seed in range(len(run))]
        passes = [replace(one, ms=factor * one.ms) for one, factor in zip(passes, run, strict=True)]
        fit = fit_passes(passes, "timed")
        off, of_steps = (
            abs(fit.costs.expert_ms - TRUE.expert_ms),
            fit_costs(join_steps(passes), "timed").expert_ms_error,
        )
        held["passes"] += off < 2 * fit.expert_ms_error
        held["steps"] += off < 2 * of_steps
    assert held["passes"] >= 30  # of 40; few passes know their own spread badly
    assert held["steps"] < held["passes"] - 5
    calm = fit_passes([drawn_steps(seed, noise=0.0, steps=300) for seed in range(6)], "timed")
    assert calm.expert_ms_error < 0.01 * fit.expert_ms_error


@pytest.mark.parametrize("kept", [0, 7])
def test_too_few_steps_are_refused(kept: int) -> None:
    steps = TimedSteps(*(values[:kept] for values in vars(drawn_steps(0, 0.0)).values()))
    with pytest.raises(RoutingError, match=f"{kept} timed steps cannot separate"):
        fit_costs(steps, "timed")


def test_experts_that_follow_the_batch_alone_are_refused() -> None:
    steps = drawn_steps(0, 0.0)
    with pytest.raises(RoutingError, match="cannot separate the cost of an expert"):
        fit_costs(replace(steps, experts=10 * steps.running), "timed")


# -- on an engine ------------------------------------------------------------------------------------------------------


@pytest.fixture
def job(tmp_path: Path) -> Job:
    sampling = {"temperature": 0, "max_tokens": GENERATED, "ignore_eos": True}
    return make_job(tmp_path, engine={"args": {"max_num_seqs": BATCH}}, sampling=sampling)


@pytest.fixture
def prompts() -> TokenizedPrompts:
    return prompts_of(grouped(SIZE), tokens=PROMPT_TOKENS)


@pytest.fixture
def routes(tmp_path: Path, prompts: TokenizedPrompts) -> Routes:
    """Of all prompts but the first ten; a word's prompts have experts of their own."""
    shape = RoutingShape(layers=4, experts=64, top_k=4, domains=len(WORDS), common=0.3, own=1.5)
    record = RoutesRecord(model="m", dataset_md5="d", layers=4, experts=64, top_k=4)
    rows = PROMPT_TOKENS + GENERATED - 1
    pool = draw_tokens(shape, SIZE * rows, seed=0)
    with write_routes(tmp_path / "routes.parquet", record) as writer:
        for k in range(10, SIZE):
            domain = list(WORDS).index(str(prompts.labels[k]))
            writer.add(prompts.ids[k], PROMPT_TOKENS, pool[domain, k * rows : (k + 1) * rows])
    return Routes(tmp_path / "routes.parquet")


class OnCpus(ReplayEngine):
    """A virtual engine that says it runs on CPUs, takes TRUE's time, and may do a step too many."""

    def __init__(self, routes: Routes, prompts: TokenizedPrompts, extra_steps: int = 0) -> None:
        super().__init__(captured_routes(routes, prompts.ids), TRUE, Settings(BATCH))
        self.extra_steps, self.sent = extra_steps, []  # type: ignore[var-annotated]

    @property
    def info(self) -> EngineInfo:
        info = super().info
        return replace(info, machine={"device": "a processor", "device_type": "cpu"})

    def run(
        self,
        requests: Iterable[Request],
        sampling: Mapping[str, Any],
        sink: Callable[[Output | Failure], None],
        watch: Callable[[Steps], None] | None = None,
    ) -> PassStats:
        asked = list(requests)
        self.sent.append([request.number for request in asked])
        figures = super().run(asked, sampling, sink, watch)
        return replace(figures, step_ms=np.append(figures.step_ms, np.ones(self.extra_steps, np.float32)))


def test_passes_on_an_engine_give_its_constants_back(job: Job, prompts: TokenizedPrompts, routes: Routes) -> None:
    engine = OnCpus(routes, prompts)
    calibration = calibrate(engine, job, prompts, routes, bytes_per_expert=1 << 20)
    assert calibration.costs.batches == (2, 4, 8)
    assert calibration.costs.base_ms == pytest.approx(TRUE.base_ms, rel=1e-4)
    assert calibration.costs.expert_ms == pytest.approx(TRUE.expert_ms, rel=1e-4)
    assert calibration.costs.prefill_token_ms == pytest.approx(TRUE.prefill_token_ms, rel=1e-4)
    assert calibration.fit.r_squared > 0.999
    assert "a processor" in calibration.costs.source
    # 256 MiB read and written in 0.05 s: 10.74 GB/s, and a MiB takes 0.0977 ms.
    assert calibration.expert_ms_of_bandwidth == pytest.approx(0.0977, rel=0.001)


def test_only_captured_prompts_are_sent_and_the_two_orders_are_of_the_same_ones(
    job: Job, prompts: TokenizedPrompts, routes: Routes
) -> None:
    engine = OnCpus(routes, prompts)
    calibrate(engine, job, prompts, routes)
    full = [sent for sent in engine.sent if len(sent) > BATCH]
    assert len(full) == 4
    assert all(sorted(sent) == list(range(10, SIZE)) for sent in full)
    changes = [sum(prompts.labels[a] != prompts.labels[b] for a, b in pairwise(sent)) for sent in full]
    assert max(changes[1:3]) < 0.5 * min(changes[0], changes[3])


def test_an_experts_bytes_are_compared_with_the_hosts_memory_on_cpus_alone(
    job: Job, prompts: TokenizedPrompts, routes: Routes
) -> None:
    engine = ReplayEngine(captured_routes(routes, prompts.ids), TRUE, Settings(BATCH))
    assert calibrate(engine, job, prompts, routes, bytes_per_expert=1 << 20).expert_ms_of_bandwidth is None
    assert calibrate(OnCpus(routes, prompts), job, prompts, routes).expert_ms_of_bandwidth is None


def test_an_engine_that_steps_otherwise_is_refused(job: Job, prompts: TokenizedPrompts, routes: Routes) -> None:
    with pytest.raises(RoutingError, match=r"took 25 steps for 8 prompts, .* 24"):
        calibrate(OnCpus(routes, prompts, extra_steps=1), job, prompts, routes)


def test_requests_that_fail_are_named(job: Job, prompts: TokenizedPrompts, routes: Routes) -> None:
    engine = ReplayEngine(captured_routes(routes, prompts.ids), TRUE, Settings(BATCH, max_model_len=PROMPT_TOKENS))
    with pytest.raises(RoutingError, match="a prompt of 5 tokens"):
        calibrate(engine, logging_text(job), prompts, routes)
    with pytest.raises(RoutingError, match=r"timed$") as refused:
        calibrate(engine, job, prompts, routes)
    assert "a prompt of 5 tokens" in refused.value.words[0]


def test_a_sample_of_less_than_two_batches_is_too_small(job: Job, prompts: TokenizedPrompts, routes: Routes) -> None:
    few = prompts.take(np.arange(10 + 2 * BATCH - 1))
    with pytest.raises(RoutingError, match=r"holds 15 of these prompts, and a calibration needs two batches of 8"):
        calibrate(OnCpus(routes, few), job, few, routes)


def test_steps_are_timed_on_one_replica_with_all_its_devices(tmp_path: Path) -> None:
    args = {"max_num_seqs": 8, "tensor_parallel_size": 2, "enable_expert_parallel": True}
    job = make_job(tmp_path, engine={"args": args, "replicas": 3})
    assert calibration._engine_shape(FakeEngine(), job) == EngineShape(8, devices=2)
