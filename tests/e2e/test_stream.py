"""Generations whose prompts come from a pipe or a growing file, on the stand-in for vLLM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import pytest

from orderproof.engines import client
from orderproof.engines.protocol import EngineError, Request
from orderproof.engines.start import start_engine
from orderproof.generate.checkpoint import count_done
from orderproof.generate.checkpoint_folder import FOLDER, CheckpointError
from orderproof.generate.windowed_ordering import SPOOL_FILE, STREAMED_FILE
from orderproof.job.hashing import md5_of
from orderproof.job.paths import OUTPUTS_FILE
from orderproof.job.spec import Job
from orderproof.orders.order_record import OrderRecord
from orderproof.prompts.prompt import Prompt, PromptError
from orderproof.prompts.stream import Stream
from orderproof.prompts.tokenization import Tokenizer
from orderproof.runs.run import Run
from tests.support.batches import (
    count,
    generate,
    generate_and,
    generated_places,
    make_project,
    output_ids,
    outputs,
    promote_label_order,
    write_prompts,
)
from tests.support.commands import COMMAND, environment
from tests.support.interrupted import kill
from tests.support.tracker import NOWHERE

pytestmark = pytest.mark.usefixtures("no_tracker")
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
def command(job: Job, *words: str, **how: Any) -> Iterator[subprocess.Popen[bytes]]:
    """The shipped command, whose prompts come through a pipe."""
    env = environment(job, MLFLOW_TRACKING_URI=NOWHERE, MLFLOW_HTTP_REQUEST_MAX_RETRIES="0")
    argv = [*COMMAND, "generate", "it", "--prompts", "-", *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, cwd=job.root, env=env, stdin=pipe, stdout=pipe, **how) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def generating(job: Job) -> Iterator[IO[bytes]]:
    """A generation in a thread: what is written into this comes as its stream, and closing it ends the stream."""
    read_end, write_end = os.pipe()
    with ThreadPoolExecutor(1) as pool, open(write_end, "wb") as stream:
        try:
            run = pool.submit(generate, job, stream=Stream(f"/dev/fd/{read_end}", linger_s=0.2))
            yield stream
            stream.close()
            run.result(60)
        finally:
            stream.close()
            os.close(read_end)


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


def order_of(run: Run) -> OrderRecord:
    assert run.basis.order is not None
    return run.basis.order


def label_changes(places: list[int]) -> int:
    return sum(a * 3 % 7 != b * 3 % 7 for a, b in pairwise(places))


def test_a_stream_is_sent_in_windows_of_the_promoted_order_and_comes_out_in_its_own(
    job: Job, prompts: list[bytes]
) -> None:
    with piped(b"".join(prompts)) as stream:
        run = generate(job, stream=stream)
    sent = generated_places(job).tolist()
    assert output_ids(job) == [f"p{k}" for k in range(PROMPTS)]
    assert [k // WINDOW for k in sorted(sent)] == [k // WINDOW for k in range(PROMPTS)]
    assert label_changes(sent) < PROMPTS / 4, "neighbours in the file never share a label"
    assert "windows of 48" in run.basis.order_reason
    assert (order_of(run).method, order_of(run).parameters) == ("label", {"window": WINDOW})
    assert run.basis.prompts_total == PROMPTS
    streamed = job.data_dir / STREAMED_FILE
    assert streamed.read_bytes() == b"".join(prompts)
    assert run.basis.dataset_md5 == order_of(run).dataset_md5 == md5_of(streamed)
    assert run.basis.prompts == str(streamed.relative_to(job.root))
    assert not (job.data_dir / FOLDER).exists()


def test_replicas_share_a_stream_window_by_window(job: Job, prompts: list[bytes]) -> None:
    env = {**job.engine.env, "STANDIN_DEVICES": "2"}
    two = job.model_copy(update={"engine": job.engine.model_copy(update={"replicas": 2, "env": env})})
    with piped(b"".join(prompts)) as stream:
        run = generate(two, stream=stream)
    sent = generated_places(job).tolist()
    assert output_ids(job) == [f"p{k}" for k in range(PROMPTS)]
    assert (sorted(sent), run.details["replicas"]) == (list(range(PROMPTS)), 2)


def test_a_stream_and_a_file_of_the_same_prompts_have_the_same_order(job: Job, prompts: list[bytes]) -> None:
    with piped(b"".join(prompts)) as stream:
        streamed = generate(job, stream=stream)
    job.prompts_path.write_bytes(b"".join(prompts))
    pinned = generate(job)
    with open(job.prompts_path, "ab") as sink:
        sink.write(b'{"id": "late", "text": "late", "label": "domain 1"}\n')
    windowed = generate(job)
    with piped(job.prompts_path.read_bytes()) as stream:
        longer = generate(job, stream=stream)
    assert order_of(streamed) == order_of(pinned)
    assert order_of(windowed) == order_of(longer)
    assert "for this version" in windowed.basis.order_reason


def test_results_are_on_disk_and_handed_on_before_the_last_prompt_is_made(job: Job, prompts: list[bytes]) -> None:
    with command(job, "--output", "-") as run:
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
    with generating(job) as stream:
        write(stream, prompts[:5])
        wait_until(lambda: finished(job) == 5)
        write(stream, prompts[5:])
    assert output_ids(job) == [f"p{k}" for k in range(PROMPTS)]


def test_without_a_promotion_nothing_waits_for_a_window(tmp_path: Path) -> None:
    job = make_project(tmp_path / "p", 3)
    with generating(job) as stream:
        for k, line in enumerate(job.prompts_path.read_bytes().splitlines(keepends=True), 1):
            write(stream, [line])
            wait_until(lambda k=k: finished(job) == k)
    assert generated_places(job).tolist() == [0, 1, 2]


def test_a_growing_file_is_followed_to_its_end(job: Job, prompts: list[bytes], tmp_path: Path) -> None:
    growing = tmp_path / "growing.jsonl"
    growing.write_bytes(b"".join(prompts[:100]))

    def grow(_: Any) -> None:
        with open(growing, "ab") as sink:
            sink.writelines(prompts[100:])

    generate_and(job, grow, after=WINDOW, stream=Stream(str(growing), follow_s=0.5))
    assert output_ids(job) == [f"p{k}" for k in range(PROMPTS)]


@pytest.mark.parametrize("bad", [b"nothing\n", b'{"id": "p7", "text": "again"}\n'])
def test_a_broken_row_is_named_what_came_before_is_kept_and_resumes_when_it_is_fixed(
    job: Job, prompts: list[bytes], bad: bytes
) -> None:
    broken = b"".join(prompts[:200]) + bad + b"".join(prompts[200:])
    with (
        piped(broken) as stream,
        pytest.raises(PromptError, match=r"line 201.*run the same command again"),
    ):
        generate(job, stream=stream)
    kept = finished(job)
    assert kept == 200 // WINDOW * WINDOW, "the windows before it"
    assert not (job.data_dir / OUTPUTS_FILE).exists()
    with piped(b"".join(prompts)) as stream:
        run = generate(job, stream=stream)
    assert count(run, "resumed", "generated") == (kept, PROMPTS - kept)
    assert output_ids(job) == [f"p{k}" for k in range(PROMPTS)]


def killed_half_way(job: Job, stream: Stream) -> int:
    with pytest.raises(EngineError, match="was killed by SIGKILL"):
        generate_and(job, kill, after=100, stream=stream)
    return finished(job)


def test_going_on_sends_only_what_is_left_and_keeps_the_order(job: Job, prompts: list[bytes]) -> None:
    with piped(b"".join(prompts)) as stream:
        kept = killed_half_way(job, stream)
    with piped(b"".join(prompts)) as stream:
        run = generate(job, stream=stream)
    assert count(run, "resumed", "generated") == (kept, PROMPTS - kept)
    assert output_ids(job) == [f"p{k}" for k in range(PROMPTS)]
    with piped(b"".join(prompts)) as stream:
        assert order_of(generate(job, stream=stream)) == order_of(run)


def test_another_stream_than_before_is_refused_and_what_to_do_is_said(job: Job, prompts: list[bytes]) -> None:
    with piped(b"".join(prompts)) as stream:
        kept = killed_half_way(job, stream)
    with piped(b"".join(prompts[::-1])) as stream, pytest.raises(PromptError, match=r"line 1: .*--prompts.*--restart"):
        generate(job, stream=stream)
    with piped(b"".join(prompts[:10])) as stream, pytest.raises(PromptError, match="line 11: is missing"):
        generate(job, stream=stream)
    assert finished(job) == kept
    spool = job.data_dir / FOLDER / SPOOL_FILE
    came = len(spool.read_bytes().splitlines())
    generate(job, stream=Stream(str(spool)))  # only those that came
    assert output_ids(job) == [f"p{k}" for k in range(came)]


def test_a_stream_and_a_file_never_share_a_checkpoint(job: Job, prompts: list[bytes]) -> None:
    with piped(b"".join(prompts)) as stream:
        killed_half_way(job, stream)
    job.prompts_path.write_bytes(b"".join(prompts))
    with pytest.raises(CheckpointError, match="stream: true → absent"):
        generate(job)
    generate(job, restart=True)
    assert output_ids(job) == [f"p{k}" for k in range(PROMPTS)]


def test_an_empty_stream_starts_no_engine(job: Job) -> None:
    with piped(b"\n") as stream, pytest.raises(PromptError, match="holds no prompts"):
        generate(job, stream=stream)
    assert not list((job.root / ".orderproof").rglob("*.log")), "an engine was started"


def test_results_of_an_earlier_run_are_handed_on_too(job: Job, prompts: list[bytes], tmp_path: Path) -> None:
    with piped(b"".join(prompts)) as stream:
        killed_half_way(job, stream)
    with piped(b"".join(prompts)) as stream:
        generate(job, stream=stream, output=str(tmp_path / "out.jsonl"))
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()] == outputs(job)


def test_new_prompts_of_a_windowed_job_are_ordered_while_others_are_generated(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_prompts(job, [f"other {k}" for k in range(2000)])
    encoded: list[int] = []
    usual = Tokenizer.__call__

    def counting(self: Tokenizer, rows: list[Prompt]) -> Any:
        encoded.append(len(rows))
        return usual(self, rows)

    monkeypatch.setattr(Tokenizer, "__call__", counting)
    seen: list[int] = []
    generate_and(job, lambda _: seen.append(sum(encoded)), after=1)
    assert 0 < seen[0] < 2000, "the whole file was tokenized before the first answer"
    assert output_ids(job) == [f"p{k}" for k in range(2000)]


def test_a_windowed_order_goes_on_as_it_was_after_a_crash(job: Job) -> None:
    write_prompts(job, [f"other {k}" for k in range(PROMPTS)])
    with pytest.raises(EngineError):
        generate_and(job, kill, after=100)
    resumed = generate(job)
    assert count(resumed, "resumed") >= (100,)
    assert order_of(resumed) == order_of(generate(job))
    assert output_ids(job) == [f"p{k}" for k in range(PROMPTS)]


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
    with start_engine(job) as engine:
        engine.run(slowly(), {"max_tokens": 4}, answers.append)
    assert len(answers) == prompts


def test_a_reader_of_outputs_that_goes_away_ends_the_job_and_keeps_its_results(job: Job, prompts: list[bytes]) -> None:
    with command(job, "--output", "-", stderr=subprocess.PIPE) as run:
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
        run = generate(job, stream=stream)
    assert count(run, "resumed", "generated") == (kept, PROMPTS - kept)
    assert output_ids(job) == [f"p{k}" for k in range(PROMPTS)]
