"""A real `vllm serve` on CPUs beside the child process: the same model, prompts and sampling give the same outputs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from orderproof.engines.client import VllmEngine
from orderproof.engines.protocol import Failure, Output, Request
from orderproof.engines.server import ServerEngine
from orderproof.job.spec import EngineSpec
from tests.conftest import GREEDY
from tests.support.vllm_server import vllm_server

pytestmark = [pytest.mark.engine, pytest.mark.long]


@pytest.fixture(scope="module")
def server(
    models: dict[str, Path], engine_spec: EngineSpec, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerEngine]:
    log = tmp_path_factory.mktemp("server") / "server.log"
    with vllm_server(models["moe"], log, {**engine_spec.args, "enable_prompt_tokens_details": True}) as url:
        spec = EngineSpec(server=url, model="toy", concurrency=engine_spec.max_num_seqs)
        with ServerEngine(spec) as engine:
            yield engine


def requests(count: int, salt: str | None = None, length: int = 40) -> list[Request]:
    return [Request(k, [5 + (k * 7 + j) % 200 for j in range(length)], cache_salt=salt) for k in range(count)]


def generate(
    engine: VllmEngine | ServerEngine, wanted: list[Request], sampling: dict[str, object]
) -> dict[int, Output | Failure]:
    answers: list[Output | Failure] = []
    engine.run(wanted, sampling, answers.append)
    assert len({answer.number for answer in answers}) == len(answers), "a request was answered twice"
    return {answer.number: answer for answer in answers}


def test_it_says_what_it_is(server: ServerEngine) -> None:
    info = server.info
    assert info.versions["vllm"].startswith("0.")
    assert (info.settings["model"], info.settings["max_model_len"]) == ("toy", 256)
    assert info.settings["prefix_caching"] is True


@pytest.mark.parametrize(
    "sampling",
    [GREEDY, {"max_tokens": 8, "seed": 3, "temperature": 0.7, "n": 2, "logit_bias": {"9": 2.0}}, {"temperature": 0}],
)
def test_outputs_are_those_of_the_child_process(
    server: ServerEngine, engine: VllmEngine, sampling: dict[str, object]
) -> None:
    """One request at a time, since what shares a batch can change the last bits."""
    for request in requests(4):
        ours = generate(engine, [request], sampling)[request.number]
        theirs = generate(server, [request], sampling)[request.number]
        assert isinstance(ours, Output)
        assert isinstance(theirs, Output)
        assert [c.token_ids for c in theirs.completions] == [list(c.token_ids) for c in ours.completions]
        assert [(c.text, c.finish_reason, c.stop_reason) for c in theirs.completions] == [
            (c.text, c.finish_reason, c.stop_reason) for c in ours.completions
        ]


def test_many_requests_are_answered_once_each_and_a_bad_one_fails_alone(server: ServerEngine) -> None:
    answers = generate(server, [*requests(40), Request(99, [7] * 300)], GREEDY)
    assert sorted(answers) == [*range(40), 99]
    refused = answers.pop(99)
    assert isinstance(refused, Failure)
    assert "256" in refused.reason
    assert all(isinstance(answer, Output) and answer.output_tokens == 16 for answer in answers.values())


def test_salts_keep_arms_apart_and_hits_are_counted(server: ServerEngine) -> None:
    def hits(salt: str) -> int:
        answers: list[Output | Failure] = []
        figures = server.run(requests(8, salt, 200), GREEDY, answers.append)  # more than a block of the cache
        assert figures.prefix_hits == sum(a.cached_tokens for a in answers if isinstance(a, Output))
        return figures.prefix_hits

    assert hits("block 1 candidate") == 0
    assert hits("block 1 candidate") > 0
    assert hits("block 1 control") == 0
