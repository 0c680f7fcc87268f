"""A capture writes the whole file or leaves it as it was, and records what is missing. The engine is scripted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orderproof.capture.capture import Captured, Sample, capture, check_moe, check_no_adapters
from orderproof.capture.report import RoutingReport, lines, write_report
from orderproof.capture.sample import groups_of
from orderproof.capture.statistics import routing_table
from orderproof.engines.protocol import Completion, EngineError, EngineInfo, Failure, Output, Request
from orderproof.engines.routing_engine import Routed
from orderproof.job.model import ModelFacts, MoeFacts
from orderproof.job.spec import EngineSpec, Job, OrderSpec
from orderproof.routing.errors import RoutingError
from orderproof.routing.routes import Routes, open_routes, text_digest
from tests.support.fake_engine import mixed, prompts_of

LAYERS, EXPERTS, TOP_K, PROMPT, GENERATED = 2, 16, 4, 20, 6
MODEL = ModelFacts("models/m", "5f0c2a9e", "Qwen3MoeForCausalLM", 512, MoeFacts(EXPERTS, TOP_K, LAYERS, 1), toy=True)
MD5 = "d41d8cd98f00b204e9800998ecf8427e"


class ScriptedEngine:
    """Gives every request random experts, except those to refuse, to lose, to leave unanswered or to die at."""

    def __init__(self, refuse: int = -1, lose: int = -1, die: int = -1, silent: int = -1, layers: int = LAYERS) -> None:
        self.refuse, self.lose, self.die, self.silent, self.layers = refuse, lose, die, silent, layers
        self.samplings: list[dict[str, Any]] = []
        self.info = EngineInfo(1.0, {"vllm": "0"}, {"device_type": "cpu"}, {"max_num_seqs": 8, "mode": "eager"})

    def capture(
        self,
        requests: Iterable[Request],
        sampling: Mapping[str, Any],
        sink: Callable[[Output | Failure], None],
        take: Callable[[Routed], None],
    ) -> Any:
        requests = list(requests)
        self.samplings = [{**sampling, **(request.sampling or {})} for request in requests]
        random = np.random.default_rng(0)
        for request in requests:
            if request.number == self.die:
                raise EngineError("the engine's process was killed by SIGKILL")
            if request.number == self.refuse:
                sink(Failure(request.number, "too long"))
                continue
            if request.number == self.silent:
                continue
            keys = random.random((PROMPT + GENERATED - 1, self.layers, EXPERTS))
            experts = np.argsort(keys)[..., :TOP_K].astype(np.uint8)
            lost = request.number == self.lose
            take(Routed(request.number, None if lost else experts, "it was preempted" if lost else ""))
            sink(Output(request.number, (Completion([1] * GENERATED, "text", "length"),), 0, 0.0, 0.0))

        class Done:
            wall_s = 2.0

        return Done()


@pytest.fixture
def job(tmp_path: Path) -> Job:
    spec = EngineSpec(args={"max_num_seqs": 8})
    sampling = {"temperature": 0, "n": 4}
    return Job(name="it", root=tmp_path, prompts="p.jsonl", model="m", engine=spec, sampling=sampling)


def sample(size: int = 30) -> Sample:
    return Sample(prompts_of(mixed(size)), 2 * size, 0, MD5)


def captured(job: Job, **script: int) -> Captured:
    engine: Any = ScriptedEngine(**script)
    return capture(job, MODEL, sample(), engine)


def test_every_sampled_prompt_has_its_routes_under_its_id(job: Job) -> None:
    done = captured(job)
    assert (done.captured, done.sampled, done.prompts_total) == (30, 30, 60)
    assert (done.prefill_tokens, done.decode_tokens) == (30 * PROMPT, 30 * (GENERATED - 1))
    with open_routes(job.paths.routes, MODEL, MD5) as routes:
        assert sorted(routes.ids) == sorted(sample().prompts.ids)
        assert routes.record.versions["vllm"] == "0"
        assert routes.record.capture["sampled"] == 30
        prompts = sample().prompts
        assert routes.record.texts == {name: text_digest(prompts.texts(k)) for k, name in enumerate(prompts.ids)}


def test_a_refused_a_lost_and_a_silent_request_are_missing_with_their_reasons(job: Job) -> None:
    done = captured(job, refuse=3, lose=5, silent=7)
    ids = sample().prompts.ids
    assert done.missing == {ids[3]: "too long", ids[5]: "it was preempted", ids[7]: "the engine gave no answer"}
    routes = Routes(done.path)
    assert routes.record.missing == done.missing
    assert not set(done.missing) & set(routes.ids)
    assert done.captured == len(routes) == 27


def test_one_output_is_generated_for_a_prompt_that_gets_several(job: Job) -> None:
    engine: Any = ScriptedEngine()
    own = [{"n": 3, "top_p": 0.5}, None, {"top_p": 0.5}]
    prompts = prompts_of(["code", "law", "maths"], samplings=own)
    capture(job, MODEL, Sample(prompts, 3, 0, MD5), engine)
    plain = {"temperature": 0, "n": 1}
    assert engine.samplings == [{**plain, "top_p": 0.5}, plain, {**plain, "top_p": 0.5}]


def test_an_engine_that_dies_midway_leaves_the_last_routes_as_they_were(job: Job) -> None:
    captured(job)
    before = job.paths.routes.read_bytes()
    with pytest.raises(EngineError, match="SIGKILL"):
        captured(job, die=12)
    assert job.paths.routes.read_bytes() == before
    assert [path.name for path in job.data_dir.iterdir()] == ["routes.parquet"], "and nothing beside them"


def test_a_first_capture_that_is_cut_off_leaves_no_routes(job: Job) -> None:
    with pytest.raises(EngineError):
        captured(job, die=12)
    with pytest.raises(RoutingError, match="orderproof capture"):
        open_routes(job.paths.routes, MODEL, MD5)


def test_a_file_that_was_cut_off_is_refused(job: Job) -> None:
    captured(job)
    content = job.paths.routes.read_bytes()
    job.paths.routes.write_bytes(content[: len(content) // 2])
    with pytest.raises(RoutingError, match=r"routes\.parquet cannot be read"):
        open_routes(job.paths.routes, MODEL, MD5)


def test_an_engine_whose_layers_are_not_the_models_is_refused(job: Job) -> None:
    with pytest.raises(RoutingError, match="2 layers"):
        captured(job, layers=3)


def test_a_capture_without_a_single_route_is_an_error_with_its_reason(job: Job) -> None:
    engine: Any = ScriptedEngine(lose=0)
    only = Sample(sample().prompts.take(np.arange(1)), 60, 0, MD5)
    with pytest.raises(RoutingError, match="preempted"):
        capture(job, MODEL, only, engine)


def test_a_dense_model_has_nothing_to_capture() -> None:
    with pytest.raises(RoutingError, match="dense"):
        check_moe(ModelFacts("models/d", "1", "Qwen3ForCausalLM", 512, None, toy=False))


def test_adapters_are_refused_rather_than_ignored(job: Job) -> None:
    check_no_adapters(job)
    engine = job.engine.model_copy(update={"lora_modules": {"law": "adapters/law"}})
    with pytest.raises(RoutingError, match=r"LoRA adapters \(law\).*a job of its own"):
        check_no_adapters(job.model_copy(update={"engine": engine}))


def test_the_report_is_lines_a_picture_and_a_file(job: Job, tmp_path: Path) -> None:
    done, prompts = captured(job, refuse=3), sample().prompts
    kind, groups = groups_of(prompts, OrderSpec())
    with Routes(done.path) as routes:
        table = routing_table(routes, dict(zip(prompts.ids, groups, strict=True)), kind, (LAYERS, EXPERTS, TOP_K))
    report = RoutingReport("it", done, table, toy=True, folder=tmp_path / "reports")
    write_report(report)
    assert (tmp_path / "reports" / "routing.png").read_bytes().startswith(b"\x89PNG")
    kept = json.loads((tmp_path / "reports" / "routing.json").read_text())
    assert kept["capture"]["captured"] == 29
    assert [row["batch"] for row in kept["table"]["touched"]] == [8, 16, 32, 64, 128]
    text = "\n".join(lines(report))
    assert "29 of 30" in text
    assert f"missing: {prompts.ids[3]}: too long" in text
    assert "batch    8" in text
    assert "batch   32" not in text, "so many were not captured"
