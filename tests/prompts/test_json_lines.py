"""Lines of JSON are read as other tools write them, and a broken one is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderproof.prompts import json_lines
from orderproof.prompts.prompt_file import read_prompts
from tests.support.lfs import POINTER
from tests.support.prompt_files import GOOD, refusal, write


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf" + GOOD,
        GOOD.replace(b"\n", b"\r\n"),
        b"\xef\xbb\xbf" + GOOD.replace(b"\n", b"\r\n") + b"\r\n",
        GOOD.rstrip(),
        b"\n  \n" + GOOD + b" \t\r\n\n",
        b"\n\xef\xbb\xbf" + GOOD + b"\xef\xbb\xbf\n",
    ],
    ids=["byte order mark", "CRLF", "both and a blank line", "no newline at the end", "blank lines", "marks later"],
)
def test_what_other_tools_add_to_a_file_changes_nothing(tmp_path: Path, content: bytes) -> None:
    (prompt,) = read_prompts(write(tmp_path, content))
    assert (prompt.id, prompt.text) == ("a", "one")


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\u0085"])
def test_only_a_newline_ends_a_line(tmp_path: Path, mark: str) -> None:
    content = f'{{"id": "a", "text": "one{mark}two"}}\n'.encode() + GOOD
    assert [p.text for p in read_prompts(write(tmp_path, content))] == [f"one{mark}two", "one"]


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")).filter(str.strip)


@given(st.lists(TEXTS, min_size=1))
def test_every_text_that_json_can_carry_comes_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    rows = [json.dumps({"id": i, "text": text}, ensure_ascii=bool(i % 2)) for i, text in enumerate(texts)]
    path.write_bytes("\n".join(rows).encode())
    assert [p.text for p in read_prompts(path)] == texts


@pytest.mark.parametrize("cut", range(2, len(GOOD) - 2))
def test_a_torn_last_line_is_named_with_its_number_wherever_it_was_torn(tmp_path: Path, cut: int) -> None:
    error = refusal(write(tmp_path, GOOD + GOOD[:cut]))
    assert error.row == 2
    assert "cut off" in error.problem


@pytest.mark.parametrize("torn", [b'{"id": "\xc3', b'{"id": "a\\u00', b'{"id": "a", "label": nul', b'{"id": "a\\'])
def test_a_line_torn_within_a_character_escape_or_word_is_called_cut_off(tmp_path: Path, torn: bytes) -> None:
    assert "cut off" in refusal(write(tmp_path, GOOD + torn)).problem


def test_a_broken_last_line_that_is_not_torn_is_not_called_cut_off(tmp_path: Path) -> None:
    error = refusal(write(tmp_path, GOOD + b'{"id": "b", "text": "a \\e b"}'))
    assert "Invalid \\escape, at column 24" in error.problem


@pytest.mark.parametrize(
    ("row", "problem", "remedy"),
    [
        (b'{"id": "b", "text": "C:\\dir"}', "Invalid \\escape", "one object per line"),
        (b'{"id": "b", "text": "a\tb"}', "Invalid control character", "one object per line"),
        (b"{'id': 'b'}", "double quotes", "one object per line"),
        (b'{"id": "b"} {"id": "c"}', "Extra data", "one object per line"),
        (b'[{"id": "b"}]', "a list instead of an object", "jq -c"),
        (b"[", "not JSON", "jq -c"),
        (b'"text"', "text instead of an object", "one object per line"),
        (POINTER.splitlines()[0], "not JSON", "git lfs pull"),
        (b"null", "null instead of an object", "one object per line"),
        (b'{"id": "b", "text": "caf\xe9"}', "byte 0xe9, 25 bytes into the line, is not UTF-8", "iconv -f latin1"),
        (b'{"id": "b", "text": "x", "reference": NaN}', "NaN", "Correct"),
        (b'{"id": ' + b"[" * 100_000, "not usable JSON", "Correct"),
        (b'{"id": ' + b"1" * 5_000 + b"}", "not usable JSON", "Correct"),
    ],
)
def test_a_line_that_is_no_object_is_named(tmp_path: Path, row: bytes, problem: str, remedy: str) -> None:
    error = refusal(write(tmp_path, GOOD + row.rstrip(b"\n") + b"\n" + GOOD))
    assert problem in error.problem
    assert remedy in error.remedy
    assert ", line 2" in str(error)


def test_a_file_saved_as_utf_16_is_recognised(tmp_path: Path) -> None:
    assert "iconv -f utf-16" in refusal(write(tmp_path, GOOD.decode().encode("utf-16"))).remedy


def test_a_line_without_end_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_lines, "LINE_LIMIT_BYTES", 1 << 20)
    error = refusal(write(tmp_path, GOOD + b"[" + b"0," * (1 << 20)))
    assert "line 2: is longer than 1 MiB" in str(error)


def test_nan_is_accepted_only_where_it_is_allowed() -> None:
    class Refused(Exception):
        pass

    def fail(problem: str, remedy: str) -> Refused:
        return Refused(problem)

    assert json_lines.parse_object(b'{"logprob": -Infinity}', fail, nan=True) == {"logprob": float("-inf")}
    with pytest.raises(Refused, match="Infinity"):
        json_lines.parse_object(b'{"logprob": -Infinity}', fail)


def test_each_line_is_at_its_offset(tmp_path: Path) -> None:
    content = b"\xef\xbb\xbf" + GOOD + b" \n\xef\xbb\xbf" + GOOD
    path = write(tmp_path, content)
    with open(path, "rb") as source:
        found = list(json_lines.read_lines(source.readline, lambda number: ValueError))
    assert [number for number, _, _ in found] == [1, 3]
    assert all(content[offset : offset + len(whole)] == whole == GOOD for _, offset, whole in found)
