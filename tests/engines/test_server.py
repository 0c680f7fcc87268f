"""A server in the place of a child process: order, retries, one answer each, and what of it is recorded."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orderproof.engines.protocol import EngineError, Failure, Output, PassStats, Request
from orderproof.engines.server import NEUTRAL, RENAMED, TAKEN, ServerEngine
from orderproof.engines.start import start_engine, start_routing_engine
from orderproof.job.redaction import recorded_engine
from orderproof.job.spec import EngineSpec
from tests.support.openai_server import SLOW_S, OpenAIServer, openai_server
from tests.support.trial_maker import make_job

GREEDY = {"temperature": 0, "max_tokens": 3}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with openai_server() as state:
        yield state


def spec_of(state: OpenAIServer, **more: Any) -> EngineSpec:
    return EngineSpec(**{"server": state.url, "concurrency": 4, "request_timeout_s": SLOW_S / 2, **more})


def requests(count: int, **more: Any) -> list[Request]:
    return [Request(k, [k, 7, 8], **more) for k in range(count)]


def run(state: OpenAIServer, wanted: Any, sampling: Any = GREEDY, **more: Any) -> tuple[dict[int, Any], PassStats]:
    answers: list[Output | Failure] = []
    with ServerEngine(spec_of(state, **more)) as engine:
        figures = engine.run(wanted, sampling, answers.append)
    assert len({answer.number for answer in answers}) == len(answers), "a request was answered twice"
    return {answer.number: answer for answer in answers}, figures


def test_the_server_says_what_it_is_and_starts_nothing(server: OpenAIServer) -> None:
    server.caching = True
    with ServerEngine(spec_of(server, model="other")) as engine:
        info = engine.info
        assert engine.probe(256) == 0
    assert info.versions == {"vllm": "0.32.0"}
    assert info.machine["device_type"] == "server"
    assert info.settings["model"] == "other"
    assert (info.settings["max_model_len"], info.settings["prefix_caching"]) == (256, True)
    assert server.began == []


def test_every_request_is_answered_once_and_begins_in_its_order(server: OpenAIServer) -> None:
    server.pause_s = 0.02
    answers, figures = run(server, requests(40))
    assert sorted(answers) == list(range(40))
    assert all(answers[k].completions[0].token_ids == [k, 2, 3] for k in answers)
    # Those in flight at the same time may overtake each other on their way, no others.
    assert all(abs(place - number) < 4 for place, number in enumerate(server.began))
    assert server.most_in_flight == 4
    assert (figures.prefix_queries, figures.prefix_hits, figures.preempted) == (0, 40, 0)
    assert figures.wall_s > 0.15


def test_answers_come_as_they_are_finished(server: OpenAIServer) -> None:
    seen: list[int] = []

    def source() -> Iterator[Request]:
        yield from requests(4)
        deadline = time.monotonic() + 10
        while len(seen) < 4 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(seen) == 4, "answers waited for the end"
        yield Request(9, [9])

    with ServerEngine(spec_of(server)) as engine:
        engine.run(source(), GREEDY, lambda answer: seen.append(answer.number))
    assert sorted(seen) == [0, 1, 2, 3, 9]


def test_a_server_that_fails_one_request_in_ten_in_every_way_loses_and_doubles_none(server: OpenAIServer) -> None:
    ways = ("429", "500", "503", "cut", "slow")
    for place, number in enumerate(range(3, 100, 10)):
        server.faults[number] = [ways[place % 5], ways[(place + 2) % 5]]
    answers, _ = run(server, requests(100))
    assert sorted(answers) == list(range(100))
    assert all(isinstance(answer, Output) for answer in answers.values())
    assert len(server.began) == 120, "each failed request came twice more"
    assert set(server.answered.values()) == {1}


def test_a_request_that_the_server_refuses_or_always_fails_fails_alone(server: OpenAIServer) -> None:
    server.faults[3] = ["400"]
    server.faults[5] = ["500"] * 3
    server.faults[7] = ["garbage"]
    server.pause_s = 0.01
    answers, _ = run(server, requests(40), request_retries=2)
    failed = {number: answer.reason for number, answer in answers.items() if isinstance(answer, Failure)}
    assert set(failed) == {3, 5, 7}
    assert "fault 400" in failed[3]
    assert "failed it 3 times" in failed[5]


@pytest.mark.parametrize("fault", ["429", "500", "cut", "slow"])
def test_a_server_that_fails_everything_is_an_error_that_names_it(server: OpenAIServer, fault: Any) -> None:
    server.always = fault
    with pytest.raises(EngineError, match=r"the server http://127\.0\.0\.1:\d+/v1 failed.*run the same command again"):
        run(server, requests(10), request_retries=1)


def test_a_server_that_goes_away_keeps_what_was_answered() -> None:
    answers: list[Output | Failure] = []
    with openai_server(pause_s=0.02) as server, ServerEngine(spec_of(server, request_retries=1)) as engine:

        def sink(answer: Output | Failure) -> None:
            answers.append(answer)
            server.always = "cut" if len(answers) >= 8 else None

        with pytest.raises(EngineError, match="failed"):
            engine.run(requests(40), GREEDY, sink)
    assert 8 <= len(answers) < 40


def test_what_the_requests_raise_comes_after_the_answers_before_it(server: OpenAIServer) -> None:
    def source() -> Iterator[Request]:
        yield from requests(3)
        raise ValueError("line 4 is broken")

    answers: list[Output | Failure] = []
    with ServerEngine(spec_of(server)) as engine:
        with pytest.raises(ValueError, match="line 4"):
            engine.run(source(), GREEDY, answers.append)
        assert sorted(answer.number for answer in answers) == [0, 1, 2]
        assert engine.run(requests(2), GREEDY, answers.append).wall_s > 0


def test_sampling_is_the_jobs_and_never_the_servers_defaults(server: OpenAIServer) -> None:
    own = {"max_tokens": 5, "extra_args": {"a": 1}, "n": 2}
    answers, _ = run(server, [Request(1, [1], own, cache_salt="block 1 candidate")], {"temperature": 0, "top_k": 3})
    body = server.bodies[1]
    assert body["cache_salt"] == "block 1 candidate"
    assert body["vllm_xargs"] == {"a": 1}
    assert {name: body[name] for name in NEUTRAL} == {**NEUTRAL, "temperature": 0, "top_k": 3, "max_tokens": 5}
    assert [completion.text for completion in answers[1].completions] == ["text 1.0", "text 1.1"]


def test_a_parameter_that_servers_do_not_take_fails_its_request_by_name(server: OpenAIServer) -> None:
    answers, _ = run(server, [Request(0, [0], {"logprobs": 2, "detokenize": False}), Request(1, [1])])
    assert answers[0].reason == "a server does not take sampling.detokenize, sampling.logprobs"
    assert isinstance(answers[1], Output)


def test_the_parameters_are_those_of_vllms_own_requests() -> None:
    protocol = pytest.importorskip("vllm.entrypoints.openai.completion.protocol")
    assert {*TAKEN, *NEUTRAL, *RENAMED.values()} <= set(protocol.CompletionRequest.model_fields)


# -- what cannot work is named ---------------------------------------------------------------------------------------


def test_a_key_comes_from_the_environment_and_stands_in_no_message(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with openai_server(key="word-1") as server:
        with pytest.raises(EngineError, match="MY_KEY, which is not set"):
            run(server, requests(1), api_key_env="MY_KEY")
        monkeypatch.setenv("MY_KEY", "word-2")
        with pytest.raises(EngineError, match=r"refuses the key.*engine\.api_key_env") as refused:
            run(server, requests(1), api_key_env="MY_KEY")
        assert "word" not in str(refused.value)
        monkeypatch.setenv("MY_KEY", "word-1")
        answers, _ = run(server, requests(1), api_key_env="MY_KEY")
        assert isinstance(answers[0], Output)
        url = server.url.replace("//", "//me:word-3@")
        job = make_job(tmp_path, engine={"server": url, "concurrency": 4, "api_key_env": "MY_KEY"})
        assert "word" not in json.dumps(recorded_engine(job))


def test_another_model_no_server_and_another_kind_of_server_are_named(server: OpenAIServer) -> None:
    with pytest.raises(EngineError, match=r"no model 'none': set engine\.model to one of toy, other"):
        run(server, requests(1), model="none")
    with pytest.raises(EngineError, match=r"does not answer.*engine\.server"):
        run(server, requests(1), server="http://127.0.0.1:9/v1", request_retries=0)
    server.token_ids = False
    with pytest.raises(EngineError, match="no token ids"):
        run(server, requests(1))


def test_a_server_can_neither_capture_nor_change_its_routing(tmp_path: Path, server: OpenAIServer) -> None:
    job = make_job(tmp_path, engine={"server": server.url, "concurrency": 4})
    with pytest.raises(EngineError, match=r"engine\.server names a server"):
        start_routing_engine(job)
    with pytest.raises(EngineError, match="accept_lossy"):
        start_engine(job, k0=2)
    assert isinstance(start_engine(job), ServerEngine)


def test_an_interrupt_ends_a_run_at_once(server: OpenAIServer) -> None:
    server.pause_s = 0.05

    def interrupt(_: Output | Failure) -> None:
        raise KeyboardInterrupt

    with ServerEngine(spec_of(server)) as engine, pytest.raises(KeyboardInterrupt):
        engine.run(requests(1000), GREEDY, interrupt)
    time.sleep(0.3)  # in which 24 requests could begin
    assert len(server.began) < 12, "requests were sent to nobody"
