"""The child process on real vLLM: what it answers, what it survives, what it leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from orderproof.engines.client import VllmEngine
from orderproof.engines.protocol import EngineError, Failure, Output, Request
from orderproof.job.spec import EngineSpec
from tests.conftest import GREEDY

pytestmark = pytest.mark.engine


def requests(count: int, length: int = 12) -> list[Request]:
    return [Request(k, [5 + (k * 7 + j) % 200 for j in range(length)]) for k in range(count)]


def generate(engine: VllmEngine, wanted: list[Request], sampling: dict) -> dict[int, Output | Failure]:
    answers: list[Output | Failure] = []
    engine.run(wanted, sampling, answers.append)
    assert len({answer.number for answer in answers}) == len(answers), "a request was answered twice"
    return {answer.number: answer for answer in answers}


def test_every_request_is_answered_once_and_under_its_own_number(engine: VllmEngine) -> None:
    answers = generate(engine, list(reversed(requests(40))), GREEDY)
    assert sorted(answers) == list(range(40))
    assert all(
        isinstance(a, Output) and [(len(one.token_ids), one.finish_reason) for one in a.completions] == [(16, "length")]
        for a in answers.values()
    )


def test_requests_are_admitted_in_the_order_in_which_they_were_sent(engine: VllmEngine) -> None:
    sent = list(reversed(requests(40)))
    answers = generate(engine, sent, GREEDY)
    clock = [answers[request.number].scheduled_s for request in sent]
    assert clock == sorted(clock)


def test_steps_are_timed_and_the_batch_is_full_while_work_is_left(engine: VllmEngine) -> None:
    figures = engine.run(requests(40), GREEDY, lambda _: None)
    assert len(figures.step_ms) == len(figures.running) >= 40 * 16 / 8
    assert figures.running.max() == 8
    assert 0 < figures.step_ms.sum() / 1000 <= figures.wall_s


def test_one_over_long_request_fails_alone_and_says_why(engine: VllmEngine) -> None:
    answers = generate(engine, [*requests(10), Request(99, [7] * 300)], GREEDY)
    assert isinstance(answers[99], Failure)
    assert "256" in answers[99].reason
    assert all(isinstance(answers[k], Output) for k in range(10))


def test_a_second_pass_finds_no_prefix_of_the_first_in_the_cache(engine: VllmEngine) -> None:
    wanted = requests(24, length=64)  # long enough to fill whole cache blocks
    first = engine.run(wanted, GREEDY, lambda _: None)
    second = engine.run(wanted, GREEDY, lambda _: None)
    assert engine.info.settings["prefix_caching"]
    assert first.prefix_queries == second.prefix_queries > 0
    assert first.prefix_hits == second.prefix_hits


def test_greedy_outputs_of_one_order_are_the_same_in_every_pass(engine: VllmEngine) -> None:
    first, second = (generate(engine, requests(24), GREEDY) for _ in range(2))
    assert {k: a.completions for k, a in first.items()} == {k: a.completions for k, a in second.items()}


def test_sampling_without_a_seed_moves_outputs(engine: VllmEngine) -> None:
    hot = {"temperature": 1.0, "max_tokens": 16, "ignore_eos": True}
    first, second = (generate(engine, requests(24), hot) for _ in range(2))
    assert sum(first[k].completions != second[k].completions for k in first) >= 20


def test_a_request_may_override_the_sampling_of_its_pass(engine: VllmEngine) -> None:
    own = Request(1, [5, 6, 7], {"max_tokens": 3})
    answers = generate(engine, [Request(0, [5, 6, 7]), own], GREEDY)
    assert [answers[k].output_tokens for k in (0, 1)] == [16, 3]


def test_all_samples_of_a_request_come_back_together_and_other_requests_are_not_held_up(engine: VllmEngine) -> None:
    warm = {"temperature": 1.0, "max_tokens": 8, "ignore_eos": True, "seed": 3}
    wanted = [Request(k, r.token_ids, {"n": 1 + k % 4}) for k, r in enumerate(requests(40))]
    answers = generate(engine, wanted, warm)
    assert [len(answers[k].completions) for k in range(40)] == [1 + k % 4 for k in range(40)]
    assert all(a.output_tokens == 8 * len(a.completions) for a in answers.values())
    assert len({tuple(one.token_ids) for one in answers[3].completions}) == 4


def test_a_source_that_fails_in_the_middle_fails_the_pass_with_its_own_error(engine: VllmEngine) -> None:
    def broken() -> Iterator[Request]:
        yield from requests(4)
        raise ValueError("line 5 is torn")

    with pytest.raises(ValueError, match="line 5 is torn"):
        engine.run(broken(), GREEDY, lambda _: None)
    assert len(generate(engine, requests(4), GREEDY)) == 4, "the engine lives on"


def test_a_missing_model_is_named_before_anything_starts(engine_spec: EngineSpec, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"no-such-model.*config\.json"):
        VllmEngine(engine_spec, tmp_path / "no-such-model", GREEDY, tmp_path / "log")


def test_an_unknown_engine_argument_is_answered_with_the_nearest_right_one(
    models: dict[str, Path], tmp_path: Path
) -> None:
    spec = EngineSpec(args={"max_num_seqs": 8, "max_modl_len": 256})
    with (
        pytest.raises(EngineError, match="did you mean 'max_model_len'"),
        VllmEngine(spec, models["moe"], GREEDY, tmp_path / "log"),
    ):
        pass


def test_an_unknown_sampling_parameter_is_answered_with_the_nearest_right_one(
    models: dict[str, Path], tmp_path: Path
) -> None:
    spec = EngineSpec(args={"max_num_seqs": 8})
    sampling = {"max_token": 3}
    with (
        pytest.raises(EngineError, match="did you mean 'max_tokens'"),
        VllmEngine(spec, models["moe"], sampling, tmp_path / "log"),
    ):
        pass


def test_a_command_that_does_not_start_is_named(models: dict[str, Path], tmp_path: Path) -> None:
    spec = EngineSpec(command=("/no/such/python",), args={"max_num_seqs": 8})
    with pytest.raises(EngineError, match="/no/such/python"), VllmEngine(spec, models["moe"], GREEDY, tmp_path / "log"):
        pass


def test_a_command_without_vllm_says_what_is_missing(models: dict[str, Path], tmp_path: Path) -> None:
    spec = EngineSpec(command=(sys.executable, "-S"), args={"max_num_seqs": 8})  # -S: no site-packages
    with (
        pytest.raises(EngineError, match="No module named 'vllm'"),
        VllmEngine(spec, models["moe"], GREEDY, tmp_path / "log"),
    ):
        pass


def test_a_banner_of_the_command_is_no_event_and_lands_in_the_log(models: dict[str, Path], tmp_path: Path) -> None:
    spec = EngineSpec(
        command=("/bin/sh", "-c", 'echo Welcome; exec "$0" -S "$@"', sys.executable), args={"max_num_seqs": 8}
    )
    with (
        pytest.raises(EngineError, match="No module named 'vllm'"),
        VllmEngine(spec, models["moe"], GREEDY, tmp_path / "log"),
    ):
        pass
    assert "Welcome" in (tmp_path / "log").read_text()


def test_a_killed_engine_is_an_error_that_keeps_what_was_finished(
    models: dict[str, Path], engine_spec: EngineSpec, tmp_path: Path
) -> None:
    answers: list[Output | Failure] = []
    with VllmEngine(engine_spec, models["moe"], GREEDY, tmp_path / "log") as engine:
        child = psutil.Process(engine.pid)

        def kill_after_some(answer: Output | Failure) -> None:
            answers.append(answer)
            if len(answers) == 20:
                os.kill(engine.pid, signal.SIGKILL)

        with pytest.raises(EngineError, match="SIGKILL"):
            engine.run(requests(4000), GREEDY, kill_after_some)
    assert 20 <= len(answers) < 4000
    assert all(isinstance(answer, Output) and answer.output_tokens == 16 for answer in answers)
    assert not child.is_running()


def test_a_worker_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    """The worker's own doing, before vLLM is even imported: standard input ends, and the kernel's signal."""
    program = (
        "import subprocess, sys, time, json; from orderproof.engines import client;"
        "a = [sys.executable, '-u', '-c', client.BOOTSTRAP];"
        "c = subprocess.Popen(a, stdin=subprocess.PIPE, start_new_session=True);"
        "c.stdin.write(json.dumps(client.WORKER.read_text()).encode() + b'\\n'); c.stdin.flush();"
        "print(c.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    worker = psutil.Process(int(parent.stdout.readline()))
    deadline = time.monotonic() + 30
    while len(worker.threads()) < 2 and time.monotonic() < deadline:  # its reader thread: it is up
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    gone, alive = psutil.wait_procs([worker], timeout=30)
    assert gone
    assert not alive


def test_closing_from_another_thread_ends_a_pass(
    models: dict[str, Path], engine_spec: EngineSpec, tmp_path: Path
) -> None:
    engine = VllmEngine(engine_spec, models["moe"], GREEDY, tmp_path / "log")
    with engine:
        threading.Timer(0.5, engine.close).start()
        with pytest.raises(EngineError):
            engine.run(requests(100_000), GREEDY, lambda _: None)
