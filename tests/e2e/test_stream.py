"""Batches whose prompts come from a pipe or a growing file, on the stand-in for vLLM."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import pytest

from orderproof.engines import client
from orderproof.engines.client import VllmEngine
from orderproof.engines.protocol import EngineError, Request
from orderproof.generate.checkpoint import count_done
from orderproof.generate.checkpoint_folder import FOLDER, CheckpointError
from orderproof.generate.delivery import OUTPUTS_FILE
from orderproof.generate.windowed_ordering import SPOOL_FILE, STREAMED_FILE
from orderproof.job.hashing import md5_of
from orderproof.job.spec import Job
from orderproof.prompts.prompt import PromptError
from orderproof.prompts.stream import Stream
from tests.e2e.test_batch_faults import ids, outputs, run_and
from tests.support.batches import (
    DRIVER,
    Bytes,
    generated_places,
    make_project,
    promote_label_order,
    recorded_batch,
    run_batch,
    standin,
    write_prompts,
)

WINDOW = 48
PROMPTS = 400


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Whose promoted order has windows. Its prompts lie apart, to come as a stream."""
    made = make_project(tmp_path / "p", PROMPTS)
    promote_label_order(made, WINDOW)
    made.prompts_path.rename(tmp_path / "prompts.jsonl")
    return made


@pytest.fixture
def prompts(job: Job, tmp_path: Path) -> list[bytes]:
    return (tmp_path / "prompts.jsonl").read_bytes().splitlines(keepends=True)


@contextmanager
def piped(content: bytes) -> Iterator[Stream]:
    """A stream from another process, which ends when it has written this."""
    with subprocess.Popen([sys.executable, "-c", f"import sys; sys.stdout.buffer.write({content!r})"],
                          stdout=subprocess.PIPE) as writer:  # fmt: skip
        assert writer.stdout
        yield Stream(f"/dev/fd/{writer.stdout.fileno()}")


@contextmanager
def driver(job: Job, *words: str, **how: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A run in a process of its own, whose standard input is a pipe."""
    pipe = subprocess.PIPE
    command = [sys.executable, str(DRIVER), str(job.root), *words]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True, **how) as process:
        try:
            yield process
        finally:
            process.kill()


def write(pipe: IO[bytes] | None, lines: list[bytes]) -> None:
    assert pipe
    pipe.write(b"".join(lines))
    pipe.flush()


def wait_until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def finished(job: Job) -> int:
    return (count_done(job.data_dir / FOLDER) or (0, 0))[0]


def label_changes(places: list[int]) -> int:
    return sum(a * 3 % 7 != b * 3 % 7 for a, b in pairwise(places))


def test_a_stream_is_sent_in_windows_of_the_promoted_order_and_comes_out_in_its_own(
    job: Job, prompts: list[bytes]
) -> None:
    engines: list[VllmEngine] = []

    def start(this: Job) -> VllmEngine:
        engines.append(standin(this))
        return engines[-1]

    with piped(b"".join(prompts)) as stream:
        _, _, run = recorded_batch(job, stream=stream, start=start)
    sent = generated_places(job).tolist()
    assert ids(job) == [f"p{k}" for k in range(PROMPTS)]
    assert [k // WINDOW for k in sorted(sent)] == [k // WINDOW for k in range(PROMPTS)]
    assert label_changes(sent) < PROMPTS / 4, "neighbours in the file never share a label"
    assert (len(engines), "in windows of 48" in run.order_why) == (1, True)
    assert (run.order.method, run.order.parameters, run.prompts) == ("label", {"window": WINDOW}, PROMPTS)
    streamed = job.data_dir / STREAMED_FILE
    assert streamed.read_bytes() == b"".join(prompts)
    assert run.dataset_md5 == run.order.dataset_md5 == md5_of(streamed)
    assert not (job.data_dir / FOLDER).exists()


def test_replicas_share_a_stream_window_by_window(job: Job, prompts: list[bytes]) -> None:
    env = {**job.engine.env, "STANDIN_DEVICES": "2"}
    two = job.model_copy(update={"engine": job.engine.model_copy(update={"replicas": 2, "env": env})})
    with piped(b"".join(prompts)) as stream:
        run = recorded_batch(two, stream=stream)[2]
    sent = generated_places(job).tolist()
    assert ids(job) == [f"p{k}" for k in range(PROMPTS)]
    assert (sorted(sent), run.replicas, len(run.replica_wall_s)) == (list(range(PROMPTS)), 2, 2)


def test_a_stream_and_a_file_of_the_same_prompts_have_the_same_order(job: Job, prompts: list[bytes]) -> None:
    with piped(b"".join(prompts)) as stream:
        streamed = recorded_batch(job, stream=stream)[2]
    job.prompts_path.write_bytes(b"".join(prompts))
    pinned = recorded_batch(job)[2]
    with open(job.prompts_path, "ab") as sink:
        sink.write(b'{"id": "late", "text": "late", "label": "domain 1"}\n')
    windowed = recorded_batch(job)[2]
    with piped(job.prompts_path.read_bytes()) as stream:
        longer = recorded_batch(job, stream=stream)[2]
    assert streamed.order == pinned.order
    assert windowed.order == longer.order
    assert "made for this version" in windowed.order_why


def test_results_are_on_disk_and_handed_on_before_the_last_prompt_is_made(job: Job, prompts: list[bytes]) -> None:
    with driver(job, "-", "-") as run:
        given: list[bytes] = []
        for window in (prompts[:WINDOW], prompts[WINDOW : 2 * WINDOW]):
            write(run.stdin, window)  # the pipe stays open, and the next prompt does not exist yet
            assert run.stdout
            given += [run.stdout.readline() for _ in window]
            assert finished(job) == len(given)
            assert (job.data_dir / FOLDER / SPOOL_FILE).read_bytes() == b"".join(prompts[: len(given)])
        write(run.stdin, prompts[2 * WINDOW :])
        assert run.stdin
        run.stdin.close()
        given += run.stdout.readlines()
        assert run.wait(60) == 0
    assert [json.loads(line)["id"] for line in given] == [f"p{k}" for k in range(PROMPTS)]
    assert [json.loads(line) for line in given] == outputs(job)


def test_an_engine_that_starves_gets_a_window_that_is_not_complete(job: Job, prompts: list[bytes]) -> None:
    with driver(job, "-") as run:
        write(run.stdin, prompts[:5])
        wait_until(lambda: finished(job) == 5)
        write(run.stdin, prompts[5:])
        assert run.stdin
        run.stdin.close()
        assert run.wait(60) == 0
    assert ids(job) == [f"p{k}" for k in range(PROMPTS)]


def test_without_a_promotion_nothing_waits_for_a_window(tmp_path: Path) -> None:
    job = make_project(tmp_path / "p", 3)
    with driver(job, "-") as run:
        for k, line in enumerate(job.prompts_path.read_bytes().splitlines(keepends=True), 1):
            write(run.stdin, [line])
            wait_until(lambda k=k: finished(job) == k)
        assert run.stdin
        run.stdin.close()
        assert run.wait(60) == 0
    assert generated_places(job).tolist() == [0, 1, 2]


def test_a_growing_file_is_followed_to_its_end(job: Job, prompts: list[bytes], tmp_path: Path) -> None:
    growing = tmp_path / "growing.jsonl"
    growing.write_bytes(b"".join(prompts[:100]))

    def grow(_: VllmEngine) -> None:
        with open(growing, "ab") as sink:
            sink.writelines(prompts[100:])

    run_and(job, grow, after=WINDOW, stream=Stream(str(growing), follow_s=0.5))
    assert ids(job) == [f"p{k}" for k in range(PROMPTS)]


@pytest.mark.parametrize("bad", [b"nothing\n", b'{"id": "p7", "text": "again"}\n'])
def test_a_broken_row_is_named_what_came_before_is_kept_and_goes_on_when_it_is_mended(
    job: Job, prompts: list[bytes], bad: bytes
) -> None:
    broken = b"".join(prompts[:200]) + bad + b"".join(prompts[200:])
    with (
        piped(broken) as stream,
        pytest.raises(PromptError, match=r"line 201.*are kept: run the same command again"),
    ):
        run_batch(job, stream=stream)
    kept = finished(job)
    assert kept == 200 // WINDOW * WINDOW, "the windows before it"
    assert not (job.data_dir / OUTPUTS_FILE).exists()
    with piped(b"".join(prompts)) as stream:
        generated, _ = run_batch(job, stream=stream)
    assert (generated.results, ids(job)) == (PROMPTS - kept, [f"p{k}" for k in range(PROMPTS)])


def killed_half_way(job: Job, stream: Stream) -> int:
    with pytest.raises(EngineError, match="was killed by SIGKILL"):
        run_and(job, lambda engine: os.killpg(engine.pid, signal.SIGKILL), after=100, stream=stream)
    return finished(job)


def test_going_on_sends_only_what_is_left_and_keeps_the_order(job: Job, prompts: list[bytes]) -> None:
    with piped(b"".join(prompts)) as stream:
        kept = killed_half_way(job, stream)
    with piped(b"".join(prompts)) as stream:
        generated, _, run = recorded_batch(job, stream=stream)
    assert generated.results == PROMPTS - kept
    assert ids(job) == [f"p{k}" for k in range(PROMPTS)]
    with piped(b"".join(prompts)) as stream:
        assert recorded_batch(job, stream=stream)[2].order == run.order


def test_another_stream_than_before_is_refused_and_what_to_do_is_said(job: Job, prompts: list[bytes]) -> None:
    with piped(b"".join(prompts)) as stream:
        kept = killed_half_way(job, stream)
    with piped(b"".join(prompts[::-1])) as stream, pytest.raises(PromptError, match=r"line 1: .*--prompts.*--restart"):
        run_batch(job, stream=stream)
    with piped(b"".join(prompts[:10])) as stream, pytest.raises(PromptError, match="line 11: is missing"):
        run_batch(job, stream=stream)
    assert finished(job) == kept
    spool = job.data_dir / FOLDER / SPOOL_FILE
    came = len(spool.read_bytes().splitlines())
    run_batch(job, stream=Stream(str(spool)))  # only those that came
    assert ids(job) == [f"p{k}" for k in range(came)]


def test_a_stream_and_a_file_never_share_a_checkpoint(job: Job, prompts: list[bytes]) -> None:
    with piped(b"".join(prompts)) as stream:
        killed_half_way(job, stream)
    job.prompts_path.write_bytes(b"".join(prompts))
    with pytest.raises(CheckpointError, match="stream: true → absent"):
        run_batch(job)
    run_batch(job, restart=True)
    assert ids(job) == [f"p{k}" for k in range(PROMPTS)]


def test_an_empty_stream_starts_no_engine(job: Job) -> None:
    with piped(b"\n") as stream, pytest.raises(PromptError, match="holds no prompts"):
        run_batch(job, stream=stream, start=lambda _: pytest.fail("an engine was started"))


def test_results_of_an_earlier_run_are_handed_on_too(job: Job, prompts: list[bytes], tmp_path: Path) -> None:
    with piped(b"".join(prompts)) as stream:
        killed_half_way(job, stream)
    with piped(b"".join(prompts)) as stream:
        run_batch(job, stream=stream, output=str(tmp_path / "out.jsonl"))
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()] == outputs(job)


def test_new_prompts_of_a_windowed_job_are_ordered_while_others_are_generated(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_prompts(job, [f"other {k}" for k in range(2000)])
    encoded: list[int] = []
    usual = Bytes.__call__
    monkeypatch.setattr(Bytes, "__call__", lambda self, p: (encoded.append(len(p)), usual(self, p))[1])
    seen: list[int] = []
    run_and(job, lambda _: seen.append(sum(encoded)), after=1)
    assert 0 < seen[0] < 2000, "the whole file was tokenized before the first answer"
    assert ids(job) == [f"p{k}" for k in range(2000)]


def test_a_windowed_order_goes_on_as_it_was_after_a_crash(job: Job) -> None:
    write_prompts(job, [f"other {k}" for k in range(PROMPTS)])
    with pytest.raises(EngineError):
        run_and(job, lambda engine: os.killpg(engine.pid, signal.SIGKILL), after=100)
    resumed = recorded_batch(job)[2]
    assert resumed.resumed >= 100
    assert resumed.order == recorded_batch(job)[2].order
    assert ids(job) == [f"p{k}" for k in range(PROMPTS)]


@pytest.mark.parametrize(
    ("pause_s", "prompts", "silent_after_s"),
    [(1.0, 2, 0.05), (0.1, 12, 60.0)],
    ids=["long pauses", "a trickle that does not fill the first batch"],
)
def test_an_engine_that_waits_for_prompts_is_not_taken_for_dead(
    pause_s: float, prompts: int, silent_after_s: float, job: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    quick = tmp_path / "worker.py"
    source = client.WORKER.read_text()
    for constant, value in (
        ("HEARTBEAT_S = 5.0", 0.05),
        ("SILENT_AFTER_S = 2.0", silent_after_s),
        ("GATHERING_S = 20.0", 0.05),
    ):
        assert constant in source
        source = source.replace(constant, f"{constant.split()[0]} = {value}")
    quick.write_text(source)
    monkeypatch.setattr(client, "WORKER", quick)
    monkeypatch.setattr(client, "SILENCE_LIMIT_S", 0.5)

    def slowly() -> Iterator[Request]:
        for k in range(prompts):
            time.sleep(pause_s)
            yield Request(k, [1, 2, 3])

    answers: list[Any] = []
    with standin(job) as engine:
        engine.run(slowly(), {"max_tokens": 4}, answers.append)
    assert len(answers) == prompts


def test_a_reader_of_outputs_that_goes_away_ends_the_job_and_keeps_its_results(job: Job, prompts: list[bytes]) -> None:
    with driver(job, "-", "-", stderr=subprocess.PIPE) as run:
        write(run.stdin, prompts[:WINDOW])
        assert run.stdout
        run.stdout.readline()
        run.stdout.close()
        write(run.stdin, prompts[WINDOW : 3 * WINDOW])
        assert run.wait(60) != 0
        assert run.stderr
        assert b"--output" in run.stderr.read()
    kept = finished(job)
    assert kept
    with piped(b"".join(prompts)) as stream:
        generated, _ = run_batch(job, stream=stream)
    assert (generated.results, ids(job)) == (PROMPTS - kept, [f"p{k}" for k in range(PROMPTS)])
