"""The verdict's page says what was found, and loads and runs nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orderproof.job.spec import Job
from orderproof.measure.evaluate import judge
from orderproof.measure.page import headline, savings, verdict_page
from orderproof.measure.pictures import draw
from orderproof.measure.trial_store import Trial
from orderproof.measure.verdict import Rule, Verdict, reach_verdict, refused
from tests.support.html_reader import Reader
from tests.support.trial_maker import make_job, make_trial, trial_folder


def read(job: Job, trial: Trial, verdict: Verdict | None) -> Reader:
    return Reader(verdict_page(job, trial, verdict, trial.folder))


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return make_job(tmp_path)


@pytest.fixture
def folder(job: Job) -> Path:
    return trial_folder(job)


def test_the_page_loads_nothing_from_elsewhere_and_runs_nothing(job: Job, folder: Path) -> None:
    trial = make_trial(folder)
    verdict = judge(trial)
    draw(trial, verdict, folder)
    page = read(job, trial, verdict)
    assert len(page.loaded) == page.tags.count("img") == 4
    assert all(address.startswith("data:image/png;base64,") for address in page.loaded)
    assert not {"script", "link", "iframe"} & set(page.tags)
    assert "@import" not in verdict_page(job, trial, verdict, folder)


def test_a_promotion_is_one_sentence_with_its_interval(job: Job, folder: Path) -> None:
    trial = make_trial(folder, gain=0.2)
    verdict = judge(trial)
    assert verdict is not None
    page = read(job, trial, verdict)
    assert f"it gains {100 * verdict.gain:.1f} % ({100 * verdict.gain_low:+.1f} % to" in page.text
    assert verdict.reason in page.text
    for command in (f"orderproof decide six-domains --trial {folder.name}", "orderproof measure six-domains"):
        assert command in page.text


@pytest.mark.parametrize(
    ("made", "verdict", "said"),
    [
        ({"blocks": 0}, refused("a dense model"), "Refused before it cost anything"),
        ({"blocks": 2}, None, "2 of the 5 blocks before the first look are done"),
        ({"blocks": 0}, None, "Not finished"),
        (
            {"blocks": 1},
            reach_verdict(None, Rule(), None, invalid="block 1 stayed incomplete"),
            "Block 1 stayed incomplete",
        ),
        (
            {"blocks": 5},
            reach_verdict(None, Rule(), None, invalid="zero times"),
            "Invalid: these passes cannot carry a verdict",
        ),
    ],
)
def test_a_trial_without_a_gain_has_its_page(
    job: Job, folder: Path, made: dict[str, Any], verdict: Verdict | None, said: str
) -> None:
    page = read(job, make_trial(folder, **made), verdict)
    assert said in page.text
    assert "What it is worth" not in page.text


def test_every_verdict_has_a_headline_that_names_it(folder: Path) -> None:
    plan = make_trial(folder, blocks=0).manifest
    said = {
        name: headline(
            plan, Verdict(verdict=name, reason="", exit_code=0, blocks=5, gain=0.02, gain_low=0, gain_high=0.04)
        )
        for name in ("promote", "keep", "inconclusive", "refused", "invalid")
    }
    first_words = [sentence.split()[0] for sentence in said.values()]
    assert first_words == ["Send", "Keep", "Not", "Refused", "Invalid:"]


def test_a_toy_model_and_an_aa_test_say_so(job: Job, folder: Path) -> None:
    toy = read(job, make_trial(folder, aa=True), None).text
    assert "Toy model" in toy
    assert "A/A test. The candidate is another shuffle" in toy
    assert "--aa" in toy
    own = read(job, make_trial(folder.with_name("own"), model={"path": "models/mine", "fingerprint": "1"}), None).text
    assert "Toy model" not in own
    assert "A/A test" not in own


def test_the_saving_is_the_gain_applied_to_all_prompts_of_the_job(tmp_path: Path) -> None:
    job = make_job(tmp_path, reporting={"price_per_hour": 7.2, "runs_per_month": 10, "currency": "EUR"})
    trial = make_trial(trial_folder(job, "t"), gain=0.25, noise=0.002, prompts_total=12_000, prompts_measured=48)
    verdict = judge(trial)
    worth = savings(job, trial, verdict)
    assert worth is not None
    assert worth.control_s == pytest.approx(12_000 / 12, rel=0.01)  # the maker's control runs at 12 requests a second
    assert worth.saved_s == pytest.approx(worth.control_s * 0.2, rel=0.03)  # a quarter faster is a fifth less time
    assert worth.saved_low_s < worth.saved_s < worth.saved_high_s
    assert worth.money(worth.control_s) == pytest.approx(0.002 * worth.control_s)
    page = read(job, trial, verdict).text
    assert f"{worth.money(10 * worth.saved_s):.2f} EUR" in page
    assert "11,952 of the job's 12,000 prompts" in page


def test_without_a_price_no_money_is_named(job: Job, folder: Path) -> None:
    trial = make_trial(folder)
    page = read(job, trial, judge(trial)).text
    assert "time per run of the job" in page
    assert "reporting.six-domains.price_per_hour" in page
    assert "USD" not in page


def test_outputs_are_shown_against_the_floor_with_one_of_three_answers(job: Job, folder: Path) -> None:
    trial = make_trial(folder, third_arm=True, references=True)
    verdict = judge(trial)
    assert verdict is not None
    assert verdict.outputs is not None
    page = read(job, trial, verdict).text
    assert f"shuffled with shuffled, the floor (D_AA) {100 * verdict.outputs.d_aa:.1f} %" in page
    assert f"✓ {verdict.outputs.answer.replace('_', ' ')}" in page
    assert page.count("✓") == 1
    assert "Scored against references (48 prompts)" in page


def test_where_outputs_first_part_is_told_per_kind_of_pair(job: Job, folder: Path) -> None:
    trial = make_trial(folder)
    verdict = judge(trial)
    assert verdict is not None
    assert verdict.outputs is not None
    found = {"pairs": 4, "diverged": 9, "share_within_8": 0.25, "q25": 8, "median": 11.5, "q75": 13}
    none = {"pairs": 5, "diverged": 0, "share_within_8": None, "q25": None, "median": None, "q75": None}
    outputs = verdict.outputs.model_copy(update={"first_divergence": {"aa": found, "ab": none}})
    page = read(job, trial, verdict.model_copy(update={"outputs": outputs})).text
    assert "control with control 4 9 25 % 8 11.5 13" in page
    assert "control with candidate 5 0 – – – –" in page


def test_generated_text_appears_only_where_the_job_allows_it(tmp_path: Path) -> None:
    closed, open_ = make_job(tmp_path), make_job(tmp_path, reporting={"log_text": True})
    trial = make_trial(trial_folder(closed, "t"), shuffle_disagreement=0.3)
    words = trial.tokens("b01-control", ["text"])["text"].to_pylist()
    texts = [read(job, trial, judge(trial)).text for job in (closed, open_)]
    assert not any(word in texts[0] for word in words)
    assert any(word in texts[1] for word in words)


def test_markup_in_what_the_user_wrote_stays_text(tmp_path: Path) -> None:
    job = make_job(tmp_path, prompts="data/<script>alert(1)</script>.jsonl")
    trial = make_trial(trial_folder(job, "t"), blocks=0, sampling={"stop": "</table><img src=x>"})
    page = read(job, trial, refused("<b>bold</b>"))
    assert not {"script", "img", "b"} & set(page.tags)
    assert "</table><img src=x>" in page.text


def test_repeated_slices_stand_with_their_reasons_and_every_block_and_arm_is_listed(job: Job, folder: Path) -> None:
    trial = make_trial(folder, repeated_block=4)
    page = read(job, trial, judge(trial)).text
    assert "2 requests failed" in page
    assert "4 candidate, stratum 2" in page
    assert all(f"{p.pass_id} " in page for p in trial.passes)
    assert "run again None." in read(job, make_trial(folder.with_name("quiet")), None).text


def test_the_page_says_where_the_gain_comes_from(job: Job, folder: Path) -> None:
    trial = make_trial(folder, gain=0.1)
    page = read(job, trial, judge(trial)).text
    for label in set(trial.manifest.slices.labels):
        assert f"{label} 5 +" in page
    for part in ("prefix reuse", "fuller batches", "faster steps", "preemptions"):
        assert part in page
    assert "Their true difference is zero" in page


def test_a_second_attempt_shows_what_alpha_is_left(job: Job, folder: Path) -> None:
    page = read(job, make_trial(folder, blocks=0, attempt=2, rule=Rule(alpha=0.0125)), None).text
    assert "attempt 2 of this question" in page
    assert "1.25 % one-sided" in page
    assert "α left for another attempt 0.625 %" in page
