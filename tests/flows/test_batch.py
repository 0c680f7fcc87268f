"""The flow of a batch: what it starts for nothing it ends, and in which order it closes what it holds."""

from __future__ import annotations

import contextlib
import importlib
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from flows import batch as batch_flow
from flows.batch import USED_AFTERWARDS, generate_pending, run_batch
from orderproof.engines.protocol import EngineError
from orderproof.generate import generation, select_order
from orderproof.prompts.prompt import PromptError
from orderproof.prompts.request_defaults import RequestDefaults
from orderproof.prompts.source import PromptSource
from tests.support.batches import Bytes, generated_places, make_project


class Unusable(Bytes):
    """A tokenizer of whose file it shows only late that it is broken."""

    def __init__(self) -> None:
        self.others = psutil.Process().children()  # of other tests
        self.engines: list[psutil.Process] = []

    def load(self) -> None:
        self.engines = [child for child in psutil.Process().children() if child not in self.others]
        raise PromptError(Path("m"), "holds no usable tokenizer", "Fetch it again")


def test_an_engine_that_loads_for_nothing_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # the accelerator's lock file is not the machine's
    job, tokenizer = make_project(tmp_path / "p", 10), Unusable()
    wanted: Any = tokenizer
    with PromptSource(job.prompts_path, RequestDefaults(job)) as source:
        order, _ = select_order.select_order(job, source, lambda: wanted)
        batch = generation.begin(job, source, order, wanted)
        with batch.checkpoint, pytest.raises(PromptError, match="no usable tokenizer"):
            generate_pending(batch)
    assert tokenizer.engines, "the engine was not started before"
    assert not psutil.wait_procs(tokenizer.engines, 10)[1]
    assert not len(generated_places(job))


def test_the_checkpoint_is_closed_before_the_prompts_that_a_thread_may_still_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []

    def begun(*_: Any) -> tuple[Any, str]:
        held = {name: contextlib.ExitStack() for name in ("source", "checkpoint")}
        for name, stack in held.items():
            stack.callback(closed.append, name)
        return SimpleNamespace(**held), "why"

    def broken(*_: Any, **__: Any) -> None:
        raise EngineError("the engine died")

    make_project(tmp_path / "p", 3)
    for name, instead in (
        ("begin", begun),
        ("generate_pending", broken),
        ("end_server_with_this_process", closed.copy),
    ):
        monkeypatch.setattr(batch_flow, name, instead)
    with pytest.raises(EngineError, match="died"):
        run_batch.fn("it", params=str(tmp_path / "p" / "params.yaml"))
    assert closed == ["checkpoint", "source"]


@pytest.mark.parametrize("name", USED_AFTERWARDS)
def test_what_is_imported_early_is_there(name: str) -> None:
    importlib.import_module(name)
