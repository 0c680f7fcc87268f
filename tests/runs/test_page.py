"""The common page of a run holds its figures and pictures, and loads and runs nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from orderproof.job.spec import Job
from orderproof.runs.page import run_page
from tests.support.html_reader import Reader
from tests.support.run_maker import make_basis, make_job_run
from tests.support.trial_maker import make_job


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return make_job(tmp_path)


def test_the_page_holds_the_pictures_of_its_folder_and_loads_nothing(job: Job, tmp_path: Path) -> None:
    (tmp_path / "steps.png").write_bytes(b"png")
    page = Reader(run_page(make_job_run(job), tmp_path))
    assert page.loaded == ["data:image/png;base64,cG5n"]
    assert not {"script", "link", "iframe"} & set(page.tags)


def test_known_figures_stand_with_their_intervals_and_unknown_ones_are_left_out(job: Job, tmp_path: Path) -> None:
    text = Reader(run_page(make_job_run(job), tmp_path)).text
    assert "gain 0.0600 0.0500 0.0700" in text
    assert "wall_s 600.0" in text
    assert "saved_s" not in text


def test_the_page_says_what_the_run_rests_on(job: Job, tmp_path: Path) -> None:
    run = make_job_run(job, reason="The reason.", lines=("a line",), notes=("a note",))
    text = Reader(run_page(run, tmp_path)).text
    basis = run.basis
    for part in (
        run.sentence,
        run.id,
        "The reason.",
        "a line",
        "a note",
        basis.prompts,
        basis.model,
        "label",
        "0.32.0",
    ):
        assert part in text
    assert str(basis.dataset_md5) in text
    assert "Toy model" not in text
    assert "LOSSY" not in text


def test_a_toy_model_and_a_lossy_routing_say_so(job: Job, tmp_path: Path) -> None:
    text = Reader(run_page(make_job_run(job, basis=make_basis(job, toy=True, lossy_k0=2)), tmp_path)).text
    assert "Toy model" in text
    assert "LOSSY" in text
    assert "k0 = 2" in text


def test_a_run_without_an_order_or_a_known_dataset_has_its_page(job: Job, tmp_path: Path) -> None:
    run = make_job_run(job, basis=make_basis(job, order=None, dataset_md5=None, prompts_total=None), figures=())
    assert run.sentence in Reader(run_page(run, tmp_path)).text


def test_markup_in_what_the_user_wrote_stays_text(job: Job, tmp_path: Path) -> None:
    run = make_job_run(job, reason="<b>bold</b>", basis=make_basis(job, sampling={"stop": "</table><img src=x>"}))
    page = Reader(run_page(run, tmp_path))
    assert not {"img", "b"} & set(page.tags)
    assert "</table><img src=x>" in page.text
