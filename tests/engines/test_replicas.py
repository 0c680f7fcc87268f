"""Several engines as one, on the stand-in: what each answers, on which devices, and what is left when one fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from orderproof.engines.client import VllmEngine
from orderproof.engines.protocol import EngineError, Failure, Output, PassStats, Request, Steps
from orderproof.engines.replicas import AHEAD_BATCHES, RUN_BATCHES, ReplicatedEngine, _StepMerger, combine_stats
from orderproof.engines.requests import RequestList
from orderproof.engines.shares import Dealer
from orderproof.engines.start import create_engine
from orderproof.job.spec import EngineSpec
from tests.standin.vllm.v1.engine.llm_engine import generated
from tests.support.batches import MAX_MODEL_LEN, STANDIN

BATCH, TOKENS = 4, 8
SAMPLING = {"max_tokens": TOKENS}
TWO_PROCESSORS = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
Start = Callable[..., Any]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    return tmp_path / "m"


@pytest.fixture
def start(model: Path, tmp_path: Path) -> Start:
    """Make the engine of a spec on the stand-in, with two accelerators unless `env` says otherwise."""

    def make(*, replicas: int = 2, args: Any = None, env: Any = None, meanwhile: Any = None, **fields: Any) -> Any:
        env = {"PYTHONPATH": str(STANDIN), "STANDIN_DEVICES": "2", **(env or {})}
        args = {"max_num_seqs": BATCH, "max_model_len": MAX_MODEL_LEN, **(args or {})}
        spec = EngineSpec(replicas=replicas, args=args, env={k: v for k, v in env.items() if v is not None}, **fields)
        return create_engine(spec, model, SAMPLING, tmp_path / "logs" / "it.log", meanwhile=meanwhile)

    return make


def prompt(number: int) -> list[int]:
    return [number + 1, 2, 3]


def requests(count: int) -> RequestList:
    return RequestList([Request(k, prompt(k)) for k in range(count)], [TOKENS] * count)


def on_processors(**env: str) -> dict[str, str | None]:
    return {"STANDIN_DEVICES": None, **env}


def devices_of(engine: ReplicatedEngine) -> list[list[str]]:
    found: list[list[str]] = engine.info.settings["devices"]
    return found


def test_one_replica_is_a_plain_engine_and_more_are_as_many_processes(start: Start) -> None:
    assert isinstance(start(replicas=1), VllmEngine)
    with start(replicas=3, env={"STANDIN_DEVICES": "3"}) as engine:
        assert len({each.pid for each in engine.engines}) == 3
        assert engine.info.settings["replicas"] == 3


def test_a_lossy_engine_knows_the_job_s_adapters_too(model: Path, tmp_path: Path) -> None:
    engine = create_engine(EngineSpec(), model, SAMPLING, tmp_path / "log", {"tone": tmp_path / "tone"}, k0=2)
    assert isinstance(engine, VllmEngine)
    assert engine.adapters == {"tone": str(tmp_path / "tone")}


def test_every_request_is_answered_once_with_its_own_output_in_the_caller_s_thread(start: Start) -> None:
    answers, callers = [], set()

    def sink(answer: Output | Failure) -> None:
        answers.append(answer)
        callers.add(threading.current_thread())

    with start() as engine:
        figures = engine.run(requests(200), SAMPLING, sink)
    assert {a.number: list(a.completions[0].token_ids) for a in answers} == {
        k: generated(prompt(k), TOKENS, MAX_MODEL_LEN) for k in range(200)
    }
    assert (len(answers), callers) == (200, {threading.current_thread()})
    assert {share.replica for share in figures.shares} == {0, 1}
    assert len(figures.replica_s) == 2
    assert figures.wall_s == max(figures.replica_s)


@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1, "7", 1.5])
def test_a_seed_that_would_end_the_engine_fails_its_own_request(start: Start, seed: Any) -> None:
    answers: list[Output | Failure] = []
    with start(replicas=1) as engine:
        engine.run([Request(0, prompt(0), {"seed": seed}), Request(1, prompt(1))], SAMPLING, answers.append)
    (refused,) = (answer for answer in answers if isinstance(answer, Failure))
    assert (refused.number, "sampling.seed" in refused.reason, repr(seed) in refused.reason) == (0, True, True)
    assert {answer.number for answer in answers if isinstance(answer, Output)} == {1}


def test_a_stream_of_unknown_length_is_shared_too(start: Start) -> None:
    answers: list[Output | Failure] = []
    with start() as engine:
        figures = engine.run(iter(list(requests(90))), SAMPLING, answers.append)
        assert sorted(answer.number for answer in answers) == list(range(90))
        assert figures.shares == ()
        assert engine.run(requests(0), SAMPLING, answers.append).replica_s is not None
    assert len(answers) == 90


def test_the_tail_of_a_replica_that_is_late_is_taken_over(start: Start, tmp_path: Path) -> None:
    """One replica does nothing until the other has taken all that it may take of the order."""
    held, answered, count, run = tmp_path / "held", [0], 120 * BATCH, RUN_BATCHES * BATCH
    held.touch()
    left = 2 * run + AHEAD_BATCHES * BATCH + run  # a share too short to be divided, what was sent, a run on its way

    def sink(_: Output | Failure) -> None:
        answered[0] += 1
        if answered[0] == count - left:
            held.unlink()

    with start(env={"STANDIN_HELD_DEVICE": "0", "STANDIN_HELD": str(held)}) as engine:
        figures = engine.run(requests(count), SAMPLING, sink)
    places = {k: sum(s.stop - s.start for s in figures.shares if s.replica == k) for k in (0, 1)}
    assert sum(places.values()) == answered[0] == count
    assert places[0] <= left
    shortest = min(share.stop - share.start for share in figures.shares)
    assert shortest >= run
    assert len(figures.shares) < 20, "the order was cut to pieces"


def test_a_replica_that_dies_is_named_with_its_log_and_the_others_end(start: Start, tmp_path: Path) -> None:
    answers: list[Output | Failure] = []
    with start(env={"STANDIN_STEP_MS": "1"}) as engine:
        children = [psutil.Process(each.pid) for each in engine.engines]

        def kill_after_some(answer: Output | Failure) -> None:
            answers.append(answer)
            if len(answers) == 30:
                os.kill(engine.engines[1].pid, signal.SIGKILL)

        with pytest.raises(EngineError, match=r"replica 2 of 2 failed.*SIGKILL.*it\.2\.log"):
            engine.run(requests(100_000), SAMPLING, kill_after_some)
        assert not any(child.is_running() for child in children)
    assert {tuple(a.completions[0].token_ids) for a in answers} <= {
        tuple(generated(prompt(k), TOKENS, MAX_MODEL_LEN)) for k in range(100_000)
    }
    assert len({a.number for a in answers}) == len(answers) >= 30


def test_a_replica_that_does_not_start_ends_the_others(start: Start) -> None:
    engine = start(env=on_processors(), devices=(("0",), ("4000",)))
    others = psutil.Process().children(recursive=True)  # engines of other tests
    with pytest.raises(EngineError, match=r"replica 2 of 2 failed.*could not load.*it\.2\.log"):
        engine.__enter__()
    with pytest.raises(EngineError, match="closed"):
        engine.run(requests(1), SAMPLING, lambda _: None)
    assert not set(psutil.Process().children(recursive=True)) - set(others)


@pytest.mark.parametrize("replicas", [1, 2])
def test_what_fails_while_engines_load_ends_them_at_once(start: Start, replicas: int) -> None:
    others, loading = set(psutil.Process().children()), set[psutil.Process]()  # engines of other tests

    def broken() -> None:
        while len(loading) < replicas:  # each replica is started by a thread of its own
            loading.update(set(psutil.Process().children()) - others)
        raise OSError("no tokenizer")

    with pytest.raises(OSError, match="no tokenizer"), start(replicas=replicas, meanwhile=broken):
        pytest.fail("an engine was handed over")
    assert not psutil.wait_procs(loading, 10)[1]


def test_an_engine_that_is_ended_while_its_process_starts_leaves_none(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, popen, born = start(replicas=1), subprocess.Popen, list[Any]()

    def ended_meanwhile(*args: Any, **how: Any) -> Any:
        born.append(popen(*args, **how))
        engine.close()  # by another thread: the engine has not got its process yet
        return born[0]

    monkeypatch.setattr(subprocess, "Popen", ended_meanwhile)
    with pytest.raises(EngineError, match="closed"), engine:
        pytest.fail("an engine was handed over")
    assert born[0].wait(10) == -signal.SIGKILL


def test_an_engine_is_ready_when_what_was_done_meanwhile_has_ended(start: Start) -> None:
    def while_it_loads() -> None:
        with pytest.raises(EngineError, match="not started"):
            _ = engine.info

    answers: list[Output | Failure] = []
    with (engine := start(replicas=1, meanwhile=while_it_loads)):
        assert engine.info.load_s > 0
        engine.run(requests(3), SAMPLING, answers.append)
    assert len(answers) == 3


def test_whoever_looks_at_an_answer_may_fail_and_nothing_stays_behind(start: Start) -> None:
    def full(_: Output | Failure) -> None:
        raise OSError("no space left")

    with start() as engine:
        children = [psutil.Process(each.pid) for each in engine.engines]
        with pytest.raises(OSError, match="no space left"):
            engine.run(requests(1000), SAMPLING, full)
        with pytest.raises(EngineError, match="closed"):  # its answers must not be taken for the next pass's
            engine.run(requests(1), SAMPLING, lambda _: None)
    assert not any(child.is_running() for child in children)


def test_a_source_that_fails_fails_the_pass_and_leaves_the_engines_ready(start: Start) -> None:
    def torn() -> Iterator[Request]:
        yield from requests(50)
        raise ValueError("line 51 is torn")

    answers: list[Output | Failure] = []
    with start() as engine:
        with pytest.raises(ValueError, match="line 51 is torn"):
            engine.run(torn(), SAMPLING, answers.append)
        engine.run(requests(20), SAMPLING, answers.append)
    assert len(answers) > 20


def test_closing_from_another_thread_ends_a_pass(start: Start) -> None:
    with start(env={"STANDIN_STEP_MS": "1"}) as engine:
        threading.Timer(0.2, engine.close).start()
        with pytest.raises(EngineError):
            engine.run(requests(100_000), SAMPLING, lambda _: None)


def test_no_replica_is_sent_more_than_it_can_hold(start: Start) -> None:
    read, answered, most = [0], [0], [0]

    def source() -> Iterator[Request]:
        for request in requests(2000):
            read[0] += 1
            most[0] = max(most[0], read[0] - answered[0])
            yield request

    def sink(_: Output | Failure) -> None:
        answered[0] += 1

    with start() as engine:
        engine.run(source(), SAMPLING, sink)
    assert most[0] <= 2 * (AHEAD_BATCHES + RUN_BATCHES) * BATCH


def test_steps_are_watched_with_what_runs_in_all_replicas(start: Start) -> None:
    lots: list[Steps] = []
    with start(env={"STANDIN_STEP_MS": "0.2"}) as engine:
        figures = engine.run(requests(600 * BATCH), SAMPLING, lambda _: None, lots.append)
    assert len(figures.step_ms) == 0
    assert max(int(steps.running.max()) for steps in lots) == 2 * BATCH


def test_the_steps_of_a_replica_that_works_alone_at_the_end_are_watched_too(start: Start, tmp_path: Path) -> None:
    lots: list[Steps] = []
    share, held, answered = 2 * RUN_BATCHES * BATCH - 1, tmp_path / "held", [0]  # too short to be divided
    held.touch()

    def sink(_: Output | Failure) -> None:
        answered[0] += 1
        if answered[0] == share:
            held.unlink()

    with start(
        env={"STANDIN_HELD_DEVICE": "1", "STANDIN_HELD": str(held), "STANDIN_STEPS": str(tmp_path / "steps")}
    ) as engine:
        engine.run(requests(2 * share), SAMPLING, sink, lots.append)
    assert sum(len(steps.ms) for steps in lots) == len((tmp_path / "steps").read_text().splitlines())


def test_vllm_s_parallel_settings_reach_its_arguments_as_they_are(start: Start, tmp_path: Path) -> None:
    parallel = {
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 2,
        "data_parallel_size": 2,
        "enable_expert_parallel": True,
    }
    told = tmp_path / "args.json"
    with start(replicas=1, args=parallel, env={"STANDIN_ARGS": str(told)}):
        args = json.loads(told.read_text())
    assert {key: args[key] for key in parallel} == parallel


@pytest.mark.parametrize(
    ("env", "parallel", "devices"),
    [
        ({"STANDIN_DEVICES": "2"}, {}, [["0"], ["1"]]),
        ({"STANDIN_DEVICES": "4"}, {"tensor_parallel_size": 2}, [["0", "1"], ["2", "3"]]),
        ({"STANDIN_DEVICES": "8"}, {"pipeline_parallel_size": 3}, [["0", "1", "2"], ["3", "4", "5"]]),
        ({"STANDIN_DEVICES": "4", "CUDA_VISIBLE_DEVICES": "3,GPU-5f0c"}, {}, [["3"], ["GPU-5f0c"]]),
    ],
)
def test_each_replica_sees_accelerators_of_its_own(start: Start, env: Any, parallel: Any, devices: Any) -> None:
    with start(env=env, args=parallel) as engine:
        assert devices_of(engine) == devices


def test_named_accelerators_are_taken_as_they_are_named(start: Start) -> None:
    with start(devices=(("5", "1"), ("2", "7")), args={"tensor_parallel_size": 2}) as engine:
        assert devices_of(engine) == [["5", "1"], ["2", "7"]]


def test_too_few_accelerators_are_counted_in_the_answer(start: Start) -> None:
    with pytest.raises(EngineError, match="2 replicas of 2 devices need 4, and 2 are visible"):
        start(args={"tensor_parallel_size": 2}).__enter__()


@TWO_PROCESSORS
def test_without_accelerators_each_replica_keeps_to_processors_of_its_own(start: Start) -> None:
    with start(env=on_processors()) as engine:
        bound = [set(psutil.Process(each.pid).cpu_affinity()) for each in engine.engines]
        threads = [
            set(os.sched_getaffinity(thread.id))
            for each in engine.engines
            for thread in psutil.Process(each.pid).threads()
        ]
        assert [set(map(int, devices)) for devices in devices_of(engine)] == bound
        assert engine.info.machine["threads"] == engine.info.machine["processors"] == len(bound[0])
    assert not bound[0] & bound[1]
    assert bound[0] | bound[1] == os.sched_getaffinity(0)
    assert all(allowed in bound for allowed in threads), "a thread that was there before is free to wander"


@TWO_PROCESSORS
def test_named_processors_are_taken_as_they_are_named(start: Start) -> None:
    first, last = min(os.sched_getaffinity(0)), max(os.sched_getaffinity(0))
    with start(env=on_processors(), devices=((str(last),), (str(first),))) as engine:
        assert [psutil.Process(each.pid).cpu_affinity() for each in engine.engines] == [[last], [first]]


@TWO_PROCESSORS
def test_the_user_s_own_binding_and_threads_win(start: Start) -> None:
    with start(env=on_processors(VLLM_CPU_OMP_THREADS_BIND="nobind")) as engine:
        bound = [psutil.Process(each.pid).cpu_affinity() for each in engine.engines]
        assert bound == [sorted(os.sched_getaffinity(0))] * 2
    with start(env=on_processors(OMP_NUM_THREADS="7")) as engine:
        assert engine.info.machine["processors"] < len(os.sched_getaffinity(0))
        assert engine.info.machine["threads"] == 2, "of the stand-in, which nobody changed"


def test_more_replicas_than_processors_are_refused(start: Start) -> None:
    count = len(os.sched_getaffinity(0)) + 1
    with pytest.raises(EngineError, match=r"lower engine\.replicas"):
        start(replicas=count, env=on_processors()).__enter__()


def figures(step_ms: list[float], running: list[int], **fields: Any) -> PassStats:
    waiting = np.zeros(len(running), np.int32)
    told = {"preempted": 1, "prefix_queries": 10, "prefix_hits": 3, **fields}
    return PassStats(sum(step_ms) / 1000, np.array(step_ms, np.float32), np.array(running, np.int32), waiting, **told)


def test_figures_of_replicas_are_put_side_by_side_in_time() -> None:
    one = figures([10, 10, 10], [4, 4, 2], steal=0.1, accelerator={"sm_clock_mhz": 1900.0, "temperature_c": 60.0})
    two = figures([15, 30], [3, 1], steal=0.2, accelerator={"sm_clock_mhz": 1700.0, "temperature_c": 50.0})
    both = combine_stats([one, two], Dealer(requests(1), 2, run=1, room=1))
    assert both.step_ms.tolist() == [10, 15, 10, 10, 30]
    assert both.running.tolist() == [4 + 3, 3 + 4, 4 + 1, 2 + 1, 1 + 0]
    assert (both.wall_s, both.replica_s) == (0.045, (0.03, 0.045))
    assert (both.preempted, both.prefix_queries, both.prefix_hits, both.steal) == (2, 20, 6, 0.2)
    assert both.accelerator == {"sm_clock_mhz": 1700.0, "temperature_c": 60.0}


def test_steps_reported_in_chunks_give_the_same_as_all_at_once() -> None:
    chance = np.random.default_rng(0)
    each = [figures(chance.uniform(1, 9, n).tolist(), chance.integers(1, 9, n).tolist()) for n in (40, 70, 0)]
    whole = combine_stats(each, Dealer(requests(1), 3, run=1, room=1))
    beside, lots = _StepMerger(3), []
    for k in range(0, 80, 8):
        for replica, told in enumerate(each):
            beside.add(replica, Steps(*(getattr(told, n)[k : k + 8] for n in ("step_ms", "running", "waiting"))))
            if k + 8 >= len(told.step_ms):
                beside.end(replica)
            lots.append(beside.merged())
    assert sum(len(lot.ms) > 0 for lot in lots) > 5, "merged while it goes on"
    for name, wanted in (("ms", whole.step_ms), ("running", whole.running)):
        assert np.concatenate([getattr(lot, name) for lot in lots]).tolist() == wanted.tolist()
