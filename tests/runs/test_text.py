"""A run for a person: the answer first, the next command last, and no line for what is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from orderproof.job.spec import Job
from orderproof.runs.text import markdown, page_uri, terminal_lines
from tests.support.run_maker import make_job_run
from tests.support.trial_maker import make_job


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return make_job(tmp_path)


def test_the_answer_comes_first_and_the_next_command_last(job: Job) -> None:
    run = make_job_run(
        job,
        reason="The reason.",
        lines=("a line",),
        files={"page": "reports/p.html", "picture": "reports/p.png", "outputs": "data/o.parquet"},
        mlflow_run="run-1",
        notes=("a note",),
        next_command="orderproof status",
    )
    lines = terminal_lines(job, run)
    assert lines[:3] == [run.sentence, "The reason.", "a line"]
    assert lines[-1] == "next: orderproof status"
    assert lines[-2] == "note: a note"
    assert f"page: {job.root / 'reports/p.html'}" in lines
    assert f"outputs: {job.root / 'data/o.parquet'}" in lines
    assert sum("run-1" in line for line in lines) == 1
    assert not any("p.png" in line for line in lines), "the page holds the pictures"


def test_what_is_not_there_has_no_line(job: Job) -> None:
    assert terminal_lines(job, make_job_run(job)) == [make_job_run(job).sentence]


def test_prefect_gets_every_known_figure_and_the_notes(job: Job) -> None:
    text = markdown(job, make_job_run(job, notes=("a note",), mlflow_run="run-1"))
    assert text.startswith(f"# {make_job_run(job).sentence}\n")
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert rows == [
        "| figure | value |",
        "| gain | 0.06 |",
        "| gain_low | 0.05 |",
        "| gain_high | 0.07 |",
        "| wall_s | 600 |",
    ]
    assert "- a note" in text
    assert "run-1" in text


def test_a_page_has_an_address_for_a_browser(job: Job) -> None:
    assert page_uri(job, make_job_run(job)) is None
    address = page_uri(job, make_job_run(job, files={"page": "reports/a page.html"}))
    assert address == f"file://{job.root.resolve()}/reports/a%20page.html"
