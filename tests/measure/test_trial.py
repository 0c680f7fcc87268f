"""A trial on an engine in memory: its passes, blocks, discards and records."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orderproof.engines.protocol import Completion, Engine, Output, Share
from orderproof.job.spec import OrderSpec
from orderproof.measure import trial as trials
from orderproof.measure.evaluate import judge
from orderproof.measure.plan import Plan, make_plan
from orderproof.measure.trial import _inversions, begin, randomize_arms, run_block
from orderproof.measure.trial_store import SAMPLE_END, History, Trial
from orderproof.orders.registry import make_order
from orderproof.outputs.passes import CANDIDATE, CONTROL, SHUFFLED, PassOutputs
from tests.support.fake_engine import MOE, FakeEngine, Trouble, grouped, mixed, prompts_of
from tests.support.trial_maker import make_job

SIZE = 48


def planned(root: Path, labels: list[str] | None = None, samplings: Any = None, **changes: Any) -> Plan:
    """The plan of a job's first trial."""
    prompts = prompts_of(labels or mixed(SIZE), samplings=samplings)
    current = make_order(OrderSpec(method="file"), prompts, "md5")
    job = make_job(root, **{"order": {"method": "label"}, **changes})
    return make_plan(job, MOE, prompts, "md5", current, History())


def measured(plan: Plan, blocks: int, troubles: dict[int, Trouble] | None = None) -> tuple[Trial, FakeEngine]:
    with FakeEngine(troubles) as engine:
        trial = begin(plan, engine)
        for number in range(1, blocks + 1):
            trial = run_block(plan, engine, trial, number)
    return trial, engine


def first_block(root: Path, trouble: Trouble) -> Trial:
    """A block whose first pass has the trouble, and what was made of it."""
    return measured(planned(root), 1, {1: trouble})[0]


def test_the_fake_keeps_the_protocol() -> None:
    engine: Engine = FakeEngine()
    assert engine.info.load_s == 1.5


# -- what is recorded --------------------------------------------------------------------------------------------------


def test_a_whole_trial_is_recorded_and_read_again_the_same(tmp_path: Path) -> None:
    trial, _ = measured(planned(tmp_path), 5)
    again = Trial.read(trial.folder)
    assert again.passes == trial.passes
    assert again.manifest == trial.manifest
    assert [block.number for block in again.blocks()] == [1, 2, 3, 4, 5]
    for timed in (timed for timed in again.passes if timed.block):
        assert (timed.requests, timed.output_tokens, timed.failed, timed.cut_short) == (SIZE, SIZE * 16, 0, 0)
        assert timed.throughput_req_s == SIZE / timed.wall_s
        assert trial.tokens(timed.pass_id).num_rows == SIZE
    verdict = judge(again)
    assert verdict is not None
    assert verdict.blocks == 5
    assert verdict.outputs is not None
    assert verdict.outputs.d_ab == 0


def test_prompts_are_sent_in_the_order_of_the_arm_and_answers_come_back_under_their_ids(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    trial, engine = measured(plan, 2)
    candidate = plan.orders[CANDIDATE]
    assert candidate is not None
    for timed, sent in zip(trial.passes[1:], engine.sent[1:], strict=True):
        table = trial.tokens(timed.pass_id)
        assert table["prompt_id"].to_pylist() == [plan.prompts.ids[k] for k in sent]
        assert [ids[0] for ids in table["token_ids"].to_pylist()] == sent
        assert table["position"].to_pylist() == list(range(SIZE))
        if timed.arm == CANDIDATE:
            assert sent == candidate.permutation.tolist()
        else:
            shuffled = OrderSpec(method="shuffled", seed=plan.shuffle_seeds[timed.block - 1])
            assert sent == make_order(shuffled, plan.prompts, "md5").permutation.tolist()


def test_the_warm_up_is_a_few_batches_and_counts_for_nothing(tmp_path: Path) -> None:
    trial, engine = measured(planned(tmp_path, mixed(90)), 1)
    warm_up = trial.passes[0]
    assert (warm_up.block, warm_up.arm, warm_up.requests) == (0, "warm-up", 64)
    assert len(set(engine.sent[0])) == 64
    assert warm_up.pass_id not in {timed.pass_id for block in trial.blocks() for timed in block.passes.values()}
    assert 0 not in trial.block_attempts()


def test_requests_admitted_against_the_order_are_counted(tmp_path: Path) -> None:
    trial = first_block(tmp_path, Trouble(admitted_backwards=True))
    backwards, straight = trial.passes[1:3]
    assert backwards.admission_inversions == SIZE - 1
    assert straight.admission_inversions == 0
    assert trial.tokens(backwards.pass_id)["admitted"].to_pylist() == list(range(SIZE))[::-1]


def test_admission_is_compared_with_what_each_replica_was_sent() -> None:
    admitted = np.array([0, 2, 4, 1, 3, 5])  # two replicas side by side, each in its own order
    assert _inversions(admitted, ()) > 0
    assert _inversions(admitted, (Share(0, 0, 3), Share(1, 3, 6))) == 0
    taken_over = np.array([0, 2, 5, 1, 3, 4])  # place 2 went to replica 1, after its own share
    assert _inversions(taken_over, (Share(0, 0, 2), Share(1, 3, 6), Share(1, 2, 3))) == 0
    assert _inversions(taken_over, (Share(0, 0, 2), Share(1, 2, 3), Share(1, 3, 6))) == 3


# -- the coin ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "order", "arms"),
    [(mixed(SIZE), "label", {CONTROL, CANDIDATE}), (grouped(SIZE), "shuffled", {CONTROL, CANDIDATE, SHUFFLED})],
)
def test_the_turns_are_the_registered_coins(tmp_path: Path, labels: list[str], order: str, arms: set[str]) -> None:
    plan = planned(tmp_path, labels, order={"method": order, "seed": 3})
    trial, _ = measured(plan, 10, {4: Trouble(failed=1)})
    assert set(trial.manifest.arms) == arms
    firsts = set()
    for number, attempts in trial.block_attempts().items():
        for attempt in attempts:
            tossed = randomize_arms(trial.manifest.coin_seed, number, attempt[0].attempt, trial.manifest.arms)
            assert [timed.arm for timed in attempt] == tossed
            assert [timed.turn for timed in attempt] == list(range(len(arms)))
            firsts.add(attempt[0].arm)
    assert len(firsts) > 1


def test_each_of_two_arms_goes_first_in_half_of_the_blocks_and_no_toss_tells_the_next() -> None:
    first = np.array([randomize_arms(7, block, 0, (CONTROL, CANDIDATE))[0] == CONTROL for block in range(4000)])
    four_sd = 4 * np.sqrt(4000) / 2
    assert abs(first.sum() - 2000) < four_sd
    assert abs((first[1:] == first[:-1]).sum() - 2000) < four_sd
    by_seed = np.array([randomize_arms(seed, 1, 0, (CONTROL, CANDIDATE))[0] == CONTROL for seed in range(4000)])
    assert abs(by_seed.sum() - 2000) < four_sd
    repeated = np.array([randomize_arms(7, block, 1, (CONTROL, CANDIDATE))[0] == CONTROL for block in range(4000)])
    assert abs((repeated == first).sum() - 2000) < four_sd


def test_all_six_orders_of_three_arms_are_equally_likely() -> None:
    seen = Counter(tuple(randomize_arms(7, block, 0, (CONTROL, CANDIDATE, SHUFFLED))) for block in range(6000))
    assert len(seen) == 6
    assert sum((count - 1000) ** 2 / 1000 for count in seen.values()) < 20.5  # chi², 5 degrees of freedom, p = 0.001


# -- validity ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        (Trouble(failed=2), "2 requests failed"),
        (Trouble(cut_short=3), "3 requests were cut short"),
        (Trouble(throttled=1.0), "the accelerator throttled"),
    ],
)
def test_a_bad_pass_discards_its_whole_block_which_is_run_again(tmp_path: Path, trouble: Trouble, reason: str) -> None:
    trial = first_block(tmp_path, trouble)
    bad, other, *again = trial.passes[1:]
    assert [why.startswith(reason) for why in bad.invalid] == [True]
    assert other.invalid == ()
    assert {timed.pass_id for timed in trial.discarded()} == {bad.pass_id, other.pass_id}
    assert [timed.attempt for timed in again] == [1, 1]
    assert {timed.pass_id for timed in again} == {timed.pass_id for timed in trial.blocks()[0].passes.values()}


@pytest.mark.parametrize("trouble", [Trouble(steal=0.9), Trouble(probe_before=9.0), Trouble(probe_after=9.0)])
def test_a_noisy_machine_discards_nothing_and_is_on_record(tmp_path: Path, trouble: Trouble) -> None:
    trial = first_block(tmp_path, trouble)
    assert trial.discarded() == []
    timed = trial.passes[1]
    assert timed.steal == trouble.steal
    assert timed.probe_before_s / timed.probe_after_s == pytest.approx(trouble.probe_before / trouble.probe_after)


@pytest.mark.parametrize("wall", [0.001, 1000.0])
def test_validity_never_looks_at_a_rate(tmp_path: Path, wall: float) -> None:
    trial = first_block(tmp_path, Trouble(wall=wall))
    assert trial.discarded() == []
    assert [timed.invalid for timed in trial.passes] == [(), (), ()]


def test_a_block_is_repeated_twice_at_most_and_then_the_trial_is_invalid(tmp_path: Path) -> None:
    trial, engine = measured(planned(tmp_path), 1, {number: Trouble(failed=1) for number in (1, 3, 6)})
    assert [[timed.attempt for timed in attempt] for attempt in trial.block_attempts()[1]] == [[0, 0], [1, 1], [2, 2]]
    assert len(engine.sent) == 7
    assert trial.blocks() == []
    verdict = judge(trial)
    assert verdict is not None
    assert verdict.verdict == "invalid"
    assert "Block 1 stayed invalid in 3 attempts: 1 requests failed" in verdict.reason


def test_a_block_that_succeeds_at_its_last_attempt_counts(tmp_path: Path) -> None:
    trial, _ = measured(planned(tmp_path), 1, {number: Trouble(failed=1) for number in (1, 3)})
    assert [block.number for block in trial.blocks()] == [1]
    assert judge(trial) is None


def test_a_repeated_block_is_shuffled_by_the_same_seed(tmp_path: Path) -> None:
    trial = first_block(tmp_path, Trouble(failed=1))
    assert len({timed.order_sha256 for timed in trial.passes if timed.arm == CONTROL}) == 1


@pytest.mark.parametrize(
    ("job", "own", "cut"),
    [
        ({"max_tokens": 16}, None, True),
        ({"max_tokens": None}, None, False),  # no limit: the model's length ends an output rightly
        ({"max_tokens": 16}, {"max_tokens": 8}, True),
        ({"max_tokens": 16}, {"max_tokens": None}, False),
        ({}, None, True),  # vLLM's own 16
    ],
)
def test_an_output_is_cut_short_only_of_what_was_asked_for_it(
    tmp_path: Path, job: dict[str, Any], own: dict[str, Any] | None, cut: bool
) -> None:
    plan = planned(tmp_path, samplings=[own] * SIZE, sampling={"temperature": 0, **job})
    trial, _ = measured(plan, 1, {1: Trouble(cut_short=1)})
    assert trial.passes[1].cut_short == int(cut)
    assert trial.passes[2].cut_short == 0


def test_several_samples_are_one_output_whose_tokens_all_count(tmp_path: Path) -> None:
    plan = planned(tmp_path, sampling={"temperature": 0.5, "max_tokens": 16, "n": 3})
    trial, _ = measured(plan, 1, {1: Trouble(cut_short=1)})
    cut, whole = trial.passes[1:3]
    assert (cut.cut_short, whole.cut_short, whole.requests, whole.output_tokens) == (1, 0, SIZE, SIZE * 3 * 16)
    first = trial.tokens(whole.pass_id).to_pylist()[0]
    number = first["token_ids"][0]
    assert first["token_ids"] == [*[number] * 16, SAMPLE_END, *[number] * 16, SAMPLE_END, *[number] * 16]
    assert (first["finish_reason"], first["text"]) == ("length,length,length", "text\n\ntext\n\ntext")


def test_a_token_that_moves_to_the_next_sample_is_another_output(tmp_path: Path) -> None:
    def passed(*samples: list[int]) -> PassOutputs:
        completions = tuple(Completion(tokens, "", "stop") for tokens in samples)
        table = trials._tokens_table(plan, np.arange(1), [Output(0, completions, 0, 0.0, 0.0)])
        return PassOutputs.from_tokens("p", CONTROL, table, plan.prompts.ids[:1])

    plan = planned(tmp_path)
    assert passed([1, 2], [3]).digests == passed([1, 2], [3]).digests
    assert passed([1, 2], [3]).digests != passed([1], [2, 3]).digests
    assert passed([1], []).digests != passed([], [1]).digests


def test_progress_is_told_of_every_request(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    begin(planned(tmp_path), FakeEngine(), lambda *step: told.append(step))
    assert told == [("b00-warm-up", k, SIZE) for k in range(1, SIZE + 1)]


def test_placebos_lie_apart(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    assert trials.reports_of(job, placebo=True) == tmp_path / "reports" / "placebo" / job.name
    assert trials.reports_of(job, placebo=False) == job.reports_dir
