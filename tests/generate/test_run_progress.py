"""How far a generation is shows in each place at the rate that suits it."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from orderproof.generate import generation, run_progress, select_order
from orderproof.generate.generation import Batch, Generated
from orderproof.generate.progress import read_progress
from orderproof.generate.run_progress import RunProgress
from orderproof.prompts.source import PromptSource
from orderproof.runs.run_store import new_id
from tests.support.batches import Bytes, make_project

PROMPTS = 40
STARTED = datetime.datetime(2026, 11, 29, 14, 46, 40, tzinfo=datetime.UTC)


class Bar:
    """Keeps what it is told."""

    def __init__(self, job: str, total: int | None, what: str) -> None:
        self.total, self.ended = total, False
        self.shown: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.ended = True

    def update(self, done: int, text: str | None = None, rate: str = "") -> None:
        self.shown.append(done)


@pytest.fixture
def batch(tmp_path: Path) -> Iterator[Batch]:
    """A batch of which nothing was sent."""
    job, tokenizer = make_project(tmp_path / "p", PROMPTS), Bytes()
    with PromptSource(job.prompts_path) as source:
        order, _ = select_order.select_order(job, source, lambda: tokenizer)  # type: ignore[arg-type,return-value]
        begun = generation.begin(job, source, order, tokenizer)  # type: ignore[arg-type]
        with begun.checkpoint:
            yield begun


def watched(batch: Batch) -> Bar:
    """Every prompt is finished, one after the other."""
    bars: list[Bar] = []

    def new_bar(*given: Any) -> Bar:
        bars.append(Bar(*given))
        return bars[-1]

    with RunProgress(batch, STARTED, new_bar, "flow-1", live=False) as progress:
        for done in range(1, PROMPTS + 1):
            progress.update(done, PROMPTS, Generated(results=done))
    return bars[0]


@pytest.fixture
def log_lines(batch: Batch, caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    def lines() -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.INFO):
            watched(batch)
        return [record.getMessage() for record in caplog.records if " prompts; " in record.getMessage()]

    return lines


def test_the_log_has_plain_lines_at_its_own_rate(
    log_lines: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert log_lines() == [], "a line for each prompt would drown the log"
    monkeypatch.setattr(run_progress, "LOG_EVERY_S", 0.0)
    every = log_lines()
    assert len(every) == PROMPTS
    assert every[9].startswith(f"10 of {PROMPTS} prompts; ")
    assert every[9].endswith(" min more")


def test_the_bar_knows_the_total_and_is_not_moved_for_every_prompt(
    batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    bar = watched(batch)
    assert (bar.total, bar.ended) == (PROMPTS, True)
    assert len(bar.shown) < PROMPTS
    monkeypatch.setattr(run_progress, "BAR_EVERY_S", 0.0)
    assert watched(batch).shown == list(range(PROMPTS + 1))


def test_the_progress_lies_beside_the_results(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    before = datetime.datetime.now(datetime.UTC)
    with RunProgress(batch, STARTED, Bar, "flow-1", live=False):
        begun = read_progress(batch.checkpoint.folder)
    assert begun is not None
    assert (begun.prompts, begun.done, begun.resumed, begun.seconds_left) == (PROMPTS, 0, 0, None)
    assert (begun.run, begun.prefect_run) == (new_id(STARTED), "flow-1")
    assert datetime.datetime.fromisoformat(begun.written_utc) >= before
    monkeypatch.setattr(run_progress, "FILE_EVERY_S", 0.0)
    watched(batch)
    now = read_progress(batch.checkpoint.folder)
    assert now is not None
    assert (now.done, now.seconds_left) == (PROMPTS, 0.0)
