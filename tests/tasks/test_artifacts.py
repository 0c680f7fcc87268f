"""Artifacts have keys that Prefect takes, and an artifact that it does not take stops no work."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from orderproof.job.spec import Job
from orderproof.runs.text import markdown, page_uri
from tasks import artifacts
from tasks.artifacts import artifact_key, best_effort, prefect_run, publish_run
from tests.support.run_maker import make_job_run
from tests.support.trial_maker import make_job


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return make_job(tmp_path)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """(key, content) of every artifact; Prefect takes them all."""
    held: list[tuple[str, str]] = []
    for kind in ("markdown", "link"):
        monkeypatch.setattr(artifacts, f"create_{kind}_artifact", lambda content, key, **_: held.append((key, content)))
    return held


@pytest.mark.parametrize("job", ["six-domains", "my_job", "a"])
@pytest.mark.parametrize("kind", ["measure", "aa", "generate-page"])
def test_every_job_has_keys_that_prefect_takes(job: str, kind: str) -> None:
    assert re.fullmatch("[a-z0-9-]+", artifact_key(kind, job))


def test_a_run_is_shown_with_its_figures_and_the_link_to_its_page(job: Job, taken: list[tuple[str, str]]) -> None:
    run = make_job_run(job, files={"page": "reports/page.html"})
    assert publish_run(job, run) == run
    uri = page_uri(job, run)
    assert taken == [("generate-six-domains", markdown(job, run)), ("generate-page-six-domains", uri)]


def test_an_aa_test_has_keys_of_its_own(job: Job, taken: list[tuple[str, str]]) -> None:
    for verb in ("measure", "aa"):
        publish_run(job, make_job_run(job, verb=verb))
    assert len({key for key, _ in taken}) == 2


def test_a_run_without_a_page_has_no_link(job: Job, taken: list[tuple[str, str]]) -> None:
    publish_run(job, make_job_run(job))
    assert [key for key, _ in taken] == ["generate-six-domains"]


def test_a_prefect_that_takes_nothing_does_not_lose_the_run(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def gone(*_: Any, **__: Any) -> None:
        raise httpx.ConnectError("all connection attempts failed")

    for kind in ("markdown", "link"):
        monkeypatch.setattr(artifacts, f"create_{kind}_artifact", gone)
    run = make_job_run(job, files={"page": "reports/page.html"})
    assert publish_run(job, run) == run
    assert len(caplog.records) == 2
    assert all("ConnectError" in record.getMessage() for record in caplog.records)


def test_an_artifact_that_prefect_does_not_take_is_named_and_the_work_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING), best_effort("the block's table"):
        raise httpx.ConnectError("all connection attempts failed")
    assert "the block's table: ConnectError: all connection attempts failed" in caplog.text


def test_an_interruption_is_no_failed_artifact() -> None:
    with pytest.raises(KeyboardInterrupt), best_effort("the block's table"):
        raise KeyboardInterrupt


def test_outside_of_a_flow_there_is_no_prefect_run() -> None:
    assert prefect_run() is None
