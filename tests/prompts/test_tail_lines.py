"""Lines arrive whole, from a pipe or a growing file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orderproof.prompts.prompt import PromptError
from orderproof.prompts.tail_lines import LineTail
from tests.support.prompt_files import GOOD


def test_only_whole_lines_are_given_while_a_pipe_is_open() -> None:
    reading, writing = os.pipe()
    tail = LineTail(f"/dev/fd/{reading}")
    os.write(writing, GOOD + b'{"id"')
    assert tail.read_lines(1) == [GOOD]
    assert tail.read_lines(0) == []
    assert not tail.ended
    os.write(writing, b': "b"}')
    os.close(writing)
    assert tail.read_lines(1) == [b'{"id": "b"}']
    assert tail.ended
    tail.close()
    os.close(reading)


def test_a_file_that_shrinks_while_it_is_followed_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "growing.jsonl"
    source.write_bytes(GOOD + GOOD)
    tail = LineTail(str(source), 60)
    assert tail.read_lines(1) == [GOOD, GOOD]
    source.write_bytes(b"")
    with pytest.raises(PromptError, match="became shorter"):
        tail.read_lines(1)
    tail.close()


def test_a_closed_standard_input_is_refused_and_its_descriptor_is_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", None)  # what Python makes of a shell's `<&-`
    with pytest.raises(PromptError, match=r"standard input: is closed\. Give a pipe or a file"):
        LineTail("-")


def test_a_byte_order_mark_is_left_out_at_the_beginning_of_any_line(tmp_path: Path) -> None:
    source = tmp_path / "joined.jsonl"
    source.write_bytes(b"\xef\xbb\xbf" + GOOD + b"\xef\xbb\xbf" + GOOD)
    tail = LineTail(str(source))
    assert tail.read_lines(1) == [GOOD, GOOD]
    tail.close()
