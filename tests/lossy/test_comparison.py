"""The four arms of a lossy comparison, on an engine whose speeds and outputs are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orderproof.job.model import ModelFacts
from orderproof.job.spec import Job
from orderproof.lossy.comparison import compare_lossy
from orderproof.lossy.order import order_to_compare
from orderproof.lossy.report import LOSSY, SORTED, SORTED_LOSSY
from orderproof.lossy.routing import LossyError, refuse_k0
from orderproof.prompts.prompt_file import read_prompts
from orderproof.prompts.tokenization import tokenize
from tests.support.arm_engine import PROMPTS, RATE, ArmEngine, arm_job, compare_arms
from tests.support.captured_job import make_job
from tests.support.fake_engine import MOE
from tests.support.trial_maker import logging_text


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return arm_job(tmp_path)


def test_every_block_holds_every_arm_once_and_the_coin_orders_them(job: Job) -> None:
    engine = ArmEngine()
    compare_arms(job, engine, blocks=6)
    warm_up, *timed = engine.passes
    assert len(warm_up[1]) < PROMPTS
    blocks = [timed[start : start + 4] for start in range(0, 24, 4)]
    assert all([k0 for k0, _ in block].count(2) == 2 for block in blocks)
    assert len({tuple(k0 for k0, _ in block) for block in blocks}) > 1
    for block in blocks:
        orders = {k0: [sent for own, sent in block if own == k0] for k0 in (None, 2)}
        assert sorted(orders[None]) == sorted(orders[2]), "the lossy arms send what the others send"
    assert len({tuple(sent) for block in blocks for _, sent in block}) == 1 + 6, "a fresh shuffle for every block"


def test_each_arm_has_its_gain_its_changed_outputs_and_its_scores(job: Job) -> None:
    arms = {arm.arm: arm for arm in compare_arms(job, ArmEngine()).arms}
    assert {name: arm.gain for name, arm in arms.items()} == pytest.approx(
        {name: rate - 1 for name, rate in RATE.items()}, abs=0.02
    )
    for arm in arms.values():
        assert arm.gain_low < arm.gain < arm.gain_high
    assert [arms[name].outputs.d_ab for name in (SORTED, LOSSY, SORTED_LOSSY)] == [0, 0.25, 0.25]
    assert arms[LOSSY].outputs.d_aa == 0
    kept, lost = arms[SORTED].outputs.scores, arms[LOSSY].outputs.scores
    assert kept is not None
    assert lost is not None
    assert kept.passed
    assert lost.difference == -0.25
    assert not lost.passed


def test_an_order_may_need_the_served_model(tmp_path: Path) -> None:
    job = make_job(tmp_path, captured=40, order={"method": "cluster", "signal": "token", "clusters": 2})
    engine: Any = ArmEngine()
    prompts = tokenize(job, read_prompts(job.prompts_path))
    report = compare_lossy(job, MOE, prompts, order_to_compare(job, prompts, "md5"), engine, 2, 5)
    assert (report.order.method, report.prompts) == ("cluster", 40)


@pytest.mark.parametrize("k0", [0, 4, 9])
def test_a_k0_that_is_none_or_changes_nothing_is_refused(job: Job, k0: int) -> None:
    with pytest.raises(LossyError, match="1 to 3"):
        compare_arms(job, ArmEngine(), k0=k0)


def test_a_dense_model_has_no_routing_to_change() -> None:
    with pytest.raises(LossyError, match="dense"):
        refuse_k0(ModelFacts("models/d", "1", "Qwen3ForCausalLM", 512, None, toy=False), 2)


def test_a_refused_prompt_ends_the_comparison_with_its_id(job: Job) -> None:
    with pytest.raises(LossyError, match=r"'p0\d+'.*too long"):
        compare_arms(logging_text(job), ArmEngine(refuse=5))
    with pytest.raises(LossyError, match=r"Take it out of the prompts$") as refused:
        compare_arms(job, ArmEngine(refuse=5))
    assert "too long" in refused.value.words[0]
