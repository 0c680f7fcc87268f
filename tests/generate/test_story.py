"""A generation as a story: in which order it holds and releases things, and what a failure leaves behind."""

from __future__ import annotations

import contextlib
import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from orderproof.engines.protocol import EngineError
from orderproof.generate import steps, story
from orderproof.generate.checkpoint_folder import FOLDER
from orderproof.generate.delivery import Delivered, DeliveryError
from orderproof.generate.generation import Batch
from orderproof.generate.story import USED_AFTERWARDS, Steps
from orderproof.job.spec import Job
from orderproof.prompts.source import PromptError
from orderproof.prompts.stream import Stream
from orderproof.prompts.tokenization import Tokenizer
from orderproof.runs.inputs import Inputs
from orderproof.runs.run import Run
from orderproof.runs.run_store import newest_run
from tests.support.batches import GENERATE, generate, generated_places, make_project, output_ids
from tests.support.measured_job import without_trackers


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    without_trackers(monkeypatch)
    return make_project(tmp_path / "p", 12)


def test_the_steps_run_in_their_order_and_the_engine_alone_needs_the_accelerator(job: Job) -> None:
    happened: list[str] = []

    def logged(name: str) -> Any:
        def run(*given: Any) -> Any:
            happened.append(name)
            return getattr(steps, name)(*given)

        return run

    @contextlib.contextmanager
    def accelerator() -> Any:
        happened.append("accelerator")
        yield
        happened.append("released")

    names = ("validate", "choose_order", "generate", "restore", "report", "record")
    run = story.generate(job, run_with=Steps(**{name: logged(name) for name in names}, accelerator=accelerator))
    engine = ["accelerator", "generate", "released"]
    assert happened == ["validate", "choose_order", *engine, "restore", "report", "record"]
    assert (run.answer, run.verb, run.mlflow_run) == ("complete", "generate", "run-1")
    assert len(output_ids(job)) == 12
    assert (job.root / run.files["page"]).is_file()
    assert any("not recorded in DVC" in note for note in run.notes)


def test_a_run_is_on_record_before_anything_that_may_fail_afterwards(job: Job) -> None:
    def fails(*_: Any) -> Run:
        raise ZeroDivisionError("no room on the canvas")

    with pytest.raises(ZeroDivisionError):
        generate(job, run_with=Steps(report=fails, accelerator=contextlib.nullcontext))
    kept = newest_run(job, "generate")
    assert kept is not None
    assert (kept.answer, kept.figure("prompts")) == ("complete", 12)
    assert not (job.data_dir / FOLDER).exists()


def test_outputs_that_are_refused_leave_no_record_and_every_result(job: Job) -> None:
    def refuses(batch: Batch) -> Delivered:
        raise DeliveryError("the outputs are not valid")

    with pytest.raises(DeliveryError):
        generate(job, run_with=Steps(restore=refuses, accelerator=contextlib.nullcontext))
    assert newest_run(job, "generate") is None
    assert (job.data_dir / FOLDER).exists()
    sent = len(generated_places(job))
    assert generate(job).answer == "complete"
    assert len(generated_places(job)) == sent == 12, "nothing is sent again"


def test_a_stream_has_no_inputs_that_could_be_recorded(job: Job) -> None:
    recorded: list[Inputs | None] = []

    def record(job: Job, run: Run, inputs: Inputs | None) -> Run:
        recorded.append(inputs)
        return run

    how = Steps(report=GENERATE.report, record=record, accelerator=contextlib.nullcontext)
    generate(job, run_with=how)
    generate(job, stream=Stream(str(job.prompts_path), linger_s=0.2), run_with=how)
    (of_the_file, of_the_stream) = recorded
    assert of_the_file is not None
    assert list(of_the_file.files) == [job.prompts]
    assert of_the_stream is None


def test_an_engine_that_loads_for_nothing_is_ended(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    others, engines = psutil.Process().children(), []

    def broken(_: Tokenizer) -> None:
        engines.extend(child for child in psutil.Process().children() if child not in others)
        raise PromptError(Path("m"), "holds no usable tokenizer", "Fetch it again")

    monkeypatch.setattr(Tokenizer, "load", broken)
    with pytest.raises(PromptError, match="no usable tokenizer"):
        generate(job)
    assert engines, "the engine was not started before"
    assert not psutil.wait_procs(engines, 10)[1]
    assert not len(generated_places(job))


def test_the_checkpoint_is_closed_before_the_prompts_that_a_thread_may_still_read(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []

    def begun(*_: Any) -> tuple[Any, str]:
        held = {name: contextlib.ExitStack() for name in ("source", "checkpoint")}
        for name, stack in held.items():
            stack.callback(closed.append, name)
        return SimpleNamespace(**held), "why"

    def dies(*_: Any, **__: Any) -> None:
        raise EngineError("the engine died")

    monkeypatch.setattr(story, "open_batch", begun)
    monkeypatch.setattr(story, "generate_pending", dies)
    with pytest.raises(EngineError, match="died"):
        generate(job)
    assert closed == ["checkpoint", "source"]


@pytest.mark.parametrize("name", USED_AFTERWARDS)
def test_what_is_imported_early_is_there(name: str) -> None:
    importlib.import_module(name)
