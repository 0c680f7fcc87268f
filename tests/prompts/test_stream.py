"""Prompts that come as a stream: windows, flaws, and going on where an earlier run was."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orderproof.prompts.prompt import PromptError
from orderproof.prompts.source import PromptSource
from orderproof.prompts.stream import PromptStream, Stream

PATIENT = 60.0  # s, of a test that waits for another thread


def line(k: int, **more: str) -> bytes:
    return json.dumps({"id": f"p{k}", "text": f"été {k}", **more}).encode() + b"\n"


def lines(*places: int) -> bytes:
    return b"".join(map(line, places))


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Callable[[bytes], Path]]:
    """Makes a named pipe whose writer gives these bytes and then closes it."""
    writers = []

    def make(content: bytes) -> Path:
        path = tmp_path / f"pipe{len(writers)}"
        os.mkfifo(path)
        writers.append(threading.Thread(target=path.write_bytes, args=(content,)))
        writers[-1].start()
        return path

    yield make
    for writer in writers:
        writer.join(PATIENT)


def windows(stream: PromptStream, size: int = 3, start: int = 0, starving: bool = False) -> list[list[str]]:
    return [[prompt.id for prompt in stream.read(rows)] for rows in stream.windows(start, size, lambda: starving)]


def test_windows_come_complete_and_the_last_as_it_is(pipe: Callable[[bytes], Path], tmp_path: Path) -> None:
    with PromptStream(Stream(str(pipe(lines(*range(8)))), linger_s=0), tmp_path / "spool") as stream:
        assert windows(stream) == [["p0", "p1", "p2"], ["p3", "p4", "p5"], ["p6", "p7"]]
        assert len(stream) == 8


def test_a_window_comes_before_the_next_prompt_does(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    with (
        open(writing, "wb", buffering=0) as writer,
        PromptStream(Stream(f"/dev/fd/{reading}", linger_s=0), tmp_path / "spool") as stream,
    ):
        writer.write(lines(0, 1))
        given = stream.windows(0, 2, lambda: False)
        assert next(given) == range(2)  # the writer is still open and has written no more
        assert (tmp_path / "spool").read_bytes() == lines(0, 1)
        writer.write(lines(2, 3))
        assert next(given) == range(2, 4)
    os.close(reading)


def test_a_window_that_is_not_complete_comes_where_the_engine_starves(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    with open(writing, "wb", buffering=0) as writer:
        asked: list[int] = []

        def starving() -> bool:
            asked.append(1)
            return len(asked) > 2

        with PromptStream(Stream(f"/dev/fd/{reading}", linger_s=0), tmp_path / "spool") as stream:
            writer.write(lines(0, 1, 2) + line(3)[:5])
            given = stream.windows(0, 2, starving)
            assert (next(given), next(given)) == (range(2), range(2, 3))
            assert len(asked) == 3, "as long as the engine has work, the window waits"
    os.close(reading)


@pytest.mark.parametrize("content", [b"", b"\n  \n", b"\xef\xbb\xbf"])
def test_a_stream_without_prompts_is_refused(content: bytes, pipe: Callable[[bytes], Path], tmp_path: Path) -> None:
    with (
        PromptStream(Stream(str(pipe(content)), linger_s=0), tmp_path / "spool") as stream,
        pytest.raises(PromptError, match="no prompts"),
    ):
        stream.has_more(0)


def test_lines_keep_their_bytes_numbers_and_blank_neighbours(pipe: Callable[[bytes], Path], tmp_path: Path) -> None:
    content = b"\xef\xbb\xbf" + line(0) + b"\n  \r\n" + line(1).replace(b"\n", b"\r\n") + line(2)[:-1]
    with PromptStream(Stream(str(pipe(content)), linger_s=0), tmp_path / "prompts.jsonl") as stream:
        assert windows(stream) == [["p0", "p1", "p2"]]
        assert [prompt.line for prompt in stream.read(range(3))] == [1, 4, 5]
    assert (tmp_path / "prompts.jsonl").read_bytes() == content[3:] + b"\n"
    with PromptSource(tmp_path / "prompts.jsonl") as again:
        assert list(again.ids) == ["p0", "p1", "p2"]


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (b"nothing\n", r"pipe0, line 5: is not JSON"),
        (b'{"id": "x"}\n', r"pipe0, line 5 \(id 'x'\): has no `text`"),
        (line(1), r"pipe0, line 5 \(id 'p1'\): duplicate id, first on line 2"),
        (line(3), r"pipe0, line 5 \(id 'p3'\): duplicate id, first on line 4"),
        (b'{"id": "x", "te', r"pipe0, line 5: the last line is cut off"),
    ],
)
def test_a_flaw_is_named_with_its_line_after_the_windows_before_it_were_given(
    bad: bytes, problem: str, pipe: Callable[[bytes], Path], tmp_path: Path
) -> None:
    more = b"" if bad.startswith(b'{"id": "x", "te') else line(9)
    with PromptStream(Stream(str(pipe(lines(0, 1, 2, 3) + bad + more)), linger_s=0), tmp_path / "spool") as stream:
        given = stream.windows(0, 3, lambda: False)
        assert next(given) == range(3)
        with pytest.raises(PromptError, match=problem + r".*are kept: run the same command again"):
            next(given)
    assert (tmp_path / "spool").read_bytes() == lines(0, 1, 2, 3)


def test_going_on_takes_what_was_spooled_and_only_reads_what_is_new(
    pipe: Callable[[bytes], Path], tmp_path: Path
) -> None:
    (tmp_path / "spool").write_bytes(lines(0, 1, 2) + line(3)[:9])  # a crash tore the last line
    with PromptStream(Stream(str(pipe(lines(0, 1, 2, 3, 4))), linger_s=0), tmp_path / "spool") as stream:
        assert windows(stream, start=2) == [["p2", "p3", "p4"]]
    assert (tmp_path / "spool").read_bytes() == lines(0, 1, 2, 3, 4)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (line(0) + line(1, label="x") + line(2), r"pipe0, line 2: is not the line that an earlier run read"),
        (line(1), "line 1: is not the line"),
        (line(0), "line 2: is missing"),
        (b"", "line 1: is missing"),
    ],
)
def test_another_beginning_than_before_is_refused_and_nothing_is_spooled(
    content: bytes, problem: str, pipe: Callable[[bytes], Path], tmp_path: Path
) -> None:
    (tmp_path / "spool").write_bytes(lines(0, 1))
    with pytest.raises(PromptError, match=problem + r".*--prompts .*spool.*--restart"):
        PromptStream(Stream(str(pipe(content)), linger_s=0), tmp_path / "spool")
    assert (tmp_path / "spool").read_bytes() == lines(0, 1)


def test_what_was_spooled_can_be_given_as_the_stream(tmp_path: Path) -> None:
    (tmp_path / "spool").write_bytes(lines(0, 1))
    with PromptStream(Stream(str(tmp_path / "spool"), linger_s=0), tmp_path / "spool") as stream:
        assert windows(stream) == [["p0", "p1"]]
    assert (tmp_path / "spool").read_bytes() == lines(0, 1)


def test_a_growing_file_is_followed_until_nothing_is_added(tmp_path: Path) -> None:
    source = tmp_path / "growing.jsonl"
    source.write_bytes(lines(0, 1) + line(2)[:7])
    with PromptStream(Stream(str(source), 0.5), tmp_path / "spool") as stream:
        given = stream.windows(0, 2, lambda: False)
        assert next(given) == range(2)
        with open(source, "ab") as sink:
            sink.write(line(2)[7:] + line(3)[:-1])
        assert [prompt.id for prompt in stream.read(next(given))] == ["p2", "p3"]
        assert list(given) == []


def test_what_cannot_be_streamed_is_refused(pipe: Callable[[bytes], Path], tmp_path: Path) -> None:
    for source, follow_s, problem in (
        ("a.parquet", None, "cannot be streamed"),
        (str(tmp_path / "none"), None, "No such file"),
        (str(tmp_path), None, "directory"),
        (str(pipe(b"")), 1.0, "is a pipe"),
    ):
        with pytest.raises(PromptError, match=problem):
            PromptStream(Stream(source, follow_s), tmp_path / "spool").has_more(0)


def test_a_spool_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "prompts.jsonl").write_bytes(lines(0, 1))
    with pytest.raises(PromptError, match="none/spool: cannot be written: No such file"):
        PromptStream(Stream(str(tmp_path / "prompts.jsonl")), tmp_path / "none" / "spool")
    with (
        PromptStream(Stream(str(tmp_path / "prompts.jsonl")), tmp_path / "spool") as stream,
        monkeypatch.context() as at,
    ):
        at.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(PromptError, match="spool: cannot be written: No space left"):
            windows(stream)
