"""A plan as text and as a document: the answer first, and all that it rests on."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from orderproof.forecast import candidates
from orderproof.forecast.page import PAGE_FILE, PICTURE_FILE, as_json, write_foresight
from orderproof.forecast.planning import Foresight, foresee
from orderproof.forecast.stored_prediction import read_stored_prediction
from orderproof.forecast.text import facts_said, lines, order_rows, worth_said
from orderproof.job.spec import Job, OrderSpec
from tests.measure.test_page import Reader
from tests.support.captured_job import calibrated, make_job, model_of

WAYS = [OrderSpec(method="file"), OrderSpec(method="label"), OrderSpec(method="greedy")]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Foresight]:
    job = make_job(tmp_path_factory.mktemp("plan"))
    calibrated(job)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(candidates, "_specs", lambda job, prompts: WAYS)
        return job, foresee(job)


def test_the_answer_comes_first_and_all_that_it_rests_on_after_it(seen: tuple[Job, Foresight]) -> None:
    _, foresight = seen
    first, reason, _, *rest = lines(foresight)
    said = "\n".join(rest)
    assert first == "it: MEASURE"
    assert "label, is predicted to gain +" in reason
    for fact in (
        "model      2 layers of 16 experts, top-2",
        "batch      8 sequences, 20 full ones",
        "order      today the file's own, which is like a shuffle",
        "1.00 ms at batch 8 + 100.0 ± 2.0 µs per expert, 2.0 times what reading its bytes takes",
        "from the routes of 160 prompts, against shuffled and today's order (the file's own):",
        "greedy by the real routes",
        "greedy by embedding          not possible: the method `greedy` adds up experts",
        "looks at 5, 10 blocks",
        'next       jobs.it.order: {"method": "label"} in params.yaml, then `orderproof measure it`',
    ):
        assert fact in said
    assert re.search(r"^  label +-\d+\.\d% +-\d+\.\d%   \+\d+\.\d% \(\+\d+\.\d% to \+\d+\.\d%\)", said, re.MULTILINE)
    assert "the trial is paid back after" in said


def test_a_refused_job_has_no_next_step(seen: tuple[Job, Foresight]) -> None:
    _, foresight = seen
    advice = replace(foresight.advice, answer="don't", reason="it is dense", candidate=None)
    model, facts = replace(foresight.model, moe=None, toy=True), replace(foresight.facts, moe=None)
    dense = replace(foresight, advice=advice, model=model, facts=facts, forecast=None, worth=None)
    first, reason, *rest = lines(dense)
    assert first.startswith("it: DON'T  [toy model")
    assert reason == "  it is dense"
    assert "dense" in rest[1]
    assert not any("next" in line or "worth" in line for line in rest)


def test_that_a_trial_never_pays_is_said(seen: tuple[Job, Foresight]) -> None:
    _, foresight = seen
    assert foresight.worth is not None
    assert "is paid back after" in "\n".join(lines(foresight))
    said = "\n".join(lines(replace(foresight, worth=replace(foresight.worth, ordering_s=1e9))))
    assert "the trial is never paid back: ordering takes at least as long as it saves" in said
    assert "is paid back after" not in said


def test_a_plan_for_machines_has_a_stable_shape(seen: tuple[Job, Foresight]) -> None:
    told = json.loads(json.dumps(as_json(seen[1]), allow_nan=False))
    assert set(told) == {
        "schema", "job", "toy", "dataset_md5", "sampling", "left_out", "model", "facts", "looks", "detectable_gain",
        "advice", "order", "worth", "forecast",
    }  # fmt: skip
    assert (told["schema"], told["job"], told["order"]) == ("orderproof/plan/1", "it", {"method": "label"})
    assert told["advice"]["answer"] == "measure"
    assert [one["name"] for one in told["forecast"]["orders"]] == ["file", "label"]
    assert list(told["forecast"]["impossible"]) == ["greedy by embedding"]
    for one in told["forecast"]["orders"]:
        assert one["low"] <= one["gain"] <= one["high"]
        assert OrderSpec.model_validate(one["order"]) in WAYS
    assert 0 < told["worth"]["saved_low_s"] < told["worth"]["saved_s"] < told["worth"]["saved_high_s"]


def test_the_next_trial_reads_what_the_plan_foretold(seen: tuple[Job, Foresight]) -> None:
    job, foresight = seen
    folder = write_foresight(job, foresight)
    assert (folder / PICTURE_FILE).read_bytes().startswith(b"\x89PNG")
    assert foresight.candidate is not None
    _, predicted = foresight.candidate
    foretold = read_stored_prediction(job, model_of(job), foresight.dataset_md5)
    assert foretold is not None
    assert (foretold.gain, foretold.low, foretold.high) == (predicted.gain, predicted.low, predicted.high)
    unlike = job.model_copy(update={"order": OrderSpec(method="length")})
    assert read_stored_prediction(unlike, model_of(job), foresight.dataset_md5) is None


def test_the_page_says_what_the_terminal_says_and_loads_nothing(seen: tuple[Job, Foresight]) -> None:
    job, foresight = seen
    folder = write_foresight(job, foresight)
    page = Reader((folder / PAGE_FILE).read_text("utf-8"))
    assert all(source.startswith("data:image/png;base64,") for source in page.loaded)
    assert len(page.loaded) == 1
    assert "script" not in page.tags
    assert "Measure this order: label" in page.text
    assert foresight.forecast is not None
    said = [*facts_said(foresight), *worth_said(foresight), *order_rows(foresight.forecast), foresight.left_out]
    for cell in (cell for row in said for cell in row):
        assert cell in page.text
    assert "greedy by embedding is not possible: the method `greedy` adds up experts" in page.text


def test_a_page_without_predictions_keeps_no_picture_of_an_earlier_plan(seen: tuple[Job, Foresight]) -> None:
    job, foresight = seen
    write_foresight(job, foresight)
    advice = replace(foresight.advice, answer="don't", reason="it is dense", candidate=None)
    folder = write_foresight(job, replace(foresight, advice=advice, forecast=None, worth=None))
    page = Reader((folder / PAGE_FILE).read_text("utf-8"))
    assert not (folder / PICTURE_FILE).exists()
    assert page.loaded == []
    assert "Don't measure: no order is worth a trial here It is dense." in page.text
