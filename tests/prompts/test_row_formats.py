"""The same rows in any format are the same prompts, and a damaged file is named."""

from __future__ import annotations

import csv
import gzip
import io
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from orderproof.prompts.prompt import Prompt
from orderproof.prompts.prompt_file import read_prompts
from orderproof.prompts.source import PromptSource
from tests.support.prompt_files import CHAT, line, refusal, write

ROWS = [
    {"id": "a", "text": 'one, "two"\nthree', "label": "x", "sampling": {"max_tokens": 3}},
    {"id": "b", "text": "vier €", "label": "y", "sampling": {"max_tokens": 4}},
]


def zstd(content: bytes) -> bytes:
    sink = io.BytesIO()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
        stream.flush()
        return sink.getvalue() if sink.closed else _end(stream, sink)


def _end(stream: Any, sink: io.BytesIO) -> bytes:
    whole: list[bytes] = []
    sink.close = lambda: whole.append(sink.getvalue())  # type: ignore[method-assign]
    stream.close()
    return whole[0]


def as_lines(rows: list[dict[str, Any]]) -> bytes:
    return b"".join(line(**row) for row in rows)


def as_csv(rows: list[dict[str, Any]]) -> bytes:
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, rows[0].keys())
    table.writeheader()
    table.writerows({**row, "sampling": json.dumps(row["sampling"])} for row in rows)
    return text.getvalue().encode()


KINDS: dict[str, Callable[[list[dict[str, Any]]], bytes]] = {
    "p.jsonl": as_lines,
    "p.jsonl.gz": lambda rows: gzip.compress(as_lines(rows[:1])) + gzip.compress(as_lines(rows[1:])),
    "p.jsonl.zst": lambda rows: zstd(as_lines(rows[:1])) + zstd(as_lines(rows[1:])),
    "p.json": lambda rows: json.dumps(rows, indent=1).encode(),
    "lines.json": as_lines,
    "p.json.gz": lambda rows: gzip.compress(b"\xef\xbb\xbf\n" + json.dumps(rows).encode()),
    "p.csv": as_csv,
    "mark.csv": lambda rows: b"\xef\xbb\xbf" + as_csv(rows),
    "p.csv.zst": lambda rows: zstd(as_csv(rows)),
}


@pytest.mark.parametrize("name", KINDS)
def test_the_same_rows_are_the_same_prompts(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, KINDS[name](ROWS), name)
    expected = [
        Prompt(str(row["id"]), str(row["text"]), str(row["label"]), row["sampling"], line=number)  # type: ignore[arg-type]
        for number, row in enumerate(ROWS, 1)
    ]
    assert list(read_prompts(path)) == expected
    with PromptSource(path) as source:
        assert source.read([1, 0]) == expected[::-1]


def test_a_chat_in_csv_is_json_text(tmp_path: Path) -> None:
    rows = [{"id": "a", "messages": json.dumps(CHAT), "sampling": None}]
    (prompt,) = read_prompts(write(tmp_path, as_csv(rows), "p.csv"))
    assert (list(prompt.text), prompt.sampling) == (CHAT, None)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("p.jsonl.gz", gzip.compress(as_lines(ROWS))[:-6], "cannot be read: Compressed file ended"),
        ("p.jsonl.gz", as_lines(ROWS), "cannot be read: Not a gzipped file"),
        ("p.jsonl.zst", zstd(as_lines(ROWS))[:-6], "cannot be read: Truncated"),
        ("p.jsonl.zst", as_lines(ROWS), "cannot be read: ZSTD"),
        ("p.jsonl.gz", b"", "is empty"),
        ("p.json", b"[]", "holds no prompts"),
        ("p.json", b"", "is empty"),
        ("p.json", b"[1]", "item 1 is not an object"),
        ("p.json", '[{"id": "é"}]'.encode("latin1"), "byte 0xe9 is not UTF-8"),
        ("p.csv", b"id,text\n", "holds no prompts"),
        ("p.csv", b"id,text\na,x\nb\n", "has fewer fields"),
        ("p.csv", b"id,text\na,x,y\n", "has more fields"),
        ("p.csv", b'id,text\na,"x\n', "not readable as CSV"),
        ("p.csv", b"id,text\na,\n", "`text` is null"),
        ("p.csv", b"id,text,sampling\na,x,hot\n", "`sampling` must be an object, not text"),
        ("p.csv", "id,text\na,é\n".encode("latin1"), "byte 0xe9 is not UTF-8"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, name: str, content: bytes, problem: str) -> None:
    assert problem in refusal(write(tmp_path, content, name)).problem


@pytest.mark.parametrize("name", ["p.json", "p.csv", "p.jsonl.gz", "p.jsonl.zst"])
def test_a_large_file_is_read_in_constant_memory(tmp_path: Path, name: str) -> None:
    rows = [{"id": str(i), "text": f"{i} " + "x" * 1000, "sampling": None} for i in range(20_000)]
    path = write(tmp_path, KINDS[name](rows), name)
    del rows
    tracemalloc.start()
    assert sum(1 for _ in read_prompts(path)) == 20_000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 12_000_000  # of 20 MB
