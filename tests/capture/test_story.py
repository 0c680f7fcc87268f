"""A capture as a story: what is checked before anything is spent, what runs on which engine, and what is kept."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orderproof.capture import story
from orderproof.capture.story import Steps, capture
from orderproof.engines.protocol import EngineError
from orderproof.job.params import load_job
from orderproof.job.spec import Job
from orderproof.prompts.tokenization import TokenizedPrompts
from orderproof.routing.errors import RoutingError
from orderproof.runs.run_store import newest_run, run_folder
from tests.support.capturing_engine import EXPERTS, LAYERS, TOP_K, CapturingEngine
from tests.support.fake_engine import mixed, prompts_of

CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": EXPERTS,
    "num_experts_per_tok": TOP_K,
    "num_hidden_layers": LAYERS,
}


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job whose MLflow is down."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "p.jsonl").write_text('{"id": "p00000", "text": "x"}\n')
    engine = {"args": {"max_num_seqs": 8}, "replicas": 2}
    job = {"prompts": "p.jsonl", "model": "m", "engine": engine, "order": {"method": "label"}}
    (tmp_path / "params.yaml").write_text(json.dumps({"defaults": {}, "jobs": {"it": job}}))
    return load_job(tmp_path / "params.yaml", "it")


@dataclass
class Surroundings:
    """Steps of a capture without tokenizer, engine or lock, and what happened in them."""

    engine: CapturingEngine = field(default_factory=CapturingEngine)
    happened: list[str] = field(default_factory=list)
    timed: list[Job] = field(default_factory=list)

    def steps(self) -> Steps:
        return Steps(
            validate=self.validate,
            learn=lambda *_: self.happened.append("learn"),
            calibrate=lambda *_: self.happened.append("calibrate"),
            accelerator=self.accelerator,
        )

    def validate(self, job: Job) -> TokenizedPrompts:
        self.happened.append("validate")
        return prompts_of(mixed(60))

    @contextlib.contextmanager
    def accelerator(self) -> Iterator[None]:
        self.happened.append("accelerator")
        yield
        self.happened.append("released")

    @contextlib.contextmanager
    def start(self, job: Job) -> Iterator[Any]:
        self.timed.append(job)
        yield None


@pytest.fixture
def surroundings(monkeypatch: pytest.MonkeyPatch) -> Surroundings:
    made = Surroundings()
    monkeypatch.setattr(story, "start_routing_engine", lambda job: made.engine)
    monkeypatch.setattr(story, "start_engine", made.start)
    return made


def test_a_capture_is_kept_with_its_page_and_picture(job: Job, surroundings: Surroundings) -> None:
    run = capture(job, prompts=20, run_with=surroundings.steps())
    folder = run_folder(job, "capture", run.id)
    assert {path.name for path in folder.iterdir()} == {"run.json", "routing.png", "page.html"}
    kept = newest_run(job, "capture")
    assert kept is not None
    assert (kept.id, kept.figure("captured"), kept.figure("sampled")) == (run.id, 20, 20)
    assert job.paths.routes.exists()
    assert any("orderproof log it" in note for note in run.notes), "MLflow was down"


def test_steps_are_timed_on_the_jobs_own_engine_and_one_replica_while_the_accelerator_is_held(
    job: Job, surroundings: Surroundings
) -> None:
    capture(job, prompts=20, run_with=surroundings.steps())
    assert surroundings.happened == ["validate", "accelerator", "learn", "calibrate", "released"]
    assert [timed.engine.replicas for timed in surroundings.timed] == [1]


def test_without_timing_the_jobs_own_engine_never_starts(job: Job, surroundings: Surroundings) -> None:
    capture(job, prompts=20, time_steps=False, run_with=surroundings.steps())
    assert surroundings.happened == ["validate", "accelerator", "learn", "released"]
    assert surroundings.timed == []


def test_a_dense_model_is_refused_before_the_prompts_are_read(job: Job, surroundings: Surroundings) -> None:
    (job.model_path / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"]}')
    with pytest.raises(RoutingError, match="dense"):
        capture(job, run_with=surroundings.steps())
    assert surroundings.happened == []


def test_an_engine_that_dies_leaves_no_record_and_no_routes(job: Job, surroundings: Surroundings) -> None:
    surroundings.engine = CapturingEngine(die=5)
    with pytest.raises(EngineError, match="SIGKILL"):
        capture(job, prompts=20, run_with=surroundings.steps())
    assert newest_run(job, "capture") is None
    assert not job.paths.routes.exists()
