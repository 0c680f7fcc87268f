"""What a comparison found: which arms its scores carry, in words, as a run, and found again."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from orderproof.job.spec import Job, MeasureSpec
from orderproof.lossy.comparison import compare_lossy
from orderproof.lossy.report import (
    LOSSY,
    SORTED_LOSSY,
    LossyReport,
    comparison_lines,
    find_report,
    lossy_run,
)
from orderproof.lossy.routing import LossyError
from orderproof.orders.registry import make_order
from orderproof.runs.page import run_page
from orderproof.runs.run import Run
from orderproof.runs.run_store import RECORD_FILE, RunError, run_folder, write_run
from tests.support.arm_engine import PROMPTS, SHUFFLED_FILE, ArmEngine, arm_job, compare_arms
from tests.support.fake_engine import MOE, mixed, prompts_of
from tests.support.html_reader import Reader

GROUPED = np.arange(PROMPTS)  # places in a file that is sorted by domain
DEALT_OUT = GROUPED.reshape(3, -1).T.ravel()
NOON = datetime.datetime(2026, 11, 29, 12, tzinfo=datetime.UTC)
HOUR = datetime.timedelta(hours=1)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return arm_job(tmp_path)


def write_report(job: Job, report: LossyReport, started: datetime.datetime = NOON) -> Run:
    """Keep a comparison that started then."""
    run = lossy_run(job, MOE, report, started)
    write_run(job, run)
    return run


# -- as a run ----------------------------------------------------------------------------------------------------------


def test_its_run_says_lossy_first_and_promotes_nothing(job: Job, tmp_path: Path) -> None:
    report = compare_arms(job, ArmEngine())
    run = write_report(job, report)
    written = run.as_json()
    assert (written["verb"], written["exit_code"], written["sentence"][:5]) == ("lossy", 0, "LOSSY")
    details, basis = written["details"], written["basis"]
    assert (details["lossy"], details["promotes"], details["k0"], basis["lossy_k0"]) == (True, False, 2, 2)
    assert basis["order"] == report.order.model_dump(mode="json")
    assert (basis["dataset_md5"], basis["model_fingerprint"], basis["toy"]) == ("md5", MOE.fingerprint, True)
    assert not job.data_dir.exists()
    text = Reader(run_page(run, tmp_path)).text
    assert text.index("LOSSY") < text.index("Figures")
    assert "k0 = 2" in text


def test_its_run_has_the_figures_of_every_arm(job: Job) -> None:
    report = compare_arms(job, ArmEngine())
    figures = lossy_run(job, MOE, report, NOON).as_json()["figures"]
    assert figures["throughput_req_s"] == report.throughput_req_s
    for arm in report.arms:
        name = arm.arm.replace(", ", "_")
        gains = [figures[f"gain_{name}{end}"] for end in ("", "_low", "_high")]
        assert gains == [arm.gain, arm.gain_low, arm.gain_high]
        assert figures[f"output_diff_rate_{name}"] == arm.outputs.d_ab


# -- found again -------------------------------------------------------------------------------------------------------


def test_the_comparison_of_a_k0_is_found_with_its_file(job: Job) -> None:
    report = compare_arms(job, ArmEngine())
    run = write_report(job, report)
    assert find_report(job, 2) == (report, run_folder(job, "lossy", run.id) / RECORD_FILE)


def test_without_one_of_this_k0_nothing_is_found(job: Job) -> None:
    assert find_report(job, 2) is None
    write_report(job, compare_arms(job, ArmEngine(), k0=3))
    assert find_report(job, 2) is None


def test_the_newest_one_of_a_k0_counts(job: Job) -> None:
    older, newer = compare_arms(job, ArmEngine()), compare_arms(job, ArmEngine(changed="right"))
    write_report(job, newer, NOON + HOUR)
    write_report(job, older, NOON)
    found = find_report(job, 2)
    assert found is not None
    assert found[0] == newer


def test_a_newer_one_of_another_k0_leaves_it(job: Job) -> None:
    report = compare_arms(job, ArmEngine())
    write_report(job, report)
    write_report(job, compare_arms(job, ArmEngine(), k0=3), NOON + HOUR)
    found = find_report(job, 2)
    assert found is not None
    assert found[0] == report


def test_a_record_without_a_comparison_is_named(job: Job) -> None:
    run = write_report(job, compare_arms(job, ArmEngine()))
    path = run_folder(job, "lossy", run.id) / RECORD_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | {"details": {"lossy": True, "k0": 2}}))
    with pytest.raises(LossyError, match=run.id):
        find_report(job, 2)
    path.write_text("{")
    with pytest.raises(RunError, match=run.id):
        find_report(job, 2)


# -- which arms its scores carry, in words -----------------------------------------------------------------------------


def test_the_words_begin_with_lossy(job: Job) -> None:
    assert comparison_lines(compare_arms(job, ArmEngine()))[0].startswith("LOSSY")


def test_the_words_end_with_how_to_accept_it_only_where_scores_carry_it(job: Job) -> None:
    worse, as_good = compare_arms(job, ArmEngine()), compare_arms(job, ArmEngine(changed="right"))
    assert not any("accept_lossy" in line for line in comparison_lines(worse))
    assert "accept_lossy: {k0: 2}` under jobs.it in params.yaml" in comparison_lines(as_good)[-1]
    assert "where no order is promoted and where this label order is promoted" in comparison_lines(as_good)[-1]
    assert not any("Not supported" in line for line in comparison_lines(as_good))
    unscored = compare_arms(job.model_copy(update={"measure": MeasureSpec()}), ArmEngine(changed="right"))
    assert not any("accept_lossy" in line for line in comparison_lines(unscored))


def test_without_references_the_words_say_that_nothing_was_scored(job: Job) -> None:
    prompts = prompts_of(mixed(PROMPTS))
    engine: Any = ArmEngine()
    report = compare_lossy(job, MOE, prompts, make_order(job.order, prompts, "md5"), engine, 2, 5)
    lines = comparison_lines(report)
    assert "not scored" in "\n".join(lines)
    assert "`reference`" in lines[-1]
    assert "measure.scorer" in lines[-1]


@pytest.mark.parametrize(
    ("prompts", "right", "why"),
    [
        (PROMPTS - 1, ("right", "-"), "fewer than 300"),
        (PROMPTS, ("right",), "every score is 1"),
        (PROMPTS, ("-",), "every score is 0"),
    ],
)
def test_scores_that_can_show_no_loss_carry_nothing_and_the_words_say_why(
    job: Job, prompts: int, right: tuple[str, ...], why: str
) -> None:
    report = compare_arms(job, ArmEngine(changed="right"), file=SHUFFLED_FILE[:prompts], right=right)
    scores = report.scores_of(LOSSY)
    assert scores is not None
    assert scores.passed, "of itself the bound is inside"
    assert not report.passed(LOSSY)
    assert not report.passed(SORTED_LOSSY)
    assert why in comparison_lines(report)[-1]
    assert not any("accept_lossy" in line for line in comparison_lines(report))


def test_a_margin_is_compared_with_the_figures_whatever_the_file_concludes(job: Job) -> None:
    report = compare_arms(job, ArmEngine())
    edited = report.model_dump()
    for arm in edited["arms"]:
        arm["outputs"]["scores"]["passed"] = True
    assert not LossyReport.model_validate(edited).passed(LOSSY)


@pytest.mark.parametrize("file", [GROUPED, DEALT_OUT], ids=["grouped", "dealt out"])
def test_the_shuffled_arm_does_not_stand_for_a_file_that_is_no_shuffle(job: Job, file: NDArray[np.int64]) -> None:
    report = compare_arms(job, ArmEngine(changed="right"), file=file)
    assert not report.file_like_shuffle
    assert not report.passed(LOSSY)
    assert report.passed(SORTED_LOSSY)
    *_, why, accept = comparison_lines(report)
    assert "no order is promoted" in why
    assert "not like a shuffle" in why
    assert "where this label order is promoted" in accept
    assert "no order is promoted" not in accept
