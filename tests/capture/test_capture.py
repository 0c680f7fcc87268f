"""A capture writes the whole file or leaves it as it was, and records what is missing. The engine is scripted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orderproof.capture.capture import Sample, capture, check_moe, check_no_adapters
from orderproof.engines.protocol import EngineError
from orderproof.job.model import ModelFacts
from orderproof.job.spec import EngineSpec, Job
from orderproof.routing.errors import RoutingError
from orderproof.routing.routes import Routes, open_routes, text_digest
from tests.support.capturing_engine import (
    GENERATED_TOKENS,
    MD5,
    MODEL,
    PROMPT_TOKENS,
    CapturingEngine,
    capture_sample,
    make_sample,
)
from tests.support.fake_engine import prompts_of
from tests.support.trial_maker import logging_text


@pytest.fixture
def job(tmp_path: Path) -> Job:
    spec = EngineSpec(args={"max_num_seqs": 8})
    sampling = {"temperature": 0, "n": 4}
    return Job(name="it", root=tmp_path, prompts="p.jsonl", model="m", engine=spec, sampling=sampling)


def test_every_sampled_prompt_has_its_routes_under_its_id(job: Job) -> None:
    done = capture_sample(job)
    assert (done.captured, done.sampled, done.prompts_total) == (30, 30, 60)
    assert (done.prefill_tokens, done.decode_tokens) == (30 * PROMPT_TOKENS, 30 * (GENERATED_TOKENS - 1))
    with open_routes(job.paths.routes, MODEL, MD5) as routes:
        assert sorted(routes.ids) == sorted(make_sample().prompts.ids)
        assert routes.record.versions["vllm"] == "0"
        assert routes.record.capture["sampled"] == 30
        prompts = make_sample().prompts
        assert routes.record.texts == {name: text_digest(prompts.texts(k)) for k, name in enumerate(prompts.ids)}


def test_a_refused_a_lost_and_a_silent_request_are_missing_with_their_reasons(job: Job) -> None:
    done = capture_sample(job, refuse=3, lose=5, silent=7)
    ids = make_sample().prompts.ids
    assert done.missing == {ids[3]: "too long", ids[5]: "it was preempted", ids[7]: "the engine gave no answer"}
    routes = Routes(done.path)
    assert routes.record.missing == done.missing
    assert not set(done.missing) & set(routes.ids)
    assert done.captured == len(routes) == 27


def test_one_output_is_generated_for_a_prompt_that_gets_several(job: Job) -> None:
    engine: Any = CapturingEngine()
    own = [{"n": 3, "top_p": 0.5}, None, {"top_p": 0.5}]
    prompts = prompts_of(["code", "law", "maths"], samplings=own)
    capture(job, MODEL, Sample(prompts, 3, 0, MD5), engine)
    plain = {"temperature": 0, "n": 1}
    assert engine.samplings == [{**plain, "top_p": 0.5}, plain, {**plain, "top_p": 0.5}]


def test_an_engine_that_dies_midway_leaves_the_last_routes_as_they_were(job: Job) -> None:
    capture_sample(job)
    before = job.paths.routes.read_bytes()
    with pytest.raises(EngineError, match="SIGKILL"):
        capture_sample(job, die=12)
    assert job.paths.routes.read_bytes() == before
    assert [path.name for path in job.data_dir.iterdir()] == ["routes.parquet"], "and nothing beside them"


def test_a_first_capture_that_is_cut_off_leaves_no_routes(job: Job) -> None:
    with pytest.raises(EngineError):
        capture_sample(job, die=12)
    with pytest.raises(RoutingError, match="orderproof capture"):
        open_routes(job.paths.routes, MODEL, MD5)


def test_a_file_that_was_cut_off_is_refused(job: Job) -> None:
    capture_sample(job)
    content = job.paths.routes.read_bytes()
    job.paths.routes.write_bytes(content[: len(content) // 2])
    with pytest.raises(RoutingError, match=r"routes\.parquet cannot be read"):
        open_routes(job.paths.routes, MODEL, MD5)


def test_an_engine_whose_layers_are_not_the_models_is_refused(job: Job) -> None:
    with pytest.raises(RoutingError, match="2 layers"):
        capture_sample(job, layers=3)


def test_a_capture_without_a_single_route_is_an_error_with_its_reason(job: Job) -> None:
    engine: Any = CapturingEngine(lose=0)
    only = Sample(make_sample().prompts.take(np.arange(1)), 60, 0, MD5)
    with pytest.raises(RoutingError, match="preempted"):
        capture(logging_text(job), MODEL, only, engine)
    with pytest.raises(RoutingError, match=r"has routes$") as refused:
        capture(job, MODEL, only, engine)
    assert "preempted" in refused.value.words[0]


def test_a_dense_model_has_nothing_to_capture() -> None:
    with pytest.raises(RoutingError, match="dense"):
        check_moe(ModelFacts("models/d", "1", "Qwen3ForCausalLM", 512, None, toy=False))


def test_adapters_are_refused_rather_than_ignored(job: Job) -> None:
    check_no_adapters(job)
    engine = job.engine.model_copy(update={"lora_modules": {"law": "adapters/law"}})
    with pytest.raises(RoutingError, match=r"LoRA adapters \(law\).*a job of its own"):
        check_no_adapters(job.model_copy(update={"engine": engine}))
