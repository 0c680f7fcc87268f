"""What is registered before the first pass: alpha by earlier attempts, looks, power, settings."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orderproof.job.model import MoeFacts
from orderproof.job.redaction import HIDDEN
from orderproof.job.spec import OrderSpec
from orderproof.measure.plan import LONG_LOOKS, SHORT_LOOKS, Plan, kind_of_slices, make_plan, measured_prompts
from orderproof.measure.predicted_gain import PredictedGain
from orderproof.measure.preflight import structural_refusal
from orderproof.measure.trial_records import Manifest, WarmUp
from orderproof.measure.trial_store import History, read_history
from orderproof.orders.registry import make_order
from orderproof.outputs.passes import CANDIDATE, CONTROL, SHUFFLED
from tests.support.fake_engine import BATCH, MOE, FakeEngine, grouped, mixed, prompts_of
from tests.support.trial_maker import make_job, make_trial

SIZE = 192


def planned(
    root: Path,
    history: History | None = None,
    *,
    labels: list[str] | None = None,
    aa: bool = False,
    aa_trials: History | None = None,
    md5: str = "md5",
    model: Any = MOE,
    current: OrderSpec | None = None,
    predicted: PredictedGain | None = None,
    **changes: Any,
) -> Plan:
    prompts = prompts_of(labels or mixed(SIZE))
    job = make_job(root, **{"order": {"method": "label"}, **changes})
    now = make_order(current or OrderSpec(method="file"), prompts, md5)
    histories = {"aa": aa, "aa_trials": aa_trials or History()}
    return make_plan(job, model, prompts, md5, now, history or History(), **histories, predicted=predicted)


def registered(plan: Plan) -> Manifest:
    return plan.manifest(FakeEngine().info, 0.03, WarmUp(requests=64, seconds=1.0, prefill_cost=0.05))


def had(plan: Plan, root: Path, count: int = 1, **looks: Any) -> History:
    """A history of trials that were registered with the plan; `looks` of make_trial."""
    now = registered(plan)
    same = {
        key: getattr(now, key) for key in ("question", "settings", "model", "engine", "sampling", "dataset_md5", "aa")
    }
    for number in range(count):
        make_trial(root / f"2026112{number}T000000Z-0000", **{**same, **looks})
    return read_history(root)


# -- α -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("earlier", "alpha"), [(0, 0.025), (1, 0.0125), (2, 0.00625)])
def test_every_further_trial_of_a_question_has_half_the_alpha(tmp_path: Path, earlier: int, alpha: float) -> None:
    history = had(planned(tmp_path), tmp_path / "trials", earlier)
    plan = planned(tmp_path, history)
    assert (plan.attempt, plan.rule.alpha) == (1 + earlier, alpha)
    assert registered(plan).rule.alpha == alpha


@pytest.mark.parametrize(
    "changes",
    [
        {"measure": {"margin": 0.0}},
        {"measure": {"budget_minutes": 10.0}},
        {"measure": {"prompts": 128}},
        {"measure": {"min_effect": 0.5}},
        {"measure": {"seed": 7}},
        {"measure": {"looks": [7, 14]}},
        {"measure": {"validity": {"repeats": 0}}},
        {"outputs": "proven"},
        {"engine": {"args": {"max_num_seqs": BATCH, "enable_prefix_caching": False}, "env": {"A": "1"}}},
        {"reporting": {"price_per_hour": 3.0}},
    ],
)
def test_what_a_trial_merely_chooses_does_not_bring_alpha_back(tmp_path: Path, changes: dict[str, Any]) -> None:
    history = had(planned(tmp_path), tmp_path / "trials")
    assert planned(tmp_path, history, **changes).attempt == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"md5": "other"},
        {"model": replace(MOE, fingerprint="other")},
        {"sampling": {"temperature": 0.5}},
        {"order": {"method": "shuffled", "seed": 5}},
        {"engine": {"args": {"max_num_seqs": 4}}},
        {"engine": {"args": {"max_num_seqs": BATCH, "enable_prefix_caching": False}, "in_process": False}},
        {"engine": {"args": {"max_num_seqs": BATCH, "enable_prefix_caching": False}, "replicas": 2}},
    ],
)
def test_another_claim_or_other_data_is_another_question(tmp_path: Path, changes: dict[str, Any]) -> None:
    history = had(planned(tmp_path), tmp_path / "trials")
    assert planned(tmp_path, history, **changes).attempt == 1


def test_a_trial_counts_from_its_first_whole_block(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    assert planned(tmp_path, had(plan, tmp_path / "none", blocks=0)).attempt == 1
    assert planned(tmp_path, had(plan, tmp_path / "one", blocks=1)).attempt == 2


@pytest.mark.parametrize("broken", ["manifest.json", "passes.jsonl"])
def test_a_registered_trial_that_cannot_be_read_gives_no_alpha_back_and_is_named(
    tmp_path: Path, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    had(planned(tmp_path), tmp_path / "trials", 2)
    folder = tmp_path / "trials" / "20261120T000000Z-0000"
    (folder / broken).write_text("torn\n")
    history = read_history(tmp_path / "trials")
    assert (len(history.trials), history.unreadable) == (1, (folder.name,))
    with caplog.at_level(logging.WARNING):
        plan = planned(tmp_path, history)
    assert (plan.attempt, plan.rule.alpha) == (3, 0.00625)
    assert folder.name in caplog.text
    assert "attempt 3 and α is 0.00625" in caplog.text


def test_a_folder_without_a_manifest_is_no_trial(tmp_path: Path) -> None:
    (tmp_path / "trials" / "validation").mkdir(parents=True)
    assert len(read_history(tmp_path / "trials")) == 0


def test_the_settings_tell_any_change_that_would_measure_something_else(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    assert plan.settings == planned(tmp_path, reporting={"price_per_hour": 3.0}).settings
    assert plan.settings == planned(tmp_path, accept_lossy={"k0": 2}).settings, "a trial has the model's own routing"
    changes: list[dict[str, Any]] = [
        {"measure": {"margin": 0.0}},
        {"measure": {"prompts": 128}},
        {"outputs": "proven"},
        {"md5": "other"},
        {"sampling": {"temperature": 0.5}},
        {"engine": {"args": {"max_num_seqs": BATCH, "enable_prefix_caching": False}, "env": {"A": "1"}}},
    ]
    assert len({plan.settings, *(planned(tmp_path, **change).settings for change in changes)}) == 1 + len(changes)


# -- arms --------------------------------------------------------------------------------------------------------------


def test_a_shuffled_file_is_measured_against_fresh_shuffles(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    assert list(plan.orders) == [CONTROL, CANDIDATE]
    assert plan.orders[CONTROL] is None
    assert "shuffled afresh in every block" in plan.control_why
    assert registered(plan).control is None


def test_a_grouped_file_is_the_control_and_shuffled_the_third_arm(tmp_path: Path) -> None:
    plan = planned(tmp_path, labels=grouped(SIZE), order={"method": "shuffled", "seed": 3})
    assert list(plan.orders) == [CONTROL, CANDIDATE, SHUFFLED]
    control = plan.orders[CONTROL]
    assert control is not None
    assert control.permutation.tolist() == list(range(SIZE))
    assert plan.orders[SHUFFLED] is None
    assert "shuffled is the third arm" in plan.control_why
    assert registered(plan).control == control.record()


def test_a_promoted_candidate_is_measured_against_what_the_job_would_do_without_it(tmp_path: Path) -> None:
    plan = planned(tmp_path, current=OrderSpec(method="label"))
    assert list(plan.orders) == [CONTROL, CANDIDATE]
    assert "current order (file)" in plan.control_why
    assert plan.refusal is None


def test_another_promoted_order_is_the_control(tmp_path: Path) -> None:
    plan = planned(tmp_path, current=OrderSpec(method="label"), order={"method": "shuffled", "seed": 3})
    assert SHUFFLED in plan.orders
    assert "current order (label)" in plan.control_why


def test_an_aa_test_compares_one_shuffle_with_others_and_spends_no_alpha(tmp_path: Path) -> None:
    plan = planned(tmp_path, aa=True, labels=grouped(SIZE), model=replace(MOE, moe=None))
    candidate = plan.orders[CANDIDATE]
    assert candidate is not None
    assert (candidate.method, plan.orders[CONTROL], list(plan.orders)) == ("shuffled", None, [CONTROL, CANDIDATE])
    assert plan.refusal is None
    aa_trials = had(plan, tmp_path / "aa_trials", 2)
    again = planned(tmp_path, aa=True, aa_trials=aa_trials)
    assert (again.attempt, again.rule.alpha) == (1, 0.025)


# -- looks and what could be seen --------------------------------------------------------------------------------------


def test_without_history_the_first_look_is_at_two_blocks_and_nothing_is_known(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    assert plan.rule.looks == (2, 3, 5, 8, 12)
    assert (plan.noise, plan.detectable_gain_before, plan.detectable_excess_before) == (None, None, None)


def test_a_trial_is_longer_where_history_says_that_a_short_one_cannot_see_the_predicted_gain(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    noisy, quiet = (
        had(plan, tmp_path / name, blocks=10, noise=noise) for name, noise in (("noisy", 0.045), ("quiet", 0.01))
    )
    predicted = PredictedGain(gain=0.05, low=0.02, high=0.08)
    long, short, unknown = (
        planned(tmp_path, noisy, predicted=predicted),
        planned(tmp_path, quiet, predicted=predicted),
        planned(tmp_path, noisy),
    )
    assert (long.rule.looks, short.rule.looks, unknown.rule.looks) == (LONG_LOOKS, SHORT_LOOKS, SHORT_LOOKS)
    assert long.noise is not None
    assert long.noise.detectable(short.rule) > 0.05 > long.noise.detectable(long.rule)


def test_looks_that_the_job_gives_hold_after_any_history(tmp_path: Path) -> None:
    history = had(planned(tmp_path), tmp_path / "trials", blocks=10, noise=0.1)
    predicted = PredictedGain(gain=0.05, low=0.02, high=0.08)
    assert planned(tmp_path, history, measure={"looks": [6]}, predicted=predicted).rule.looks == (6,)


def test_another_models_noise_tells_nothing(tmp_path: Path) -> None:
    history = had(planned(tmp_path), tmp_path / "trials", noise=0.06)
    assert planned(tmp_path, history, model=replace(MOE, fingerprint="other")).noise is None


def test_impossible_times_tell_no_noise_and_do_not_end_the_next_plan(tmp_path: Path) -> None:
    history = had(planned(tmp_path), tmp_path / "trials")
    silent = [part.model_copy(update={"seconds": 0.0}) for part in history.trials[0].slices]
    history = History((replace(history.trials[0], slices=tuple(silent)),))
    assert planned(tmp_path, history).noise is None


def test_a_budget_of_time_is_registered(tmp_path: Path) -> None:
    assert registered(planned(tmp_path)).rule.budget_s is None
    assert registered(planned(tmp_path, measure={"budget_minutes": 1.5})).rule.budget_s == 90


# -- slices ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampling", "own", "kind"),
    [
        ({"max_tokens": 16, "ignore_eos": True}, None, "clean"),
        ({"max_tokens": 16}, None, "fed"),
        ({"max_tokens": None, "ignore_eos": True}, None, "fed"),
        ({"ignore_eos": True}, None, "fed"),
        ({"max_tokens": 16, "ignore_eos": True}, {"max_tokens": 8}, "fed"),
        ({"max_tokens": 16, "ignore_eos": True}, {"ignore_eos": False}, "fed"),
        ({"max_tokens": 16, "ignore_eos": True, "stop": ["."]}, None, "fed"),
        ({"max_tokens": 16, "ignore_eos": True}, {"stop_token_ids": [3]}, "fed"),
        ({"max_tokens": 16, "ignore_eos": True}, {"temperature": 0.5}, "clean"),
    ],
)
def test_slices_are_clean_only_where_every_answer_is_equally_long(
    tmp_path: Path, sampling: dict[str, Any], own: dict[str, Any] | None, kind: str
) -> None:
    prompts = prompts_of(mixed(SIZE), samplings=[own, *[None] * (SIZE - 1)])
    assert kind_of_slices(make_job(tmp_path, sampling=sampling), prompts) == kind


def test_a_stratum_has_the_label_of_most_of_its_prompts(tmp_path: Path) -> None:
    now = registered(planned(tmp_path))
    assert now.slices.sizes == (32,) * 6
    assert set(now.slices.labels) == {"maths", "code", "law"}
    assert list(now.slices.labels) == sorted(now.slices.labels, key=now.slices.labels.index)


def test_history_foretells_the_smallest_gain_and_excess_and_both_are_registered(tmp_path: Path) -> None:
    history = had(planned(tmp_path), tmp_path / "trials", prompts=SIZE, shuffle_disagreement=0.1)
    plan = planned(tmp_path, history)
    assert plan.detectable_gain_before is not None
    assert plan.detectable_excess_before is not None
    assert 0.01 < plan.detectable_gain_before < 0.1
    assert 0.01 < plan.detectable_excess_before < 1
    now = registered(plan)
    assert now.detectable_gain_before == plan.detectable_gain_before
    assert now.detectable_excess_before == plan.detectable_excess_before


def test_a_pilot_whose_outputs_are_gone_foretells_no_excess(tmp_path: Path) -> None:
    history = had(planned(tmp_path), tmp_path / "trials", prompts=SIZE)
    for path in (history.trials[0].folder / "tokens").iterdir():
        path.unlink()
    plan = planned(tmp_path, history)
    assert plan.noise is not None
    assert plan.detectable_excess_before is None


# -- coins -------------------------------------------------------------------------------------------------------------


def test_no_two_trials_share_a_coin_or_a_shuffle(tmp_path: Path) -> None:
    first = planned(tmp_path)
    aa = planned(tmp_path, aa=True)
    one, stopped, two = (
        had(first, tmp_path / name, count, **how)
        for name, count, how in (("one", 1, {}), ("stopped", 1, {"blocks": 0}), ("two", 2, {}))
    )
    unreadable = History((), ("20261129T144640Z-3f9a", "20261129T144641Z-3f9a", "20261129T144642Z-3f9a"))
    plans = [
        first,
        planned(tmp_path, one),
        planned(tmp_path, two),
        planned(tmp_path, unreadable),
        planned(tmp_path, md5="other"),
        planned(tmp_path, order={"method": "shuffled", "seed": 5}),
        planned(tmp_path, measure={"seed": 1}),
        aa,
        planned(tmp_path, aa=True, aa_trials=had(aa, tmp_path / "aa_trials", 1)),
        planned(tmp_path, aa=True, aa_trials=had(aa, tmp_path / "more", 2)),
    ]
    seeds = {plan.coin_seed for plan in plans}
    assert len(seeds) == len(plans)
    assert planned(tmp_path, stopped).coin_seed not in {first.coin_seed}
    assert planned(tmp_path).coin_seed == first.coin_seed
    assert registered(first).coin_seed == first.coin_seed


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_a_plan_with_something_to_gain_is_not_refused(tmp_path: Path) -> None:
    assert planned(tmp_path).refusal is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": replace(MOE, moe=None)}, "is dense"),
        ({"labels": ["law"]}, "single prompt"),
        ({"labels": mixed(BATCH)}, "all 8 prompts run at once in one batch of 8"),
        ({"model": replace(MOE, moe=MoeFacts(8, 8, 4, None))}, "to all of its 8 experts"),
        (
            {"model": replace(MOE, moe=MoeFacts(8, 6, 4, None)), "engine": {"args": {"max_num_seqs": 64}}},
            "a batch of 64 touches 100.00% of the 8 experts even when sorted",
        ),
        ({"sampling": {"max_tokens": 1}}, "nearly all prefill: 20 prompt tokens for at most 1 generated"),
        ({"labels": grouped(SIZE)}, r"the candidate \(label\) is the order in which the job runs already"),
        (
            {"labels": grouped(SIZE), "order": {"method": "shuffled"}, "measure": {"prompts": 128}},
            r"thin the groups of the control \(file.*measure all prompts, leave out measure.prompts",
        ),
    ],
)
def test_what_no_order_can_help_is_refused(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    refusal = planned(tmp_path, **changes).refusal
    assert refusal is not None
    assert re.search(reason, refusal), refusal


def test_a_sample_is_measured_against_shuffles_and_all_prompts_against_a_grouped_file(tmp_path: Path) -> None:
    assert planned(tmp_path, measure={"prompts": 128}).refusal is None
    assert planned(tmp_path, labels=grouped(SIZE), order={"method": "shuffled"}).refusal is None
    as_many_as_there_are = {"prompts": SIZE}
    assert (
        planned(tmp_path, labels=grouped(SIZE), order={"method": "shuffled"}, measure=as_many_as_there_are).refusal
        is None
    )


@pytest.mark.parametrize(
    ("prompt_tokens", "job", "own", "refused"),
    [
        (2000, {"max_tokens": 16}, None, True),
        (2000, {"max_tokens": 64}, None, False),
        (2000, {}, None, True),  # vLLM's own 16
        (2000, {"max_tokens": None}, None, False),  # as many as the model's length leaves: 4,096 − 2,000
        (4090, {"max_tokens": None}, None, True),  # 6 tokens
        (2000, {"max_tokens": 16}, {"max_tokens": 64}, False),
        (2000, {"max_tokens": 64}, {"max_tokens": 16}, True),
        (2000, {"max_tokens": 16}, {"max_tokens": None}, False),
    ],
)
def test_prefill_is_weighed_against_what_each_prompt_may_generate(
    tmp_path: Path, prompt_tokens: int, job: dict[str, Any], own: dict[str, Any] | None, refused: bool
) -> None:
    prompts = prompts_of(mixed(SIZE), tokens=prompt_tokens, samplings=[own] * SIZE)
    args = {"max_num_seqs": BATCH, "max_model_len": 4096}
    order = make_order(OrderSpec(method="label"), prompts, "md5")
    made = make_job(tmp_path, sampling=job, engine={"args": args}, order={"method": "label"})
    refusal = structural_refusal(made, MOE, prompts, order, None)
    assert (refusal is not None and "prefill" in refusal) == refused


@pytest.mark.parametrize(("cache", "refused"), [({"enable_prefix_caching": False}, True), ({}, False)])
def test_samples_of_a_prompt_are_no_decoding_for_nothing_where_each_reads_it(
    tmp_path: Path, cache: dict[str, Any], refused: bool
) -> None:
    """4,000 tokens for 8, and 16 times both: one reading for 128 tokens only where a prefix cache may help."""
    prompts = prompts_of(mixed(SIZE), tokens=4000)
    args = {"max_num_seqs": BATCH, "max_model_len": 8192, **cache}
    order = make_order(OrderSpec(method="label"), prompts, "md5")
    made = make_job(tmp_path, sampling={"max_tokens": 8, "n": 16}, engine={"args": args}, order={"method": "label"})
    refusal = structural_refusal(made, MOE, prompts, order, None)
    assert (refusal is not None and "64000 prompt tokens for at most 128 generated" in refusal) == refused


# -- samples -----------------------------------------------------------------------------------------------------------


def test_a_sample_is_evenly_spread_runs_of_neighbours_in_the_candidates_order(tmp_path: Path) -> None:
    permutation = np.random.default_rng(1).permutation(1000)
    picked = measured_prompts(permutation, 128, 4)
    assert np.array_equal(picked, np.sort(picked))
    assert len(set(picked.tolist())) == 128
    places = np.sort(np.argsort(permutation)[picked])  # in the candidate's order
    starts = places[np.flatnonzero(np.diff(places, prepend=-2) != 1)]
    assert len(starts) == 4, "runs of eight batches of four"
    assert set(np.diff(starts)) == {250}


def test_without_a_number_or_with_enough_all_prompts_are_measured() -> None:
    for wanted in (None, 10, 11):
        assert measured_prompts(np.arange(10)[::-1], wanted, 2).tolist() == list(range(10))


def test_a_plan_of_a_sample_registers_it_and_keeps_the_whole_order_for_the_promotion(tmp_path: Path) -> None:
    plan = planned(tmp_path, measure={"prompts": 128})
    candidate, now = plan.orders[CANDIDATE], registered(plan)
    assert candidate is not None
    assert (len(plan.chosen), len(candidate), len(plan.prompts)) == (SIZE, 128, 128)
    assert (now.prompts_total, now.prompts_measured) == (SIZE, 128)
    whole = prompts_of(mixed(SIZE)).ids
    sampled = [whole[i] for i in plan.chosen.permutation if whole[i] in set(plan.prompts.ids)]
    assert candidate.apply(plan.prompts.ids) == sampled


# -- what is registered ------------------------------------------------------------------------------------------------


def test_the_hash_of_the_measured_prompts_does_not_depend_on_the_files_order(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    turned = replace(plan, prompts=plan.prompts.take(np.arange(SIZE)[::-1]))
    assert registered(plan).measured_sha256 == registered(turned).measured_sha256
    fewer = planned(tmp_path, labels=mixed(SIZE - 1))
    assert registered(plan).measured_sha256 != registered(fewer).measured_sha256


def test_a_secret_of_the_environment_is_not_registered(tmp_path: Path) -> None:
    engine = {"args": {"max_num_seqs": BATCH}, "env": {"HF_TOKEN": "hf_abc", "OMP_NUM_THREADS": 2}}
    env = registered(planned(tmp_path, engine=engine)).engine["env"]
    assert env["OMP_NUM_THREADS"] == "2"
    assert HIDDEN.fullmatch(env["HF_TOKEN"])


def test_a_secret_of_the_command_is_not_registered(tmp_path: Path) -> None:
    command = ["docker", "run", "-e", "HF_TOKEN=hf_abc", "--env=AWS_SECRET_ACCESS_KEY=abc", "-e", "A=1", "python3"]
    engine = {"args": {"max_num_seqs": BATCH}, "command": command}
    told = ["docker", "run", "-e", "HF_TOKEN=", "--env=AWS_SECRET_ACCESS_KEY=", "-e", "A=1", "python3"]
    assert [HIDDEN.sub("", word) for word in registered(planned(tmp_path, engine=engine)).engine["command"]] == told


def test_what_was_foretold_is_registered_and_may_refuse(tmp_path: Path) -> None:
    much, little = (
        PredictedGain(gain=0.2, low=0.1, high=0.3),
        PredictedGain(gain=0.0, low=-0.01, high=0.01),
    )
    assert registered(planned(tmp_path, predicted=much)).predicted == much
    assert planned(tmp_path, predicted=much).refusal is None
    assert "surely below the minimum effect of 3%" in (planned(tmp_path, predicted=little).refusal or "")
    assert planned(tmp_path, predicted=little, aa=True).refusal is None
