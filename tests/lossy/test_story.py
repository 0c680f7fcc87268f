"""A lossy comparison as a story: what is checked before anything is spent, and in which order its steps run."""

from __future__ import annotations

import contextlib
import datetime
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from orderproof.job.hashing import md5_of
from orderproof.job.params import load_job
from orderproof.job.spec import Job
from orderproof.lossy import story
from orderproof.lossy.routing import LossyError
from orderproof.lossy.story import Steps, compare_routings
from orderproof.prompts.tokenization import TokenizedPrompts
from orderproof.routing.errors import RoutingError
from orderproof.runs.inputs import Inputs
from orderproof.runs.run import Run
from orderproof.runs.run_store import read_runs
from tests.support.fake_engine import mixed, prompts_of
from tests.support.run_maker import make_run

MOE = {"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 64, "num_experts_per_tok": 4, "num_hidden_layers": 1}
DENSE = {"architectures": ["Qwen3ForCausalLM"]}


@dataclass
class Surroundings:
    """Steps of a comparison without tokenizer, order, engine or lock, and what happened in them."""

    happened: list[str] = field(default_factory=list)

    def steps(self, **changes: Any) -> Steps:
        fitted = Steps(validate=self.validate, choose_order=self.choose_order, accelerator=self.accelerator)
        return replace(fitted, **changes)

    def validate(self, job: Job) -> TokenizedPrompts:
        self.happened.append("validate")
        return prompts_of(mixed(48))

    def choose_order(self, job: Job, prompts: TokenizedPrompts, dataset_md5: str) -> Any:
        assert dataset_md5 == md5_of(job.prompts_path)
        self.happened.append("choose the order")

    @contextlib.contextmanager
    def accelerator(self) -> Iterator[None]:
        self.happened.append("accelerator")
        yield
        self.happened.append("released")

    @contextlib.contextmanager
    def start(self, job: Job) -> Iterator[Any]:
        self.happened.append("engine")
        yield None
        self.happened.append("ended")


@pytest.fixture
def surroundings(monkeypatch: pytest.MonkeyPatch) -> Surroundings:
    fitted = Surroundings()
    monkeypatch.setattr(story, "start_routing_engine", fitted.start)
    return fitted


@pytest.fixture
def job(tmp_path: Path) -> Job:
    write_model(tmp_path, MOE)
    (tmp_path / "p.jsonl").write_text('{"id": "p00000", "text": "x"}\n')
    job = {"prompts": "p.jsonl", "model": "m", "engine": {"args": {"max_num_seqs": 8}}}
    (tmp_path / "params.yaml").write_text(json.dumps({"defaults": {}, "jobs": {"it": job}}))
    return load_job(tmp_path / "params.yaml", "it")


def write_model(root: Path, config: dict[str, Any]) -> None:
    (root / "m").mkdir(exist_ok=True)
    (root / "m" / "config.json").write_text(json.dumps(config))


def test_the_steps_run_in_order_and_the_engine_only_while_the_accelerator_is_held(
    job: Job, surroundings: Surroundings
) -> None:
    def report(job: Job, compared: Any, inputs: Inputs, started: datetime.datetime, prefect_run: str | None) -> Run:
        surroundings.happened.append(f"report {compared} for {prefect_run}")
        assert inputs.dataset_md5(job) == md5_of(job.prompts_path)
        return make_run(verb="lossy")

    def compare(*given: Any) -> Any:
        surroundings.happened.append(f"compare k0 {given[-3]} in {given[-2]} blocks")
        return "arms"

    with_steps = surroundings.steps(compare=compare, report=report, prefect_run=lambda: "flow run")
    assert compare_routings(job, k0=3, blocks=7, run_with=with_steps).verb == "lossy"
    assert surroundings.happened == [
        "validate",
        "choose the order",
        "accelerator",
        "engine",
        "compare k0 3 in 7 blocks",
        "ended",
        "released",
        "report arms for flow run",
    ]


@pytest.mark.parametrize(("config", "k0", "match"), [(DENSE, 2, "dense"), (MOE, 4, "1 to 3"), (MOE, 0, "1 to 3")])
def test_a_routing_that_cannot_be_changed_so_is_refused_before_the_prompts_are_read(
    job: Job, surroundings: Surroundings, config: dict[str, Any], k0: int, match: str
) -> None:
    write_model(job.root, config)
    with pytest.raises(LossyError, match=match):
        compare_routings(job, k0=k0, run_with=surroundings.steps())
    assert surroundings.happened == []


def test_adapters_are_refused_before_the_prompts_are_read(job: Job, surroundings: Surroundings) -> None:
    (job.root / "law").mkdir()
    (job.root / "law" / "adapter_config.json").write_text("{}")
    engine = job.engine.model_copy(update={"lora_modules": {"law": "law"}})
    with pytest.raises(RoutingError, match="adapters"):
        compare_routings(job.model_copy(update={"engine": engine}), run_with=surroundings.steps())
    assert surroundings.happened == []


def test_a_comparison_that_fails_keeps_nothing(job: Job, surroundings: Surroundings) -> None:
    def compare(*_: Any) -> Any:
        raise LossyError("a request was refused")

    with pytest.raises(LossyError, match="a request was refused"):
        compare_routings(job, run_with=surroundings.steps(compare=compare))
    assert read_runs(job, "lossy") == []
