"""How far a batch is shows in each place at the rate that suits it, and no place holds up the batch."""

from __future__ import annotations

import datetime
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from flows import batch_reporting, reporting
from flows.batch_reporting import BatchReporter
from orderproof.generate import generation, select_order
from orderproof.generate.generation import Batch, Generated
from orderproof.generate.progress import read_progress
from orderproof.prompts.source import PromptSource
from tests.support.batches import Bytes, make_project

PROMPTS = 40


@pytest.fixture
def batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Batch]:
    """A batch that nothing was sent of, and a Prefect that takes nothing."""

    def gone(*_: Any, **__: Any) -> None:
        raise httpx.ConnectError("all connection attempts failed")

    monkeypatch.setattr(batch_reporting, "create_markdown_artifact", gone)
    for name in ("create_progress_artifact", "update_progress_artifact"):
        monkeypatch.setattr(reporting, name, gone)
    job, tokenizer = make_project(tmp_path / "p", PROMPTS), Bytes()
    source = PromptSource(job.prompts_path)
    order, _ = select_order.select_order(job, source, lambda: tokenizer)  # type: ignore[arg-type,return-value]
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


def test_the_artifact_ends_at_100_percent_also_where_the_server_is_slow_or_the_prompts_are_a_stream(
    batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[float] = []

    def slowly(_: UUID, percent: float) -> None:
        time.sleep(0.2)
        shown.append(percent)

    monkeypatch.setattr(reporting, "create_progress_artifact", lambda *_, **__: uuid4())
    monkeypatch.setattr(reporting, "update_progress_artifact", slowly)
    monkeypatch.setattr(batch_reporting, "ARTIFACT_EVERY_S", 0.0)
    watched(batch)
    assert shown[-1] == 100.0
    with BatchReporter(batch, None) as reporter:
        reporter.total = None
    assert shown[-1] == 100.0


def test_a_server_that_never_answers_does_not_hold_up_the_end(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()
    monkeypatch.setattr(reporting, "create_progress_artifact", lambda *_, **__: uuid4())
    monkeypatch.setattr(reporting, "update_progress_artifact", lambda *_: never.wait())
    monkeypatch.setattr(batch_reporting, "PATIENCE_S", 0.05)
    assert watched(batch).telling is not None
    never.set()


def test_how_far_it_is_lies_beside_the_results(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    before = datetime.datetime.now(datetime.UTC)
    with BatchReporter(batch, None):
        begun = read_progress(batch.checkpoint.folder)
    assert begun is not None
    assert (begun.prompts, begun.done) == (PROMPTS, 0)
    assert datetime.datetime.fromisoformat(begun.written_utc) >= before
    monkeypatch.setattr(batch_reporting, "NOTE_EVERY_S", 0.0)
    watched(batch)
    now = read_progress(batch.checkpoint.folder)
    assert now is not None
    assert (now.done, now.seconds_left) == (PROMPTS, 0.0)
