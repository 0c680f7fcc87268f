"""The engine in virtual time keeps the protocol, and its times follow from a simulation of the steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from synthetic import RoutingShape, SyntheticRoutes

from orderproof.engines.protocol import Engine, Failure, Output, PassStats, Request, Steps
from orderproof.job.spec import OrderSpec
from orderproof.measure.evaluate import judge
from orderproof.measure.plan import Plan, make_plan
from orderproof.measure.trial import begin, run_block
from orderproof.measure.trial_store import History, Trial
from orderproof.orders.registry import make_order
from orderproof.routing.replay import SimRequest
from orderproof.routing.step_costs import StepCosts
from tests.support.brute_force import RandomRoutes, batches, simulate, windows
from tests.support.fake_engine import MOE, WORDS, mixed, prompts_of
from tests.support.replay_engine import ReplayEngine, Settings
from tests.support.trial_maker import make_job

COSTS = StepCosts((1, 4), (2.0, 3.5), 0.01, "a test", prefill_token_ms=0.25)
FIXED = {"max_tokens": 6, "ignore_eos": True}


def requests_of(sim_requests: list[SimRequest]) -> list[Request]:
    return [Request(sim.number, [1] * sim.prompt_tokens, {"max_tokens": sim.generated}) for sim in sim_requests]


def passed(engine: ReplayEngine, requests: list[Request], sampling: dict[str, Any]) -> tuple[PassStats, list[Any]]:
    answers: list[Output | Failure] = []
    return engine.run(requests, sampling, answers.append), answers


def test_it_keeps_the_protocol() -> None:
    engine: Engine = ReplayEngine(RandomRoutes(), COSTS, Settings(4))
    with engine as started:
        assert started.info.settings["max_num_seqs"] == 4
        assert started.probe(256) == started.probe(256) > 0


@given(batches, windows)
def test_times_follow_from_the_steps_of_a_simulation(sim_requests: list[SimRequest], limits: tuple[int, int]) -> None:
    engine = ReplayEngine(RandomRoutes(), COSTS, Settings(*limits))
    for _ in range(2):  # the second pass begins when the first one ended
        figures, answers = passed(engine, requests_of(sim_requests), {"ignore_eos": True})
        steps = simulate(sim_requests, *limits)
        ms = []
        for step in steps:
            base = 2.0 + 0.5 * (min(len(step.running), 4) - 1)
            ms.append(base + 0.01 * step.experts() + 0.25 * step.prefill_tokens)
        ends = np.cumsum(ms) / 1000
        assert figures.wall_s == pytest.approx(ends[-1])
        assert figures.step_ms == pytest.approx(np.array(ms), rel=1e-6)
        assert figures.running.tolist() == [len(step.running) for step in steps]
        assert [answer.number for answer in answers] == [number for step in steps for number in step.ended]
        at = [ends[k] for k, step in enumerate(steps) for _ in step.ended]
        assert [answer.at_s for answer in answers] == pytest.approx(at)
        scheduled = sorted(answers, key=lambda answer: (answer.scheduled_s, answer.number))
        assert [answer.number for answer in scheduled] == [request.number for request in sim_requests]
        assert [answer.output_tokens for answer in scheduled] == [request.generated for request in sim_requests]


def test_watched_steps_are_not_collected() -> None:
    engine, watched_steps = ReplayEngine(RandomRoutes(), COSTS, Settings(2)), []
    requests = [Request(number, [1] * 3) for number in range(5)]
    alone, _ = passed(engine, requests, FIXED)
    watched = engine.run(requests, FIXED, lambda answer: None, watched_steps.append)
    assert (len(watched.step_ms), watched.wall_s) == (0, pytest.approx(alone.wall_s))
    names = ("ms", "running", "waiting")
    joined = Steps(*(np.concatenate([getattr(steps, name) for steps in watched_steps]) for name in names))
    assert joined.ms.tolist() == pytest.approx(alone.step_ms.tolist())
    assert joined.waiting.tolist() == alone.waiting.tolist()


def test_prompts_that_vllm_refuses_fail_and_the_others_go_on() -> None:
    engine = ReplayEngine(RandomRoutes(), COSTS, Settings(2, max_model_len=10))
    _, answers = passed(engine, [Request(0, [1] * 10), Request(1, []), Request(2, [1] * 9)], FIXED)
    assert [(type(answer), answer.number) for answer in answers] == [(Failure, 0), (Failure, 1), (Output, 2)]
    assert answers[0].reason == "a prompt of 10 tokens, and max_model_len is 10"
    assert answers[2].output_tokens == 1


def test_samples_of_a_prompt_are_sequences_of_their_own_and_one_answer() -> None:
    engine = ReplayEngine(RandomRoutes(), COSTS, Settings(2))
    figures, (answer,) = passed(engine, [Request(3, [1] * 4)], {**FIXED, "n": 3})
    assert [len(completion.token_ids) for completion in answer.completions] == [6, 6, 6]
    assert figures.running.tolist() == [2] * 6 + [1] * 6
    assert (answer.scheduled_s, answer.at_s) == (0.0, pytest.approx(figures.wall_s))


def test_requests_are_taken_as_they_are_needed() -> None:
    taken = 0

    def source() -> Iterator[Request]:
        nonlocal taken
        for number in range(200):
            taken += 1
            yield Request(number, [1] * 3)

    ahead = []
    engine = ReplayEngine(RandomRoutes(), COSTS, Settings(2))
    engine.run(source(), {"max_tokens": 40}, lambda answer: ahead.append(taken))
    assert ahead[0] < 200


def test_noise_moves_whole_passes_and_a_seed_repeats_it() -> None:
    def walls(seed: int) -> list[float]:
        engine = ReplayEngine(RandomRoutes(), COSTS, Settings(2, noise_sd=0.03, seed=seed))
        return [passed(engine, [Request(0, [1])], FIXED)[0].wall_s for _ in range(40)]

    assert walls(1) == walls(1) != walls(2)
    assert np.std(np.log(walls(1))) == pytest.approx(0.03, rel=0.35)


# -- a whole trial -----------------------------------------------------------------------------------------------------

SIZE, BATCH = 96, 8


def trial_of(root: Path, own: float) -> Trial:
    """Label order against shuffled, judged by the same code as a real trial. `own`: how far domains are apart."""
    labels = mixed(SIZE)
    prompts = prompts_of(labels)
    job = make_job(root, engine={"args": {"max_num_seqs": BATCH}}, order={"method": "label"})
    current = make_order(OrderSpec(method="file"), prompts, "md5")
    plan: Plan = make_plan(job, MOE, prompts, "md5", current, History())
    shape = RoutingShape(layers=4, experts=64, top_k=4, domains=len(WORDS), common=0.5, own=own)
    source = SyntheticRoutes(shape, lambda number: list(WORDS).index(labels[number]), seed=0)
    costs = StepCosts((BATCH,), (1.0,), 0.02, "a test")
    with ReplayEngine(source, costs, Settings(BATCH, noise_sd=0.005)) as engine:
        trial = begin(plan, engine)
        while (verdict := judge(trial)) is None:
            trial = run_block(plan, engine, trial, len(trial.blocks()) + 1)
    assert verdict.outputs is not None
    assert verdict.outputs.d_ab == 0
    return trial


def test_a_trial_in_virtual_time_promotes_the_label_order_where_domains_are_apart(tmp_path: Path) -> None:
    verdict = judge(trial_of(tmp_path, own=1.5))
    assert verdict is not None
    assert (verdict.verdict, verdict.blocks) == ("promote", 2)
    assert verdict.gain > 0.1


def test_and_keeps_the_current_order_where_all_prompts_route_alike(tmp_path: Path) -> None:
    verdict = judge(trial_of(tmp_path, own=0.0))
    assert verdict is not None
    assert verdict.verdict == "keep"
    assert abs(verdict.gain) < 0.02
