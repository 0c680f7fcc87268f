"""A verdict rests on what was registered: a record that departs from its plan carries none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orderproof.job.errors import OrderproofError
from orderproof.job.hashing import ids_sha256
from orderproof.measure.evaluate import is_vacuous, judge
from orderproof.measure.trial_store import EvidenceError, Pass, Trial
from orderproof.outputs.passes import CANDIDATE, CONTROL, SHUFFLED
from tests.support.trial_maker import make_trial


def changed(trial: Trial, pass_id: str, change: Callable[[Pass], dict[str, Any]]) -> Trial:
    """The trial with one pass's record altered."""
    passes = (p.model_copy(update=change(p)) if p.pass_id == pass_id else p for p in trial.passes)
    return replace(trial, passes=tuple(passes))


@pytest.mark.parametrize("third_arm", [False, True])
def test_a_trial_that_kept_its_plan_has_a_verdict_and_the_same_from_its_folder(tmp_path: Path, third_arm: bool) -> None:
    trial = make_trial(tmp_path / "trial", third_arm=third_arm, repeated_block=2)
    verdict = judge(trial)
    assert verdict is not None
    assert verdict.blocks == 5
    assert judge(Trial.read(trial.folder)) == verdict


def test_between_the_looks_there_is_none(tmp_path: Path) -> None:
    assert judge(make_trial(tmp_path / "trial", blocks=4)) is None


@pytest.mark.parametrize(
    ("third_arm", "pass_id", "change"),
    [
        (False, f"b03-{CANDIDATE}", lambda p: {"order_sha256": "0" * 64}),
        (False, f"b03-{CONTROL}", lambda p: {"order_sha256": "0" * 64}),
        (False, f"b03-{CONTROL}", lambda p: {"seed": p.seed + 1}),
        (False, f"b03-{CONTROL}", lambda p: {"seed": None}),
        (True, f"b03-{CONTROL}", lambda p: {"order_sha256": "0" * 64}),
        (True, f"b03-{SHUFFLED}", lambda p: {"seed": p.seed + 1}),
        (True, f"b03-{SHUFFLED}", lambda p: {"order_sha256": "0" * 64}),
        (True, f"b03-{CANDIDATE}", lambda p: {"order_sha256": "0" * 64}),
    ],
)
def test_a_pass_in_another_order_than_the_registered_one_is_no_evidence(
    tmp_path: Path, third_arm: bool, pass_id: str, change: Callable[[Pass], dict[str, Any]]
) -> None:
    trial = make_trial(tmp_path / "trial", third_arm=third_arm)
    with pytest.raises(EvidenceError, match=rf"pass {pass_id} was not sent in the order that was registered"):
        judge(changed(trial, pass_id, change))


@pytest.mark.parametrize(
    "change",
    [
        lambda p: {"throughput_req_s": p.throughput_req_s * 1.1},
        lambda p: {"throughput_req_s": p.throughput_req_s * (1 + 1e-15)},
        lambda p: {"throughput_tok_s": p.throughput_tok_s * 1.1},
        lambda p: {"wall_s": p.wall_s * 0.9},
        lambda p: {"wall_s": 0.0},
        lambda p: {"requests": p.requests + 1},
        lambda p: {"output_tokens": p.output_tokens + 1},
    ],
)
def test_a_rate_that_is_not_its_count_over_its_time_is_no_evidence(
    tmp_path: Path, change: Callable[[Pass], dict[str, Any]]
) -> None:
    trial = make_trial(tmp_path / "trial")
    with pytest.raises(EvidenceError, match="pass b02-candidate has rates that are not"):
        judge(changed(trial, "b02-candidate", change))


def test_discarded_passes_are_held_against_the_plan_too(tmp_path: Path) -> None:
    trial = make_trial(tmp_path / "trial", repeated_block=2)
    with pytest.raises(EvidenceError, match="b02-candidate was not sent"):
        judge(changed(trial, "b02-candidate", lambda p: {"order_sha256": "0" * 64}))


def test_a_pass_of_no_planned_arm_or_block_is_no_evidence(tmp_path: Path) -> None:
    trial = make_trial(tmp_path / "trial")
    for change in ({"block": 6, "arm": SHUFFLED}, {"block": 11}):
        with pytest.raises(EvidenceError, match="of no arm or no block of the plan"):
            judge(replace(trial, passes=(*trial.passes, trial.passes[-1].model_copy(update=change))))


def test_outputs_of_other_prompts_than_the_registered_ones_are_no_evidence(tmp_path: Path) -> None:
    others = ids_sha256(f"q{i:05d}" for i in range(48))
    with pytest.raises(EvidenceError, match="is not of the prompts that were registered"):
        judge(make_trial(tmp_path / "trial", measured_sha256=others))


def test_a_pass_of_fewer_prompts_than_the_others_is_no_evidence(tmp_path: Path) -> None:
    trial, fewer = make_trial(tmp_path / "trial"), make_trial(tmp_path / "fewer", prompts=47)
    tokens = Path("tokens") / "b05-candidate.parquet"
    (fewer.folder / tokens).rename(trial.folder / tokens)
    with pytest.raises(OrderproofError, match="b05-candidate"):
        judge(trial)


@pytest.mark.parametrize(
    ("sampling", "vacuous"),
    [
        ({}, True),
        ({"temperature": None}, True),
        ({"temperature": 1}, True),
        ({"temperature": 0.7}, False),
        ({"temperature": 0}, False),
        ({"temperature": 1, "seed": 3}, False),
    ],
)
def test_agreement_is_chance_at_temperature_1_without_a_seed(sampling: dict[str, Any], vacuous: bool) -> None:
    assert is_vacuous(sampling) == vacuous
