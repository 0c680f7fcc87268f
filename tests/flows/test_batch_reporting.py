"""How far a batch is shows in each place at the rate that suits it, and no place holds up the batch."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from orderproof.flows import batch_reporting
from orderproof.flows.batch_reporting import BatchReporter
from orderproof.tasks.batch import generation, sending
from orderproof.tasks.batch.generation import Batch, Generated
from orderproof.tasks.batch.underway import told
from orderproof.tasks.prompts.source import PromptSource
from tests.e2e.batches import Bytes, make_project

PROMPTS = 40


@pytest.fixture
def batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Batch]:
    """A batch that nothing was sent of, and a Prefect that takes nothing."""

    def gone(*_: Any, **__: Any) -> None:
        raise httpx.ConnectError("all connection attempts failed")

    for name in ("create_progress_artifact", "update_progress_artifact", "create_markdown_artifact"):
        monkeypatch.setattr(batch_reporting, name, gone)
    job, tokenizer = make_project(tmp_path / "p", PROMPTS), Bytes()
    source = PromptSource(job.prompts_path)
    order, _ = sending.order_of(job, source, lambda: tokenizer)  # type: ignore[arg-type,return-value]
    made = generation.begin(job, source, order, tokenizer)  # type: ignore[arg-type]
    with made.checkpoint:
        yield made


def watched(batch: Batch) -> BatchReporter:
    """Every prompt is finished, one after the other."""
    with BatchReporter(batch, None) as reporter:
        for done in range(1, PROMPTS + 1):
            reporter.progress(done, PROMPTS, Generated(results=done))
    return reporter


def test_outside_of_a_terminal_there_are_plain_lines_at_their_rate(
    batch: Batch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    def lines() -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.INFO):
            watched(batch)
        return [one.getMessage() for one in caplog.records if " prompts; " in one.getMessage()]

    assert lines() == [], "a line for each prompt would drown the log"
    monkeypatch.setattr(batch_reporting, "LOG_EVERY_S", 0.0)
    every = lines()
    assert len(every) == PROMPTS
    assert every[9].startswith(f"10 of {PROMPTS} prompts; ")
    assert every[9].endswith(" min more")
    said = capfd.readouterr()
    assert "\x1b" not in said.out + said.err


def test_artifacts_that_prefect_does_not_take_are_left_out_and_told(
    batch: Batch, caplog: pytest.LogCaptureFixture
) -> None:
    reporter = watched(batch)
    assert reporter.artifact is None
    assert "Prefect did not take the progress artifact: ConnectError" in caplog.text


def test_how_far_it_is_lies_beside_the_results(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    before = datetime.datetime.now(datetime.UTC)
    with BatchReporter(batch, None):
        begun = told(batch.checkpoint.folder)
    assert begun is not None
    assert (begun.prompts, begun.done) == (PROMPTS, 0)
    assert datetime.datetime.fromisoformat(begun.told_utc) >= before
    monkeypatch.setattr(batch_reporting, "NOTE_EVERY_S", 0.0)
    watched(batch)
    now = told(batch.checkpoint.folder)
    assert now is not None
    assert (now.done, now.seconds_left) == (PROMPTS, 0.0)
