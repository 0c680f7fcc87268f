"""An earlier trial of exactly what is planned answers it: one that was stopped always, a recorded one on request."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orderproof.measure import steps
from orderproof.measure.reusable_verdict import find_reusable_verdict
from orderproof.measure.steps import Outcome
from orderproof.measure.trial_store import Trial, write_verdict
from orderproof.runs.promotion import demote, read_promotion
from tests.support.measured_job import (
    FIRST,
    SECOND,
    MeasuredJob,
    make_measured_job,
    outcome_of,
    verdict_of,
    without_trackers,
)


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MeasuredJob:
    without_trackers(monkeypatch)
    return make_measured_job(tmp_path)


def finish(measured: MeasuredJob, trial: Trial) -> None:
    finish_outcome(measured, outcome_of(trial))


def finish_outcome(measured: MeasuredJob, outcome: Outcome) -> None:
    run = steps.report(measured.plan, outcome, None)
    steps.promote(measured.plan, run, outcome, measured.inputs, measured.plan.prompts)


def found(measured: MeasuredJob, *, only_if_changed: bool = False) -> Outcome | None:
    return find_reusable_verdict(measured.plan, only_if_changed=only_if_changed)


# -- verdicts that were reached and lost -------------------------------------------------------------------------------


def test_a_promotion_that_was_reached_and_lost_is_promoted_by_the_next_measurement(measured: MeasuredJob) -> None:
    steps.report(measured.plan, outcome_of(measured.trial()), None)  # and then the process was killed
    outcome = found(measured)
    assert outcome is not None
    assert (outcome.trial.manifest.trial, outcome.verdict.verdict, len(outcome.notes)) == (FIRST, "promote", 1)
    finish_outcome(measured, outcome)
    promotion = read_promotion(measured.job)
    assert promotion is not None
    assert (promotion.promoted, promotion.trial) == (True, FIRST)
    assert found(measured) is None, "now it is measured anew"


@pytest.mark.parametrize("gain", [0.06, -0.05])
def test_a_verdict_that_never_reached_its_file_is_not_measured_again(measured: MeasuredJob, gain: float) -> None:
    trial = measured.trial(gain=gain)
    outcome = found(measured)
    assert outcome is not None
    assert outcome.verdict == verdict_of(trial)
    finish(measured, trial)
    assert found(measured) is None


def test_a_keep_whose_order_was_never_written_is_not_measured_again(measured: MeasuredJob) -> None:
    trial = measured.trial(gain=-0.05)
    write_verdict(trial, verdict_of(trial))
    assert found(measured) is not None


def test_a_trial_without_a_verdict_is_measured_anew(measured: MeasuredJob) -> None:
    measured.trial(blocks=3)
    assert found(measured, only_if_changed=True) is None


def test_a_promotion_that_was_demoted_is_measured_anew(measured: MeasuredJob) -> None:
    finish(measured, measured.trial())
    demote(measured.job, measured.plan.prompts.ids, "a new model next week")
    assert found(measured) is None


# -- verdicts that stand -----------------------------------------------------------------------------------------------


def test_a_recorded_verdict_stands_where_nothing_changed_and_only_on_request(measured: MeasuredJob) -> None:
    finish(measured, measured.trial())
    outcome = found(measured, only_if_changed=True)
    assert outcome is not None
    assert f"trial {FIRST}" in outcome.notes[0]
    assert found(measured) is None


def test_other_settings_and_an_aa_test_never_reuse_a_verdict(measured: MeasuredJob) -> None:
    finish(measured, measured.trial())
    stricter = measured.plan.job.model_copy(update={"outputs": "proven"})
    for plan in (replace(measured.plan, job=stricter), replace(measured.plan, aa=True)):
        assert find_reusable_verdict(plan, only_if_changed=True) is None


def test_an_invalid_verdict_never_stands(measured: MeasuredJob) -> None:
    finish(measured, measured.trial())
    assert verdict_of(measured.trial(SECOND, noise=0.0, gain=0.0)).verdict == "invalid"
    assert found(measured, only_if_changed=True) is None


def test_a_trial_whose_outputs_are_lost_is_measured_anew(
    measured: MeasuredJob, caplog: pytest.LogCaptureFixture
) -> None:
    trial = measured.trial()
    for path in (trial.folder / "tokens").iterdir():
        path.unlink()
    assert found(measured, only_if_changed=True) is None
    assert FIRST in caplog.text
