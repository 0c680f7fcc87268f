"""A trial on an engine in memory: its slices, blocks, repeats and records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orderproof.engines.protocol import Completion, Engine, EngineInfo, Output, Share
from orderproof.measure.evaluate import judge
from orderproof.measure.slice_run import _inversions
from orderproof.measure.tokens_table import tokens_table
from orderproof.measure.trial import begin, run_block
from orderproof.measure.trial_store import Trial, read_history
from orderproof.outputs.passes import CANDIDATE, CONTROL, SHUFFLED, PassOutputs
from tests.support.fake_engine import PROBE_S, FakeEngine, Trouble, grouped, mixed
from tests.support.planned_trials import SIZE, measured, planned, run_blocks
from tests.support.trial_maker import make_job

WARM_UP_RUNS = 2
SLICES = 12  # of a block: six pairs


def first_block(root: Path, trouble: Trouble, run: int = WARM_UP_RUNS) -> Trial:
    """A block in one of whose slices something goes wrong."""
    return measured(planned(root), 1, {run: trouble})[0]


def test_the_fake_keeps_the_protocol() -> None:
    engine: Engine = FakeEngine()
    assert engine.info.load_s == 1.5


# -- what is recorded --------------------------------------------------------------------------------------------------


def test_a_whole_trial_is_recorded_and_read_again_the_same(tmp_path: Path) -> None:
    trial, _ = measured(planned(tmp_path), 2)
    again = Trial.read(trial.folder)
    assert (again.slices, again.passes, again.manifest) == (trial.slices, trial.passes, trial.manifest)
    assert [block.number for block in again.blocks()] == [1, 2]
    assert len(again.slices) == 2 * SLICES
    for recorded in again.passes:
        assert (recorded.requests, recorded.output_tokens) == (SIZE, SIZE * 16)
        assert recorded.throughput_req_s == pytest.approx(SIZE / recorded.wall_s)
        assert trial.tokens(recorded.pass_id).num_rows == SIZE
    verdict = judge(again)
    assert verdict is not None
    assert verdict == judge(trial)
    assert (verdict.blocks, verdict.strata) == (2, 6)
    assert verdict.noise is not None
    assert verdict.outputs is not None
    assert verdict.outputs.d_ab == 0


def test_prompts_are_sent_in_the_order_of_the_arm_and_answers_come_back_under_their_ids(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    trial, engine = measured(plan, 1)
    candidate = plan.orders[CANDIDATE]
    assert candidate is not None
    runs = {(part.arm, part.first): sent for part, sent in zip(trial.slices, engine.sent[WARM_UP_RUNS:], strict=True)}
    for arm in (CANDIDATE, CONTROL):
        sent = [k for (name, _), own in sorted(runs.items()) if name == arm for k in own]
        table = trial.tokens(f"b01-{arm}")
        assert table["prompt_id"].to_pylist() == [plan.prompts.ids[k] for k in sent]
        assert [ids[0] for ids in table["token_ids"].to_pylist()] == sent
        assert table["position"].to_pylist() == list(range(SIZE))
        if arm == CANDIDATE:
            assert sent == candidate.permutation.tolist()


def test_slices_are_in_the_folder_as_they_finish(tmp_path: Path) -> None:
    plan, lines = planned(tmp_path), []

    def progress(block: str, finished: int, requests: int) -> None:
        lines.append(len((trial.folder / "slices.jsonl").read_text().splitlines()))

    with FakeEngine() as engine:
        trial = begin(plan, engine)
        trial = run_block(plan, engine, trial, 1, progress)
    assert lines == sorted(lines)
    assert set(lines) == set(range(SLICES))


def test_the_warm_up_counts_for_nothing_and_is_registered(tmp_path: Path) -> None:
    trial, engine = measured(planned(tmp_path), 0)
    assert [len(sent) for sent in engine.sent] == [64, 16]
    assert trial.slices == ()
    assert trial.manifest.slices.warm_up.requests == 64


def test_requests_admitted_against_the_order_are_counted(tmp_path: Path) -> None:
    trial = first_block(tmp_path, Trouble(admitted_backwards=True))
    first, other = trial.slices[0].arm, trial.slices[1].arm
    passes = trial.blocks()[0].passes
    assert passes[first].admission_inversions == 15
    assert passes[other].admission_inversions == 0


def test_admission_is_compared_with_what_each_replica_was_sent() -> None:
    def sent(clock: list[int]) -> list[Output | None]:
        return [Output(k, (), 0, float(at), 0.0) for k, at in enumerate(clock)]

    side_by_side = sent([0, 2, 4, 1, 3, 5])  # two replicas, each in its own order
    assert _inversions(side_by_side, ()) > 0
    assert _inversions(side_by_side, (Share(0, 0, 3), Share(1, 3, 6))) == 0
    taken_over = sent([0, 2, 5, 1, 3, 4])  # place 2 went to replica 1, after its own share
    assert _inversions(taken_over, (Share(0, 0, 2), Share(1, 3, 6), Share(1, 2, 3))) == 0
    assert _inversions(taken_over, (Share(0, 0, 2), Share(1, 2, 3), Share(1, 3, 6))) == 3


def test_a_fixed_control_has_shuffles_as_a_third_arm(tmp_path: Path) -> None:
    plan = planned(tmp_path, grouped(SIZE), order={"method": "shuffled", "seed": 3})
    trial, _ = measured(plan, 2)
    assert set(trial.manifest.arms) == {CONTROL, CANDIDATE, SHUFFLED}
    assert len(trial.slices) == 2 * 18
    verdict = judge(trial)
    assert verdict is not None
    assert verdict.outputs is not None
    assert verdict.outputs.d_aa == 0


# -- salts -------------------------------------------------------------------------------------------------------------


def test_each_arm_of_each_block_has_a_prefix_cache_of_its_own(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    engine = FakeEngine(settings={"prefix_caching": True})
    trial = run_blocks(plan, engine, 2)
    salts = {
        (part.block, part.arm, salt)
        for part, used in zip(trial.slices, engine.salts[WARM_UP_RUNS:], strict=True)
        for salt in used
    }
    assert len(salts) == len({salt for *_, salt in salts}) == 4
    assert None not in {salt for *_, salt in salts}


def test_without_a_prefix_cache_there_are_no_salts(tmp_path: Path) -> None:
    engine = FakeEngine(settings={"prefix_caching": False})
    run_blocks(planned(tmp_path), engine, 1)
    assert {salt for used in engine.salts[WARM_UP_RUNS:] for salt in used} == {None}


# -- repeats -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        (Trouble(failed=2), "2 requests failed"),
        (Trouble(cut_short=3), "3 requests were cut short"),
        (Trouble(throttled=1.0), "the accelerator throttled"),
    ],
)
def test_a_bad_slice_has_its_pair_run_again_at_the_blocks_end(tmp_path: Path, trouble: Trouble, reason: str) -> None:
    trial = first_block(tmp_path, trouble)
    bad, other, *rest = trial.slices
    assert [why.startswith(reason) for why in bad.repeat] == [True]
    assert other.repeat == ()
    assert [part.attempt for part in rest] == [0] * (SLICES - 2) + [1, 1]
    assert {part.stratum for part in rest[-2:]} == {bad.stratum}
    assert {part.arm for part in rest[-2:]} == {CANDIDATE, CONTROL}
    assert trial.repeated() == [bad, other]
    assert {part.attempt for part in trial.blocks()[0].slices.values()} == {0, 1}
    assert trial.tokens("b01-candidate").num_rows == SIZE


@pytest.mark.parametrize("trouble", [Trouble(steal=0.9), Trouble(probe=9.0), Trouble(wall=0.001), Trouble(wall=1000.0)])
def test_a_noisy_machine_repeats_nothing(tmp_path: Path, trouble: Trouble) -> None:
    trial = first_block(tmp_path, trouble)
    assert trial.repeated() == []
    assert len(trial.slices) == SLICES
    assert trial.slices[0].steal == trouble.steal
    assert {timed.probe_s for timed in trial.passes} == {PROBE_S * trouble.probe}


def test_requests_that_keep_failing_make_the_trial_invalid(tmp_path: Path) -> None:
    runs = (WARM_UP_RUNS, WARM_UP_RUNS + SLICES, WARM_UP_RUNS + SLICES + 2)
    trial, engine = measured(planned(tmp_path), 1, {run: Trouble(failed=1) for run in runs})
    assert len(engine.sent) == WARM_UP_RUNS + SLICES + 4
    assert trial.blocks() == []
    verdict = judge(trial)
    assert verdict is not None
    assert verdict.verdict == "invalid"
    assert "1 requests failed" in verdict.reason
    assert judge(Trial.read(trial.folder)) == verdict


def test_a_pair_that_succeeds_at_its_last_attempt_counts(tmp_path: Path) -> None:
    trial, _ = measured(planned(tmp_path), 1, {run: Trouble(failed=1) for run in (WARM_UP_RUNS, WARM_UP_RUNS + SLICES)})
    assert [block.number for block in trial.blocks()] == [1]
    assert judge(trial) is None


def test_throttling_that_stays_counts_and_is_on_record(tmp_path: Path) -> None:
    trial, _ = measured(planned(tmp_path), 2, {run: Trouble(throttled=1.0) for run in range(200)})
    assert len(trial.blocks()) == 2
    assert trial.passes[0].throttled_pairs == 6
    verdict = judge(trial)
    assert verdict is not None
    assert verdict.verdict != "invalid"


@pytest.mark.parametrize(
    ("job", "own", "cut"),
    [
        ({"max_tokens": 16, "ignore_eos": True}, None, True),
        ({"max_tokens": 16, "ignore_eos": True}, {"max_tokens": 8}, True),
    ],
)
def test_an_output_is_cut_short_only_of_what_was_asked_for_it(
    tmp_path: Path, job: dict[str, Any], own: dict[str, Any] | None, cut: bool
) -> None:
    plan = planned(tmp_path, samplings=[own] * SIZE, sampling={"temperature": 0, **job})
    trial, _ = measured(plan, 1, {WARM_UP_RUNS: Trouble(cut_short=1)})
    assert trial.slices[0].cut_short == int(cut)
    assert trial.slices[1].cut_short == 0


# -- outputs -----------------------------------------------------------------------------------------------------------


def test_several_samples_are_one_output_whose_tokens_all_count(tmp_path: Path) -> None:
    plan = planned(tmp_path, sampling={"temperature": 0.5, "max_tokens": 16, "n": 3, "ignore_eos": True})
    trial, _ = measured(plan, 1)
    assert trial.passes[0].output_tokens == SIZE * 3 * 16
    rows = trial.tokens(trial.passes[0].pass_id).to_pylist()
    assert len(rows) == 3 * SIZE
    assert [(row["sample"], row["position"]) for row in rows[:4]] == [(0, 0), (1, 0), (2, 0), (0, 1)]
    assert len({row["prompt_id"] for row in rows[:3]}) == 1
    assert {row["finish_reason"] for row in rows} == {"length"}


def test_a_token_that_moves_to_the_next_sample_is_another_output(tmp_path: Path) -> None:
    def digests(*samples: list[int]) -> list[int]:
        completions = tuple(Completion(tokens, "", "stop") for tokens in samples)
        outputs = {0: Output(0, completions, 0, 0.0, 0.0)}
        table = tokens_table(plan.prompts, np.arange(1), outputs, None)
        return PassOutputs.from_tokens("p", CONTROL, table, plan.prompts.ids[:1]).digests.tolist()

    plan = planned(tmp_path)
    assert digests([1, 2], [3]) == digests([1, 2], [3])
    assert digests([1, 2], [3]) != digests([1], [2, 3])
    assert digests([1], []) != digests([], [1])


# -- stopped and taken up again ----------------------------------------------------------------------------------------


def stopped(root: Path, after: int) -> Trial:
    """A trial whose process ended after so many slices of its second block."""
    trial, _ = measured(planned(root), 2)
    folder = trial.folder
    slices = (folder / "slices.jsonl").read_text().splitlines(keepends=True)
    (folder / "slices.jsonl").write_text("".join(slices[: SLICES + after]) + slices[-1][:40])  # the last one is torn
    passes = (folder / "passes.jsonl").read_text().splitlines(keepends=True)
    (folder / "passes.jsonl").write_text("".join(passes[:2]))
    return Trial.read(folder)


@pytest.mark.parametrize("after", [0, 5])
def test_a_stopped_trial_is_taken_up_at_its_last_complete_block(tmp_path: Path, after: int) -> None:
    before = stopped(tmp_path, after)
    reports = make_job(tmp_path).paths.verb_dir("measure")
    plan = planned(tmp_path, history=read_history(reports))
    assert plan.resumable is not None
    trial = run_blocks(plan, FakeEngine(), 1)
    assert trial.folder == before.folder
    assert trial.manifest == before.manifest
    assert [block.number for block in trial.blocks()] == [1, 2]
    assert {part.run for part in trial.blocks()[1].slices.values()} == {int(after > 0)}
    assert Trial.read(trial.folder).slices == trial.slices
    assert judge(Trial.read(trial.folder)) is not None


def test_on_another_engine_a_stopped_trial_stays_stopped_and_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = stopped(tmp_path, 3)
    plan = planned(tmp_path, history=read_history(make_job(tmp_path).paths.verb_dir("measure")))
    engine = FakeEngine()
    info = engine.info
    engine.info = EngineInfo(info.load_s, {"vllm": "1"}, info.machine, info.settings)
    trial = run_blocks(plan, engine, 0)
    assert trial.folder != before.folder
    assert trial.manifest.attempt == 2
    assert before.manifest.trial in caplog.text


def test_a_trial_with_a_verdict_or_other_settings_is_not_taken_up(tmp_path: Path) -> None:
    before = stopped(tmp_path, 3)
    history = read_history(before.folder.parent)
    assert planned(tmp_path, history=history, measure={"margin": 0.0}).resumable is None
    trial = run_blocks(planned(tmp_path, history=history), FakeEngine(), 1)
    verdict = judge(trial)
    assert (planned(tmp_path, history=read_history(before.folder.parent)).resumable is None) == (verdict is not None)


# -- progress, places --------------------------------------------------------------------------------------------------


def test_progress_is_told_of_every_request_of_a_block(tmp_path: Path) -> None:
    steps: list[tuple[str, int, int]] = []
    plan = planned(tmp_path)
    with FakeEngine() as engine:
        run_block(plan, engine, begin(plan, engine), 1, lambda *step: steps.append(step))
    assert steps == [("block 1", k, 2 * SIZE) for k in range(1, 2 * SIZE + 1)]


def test_too_few_prompts_are_refused_before_an_engine_starts(tmp_path: Path) -> None:
    assert "at least 96" in (planned(tmp_path, mixed(95)).refusal or "")
    assert planned(tmp_path, mixed(96)).refusal is None
    natural = {"temperature": 0, "max_tokens": 16}
    assert "at least 192 (24 times" in (planned(tmp_path, mixed(191), sampling=natural).refusal or "")
