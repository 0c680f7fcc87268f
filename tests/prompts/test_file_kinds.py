"""A file's name says what it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from orderproof.prompts.file_kinds import KINDS, kind_of, name_of, row_word
from orderproof.prompts.row_formats import FORMATS


@pytest.mark.parametrize(
    ("name", "kind", "word"),
    [
        ("p.jsonl", ".jsonl", "line"),
        ("p.JSONL.GZ", ".jsonl", "line"),
        ("p.json.zst", ".json", "row"),
        ("p.csv", ".csv", "row"),
        ("train-*.parquet", ".parquet", "row"),
        ("p.parquet.gz", None, "line"),
        ("p.gz", None, "line"),
        ("p.txt", None, "line"),
        ("standard input", None, "line"),
    ],
)
def test_the_kind_of_a_file(name: str, kind: str | None, word: str) -> None:
    assert (kind_of(Path(name)), row_word(Path(name))) == (kind, word)


def test_an_address_keeps_its_slashes_in_messages() -> None:
    assert name_of(Path("s3://bucket/p.jsonl")) == "s3://bucket/p.jsonl"
    assert name_of(Path("/data/p.jsonl")) == "/data/p.jsonl"


def test_each_kind_of_file_has_a_reader() -> None:
    assert set(KINDS) == set(FORMATS)
