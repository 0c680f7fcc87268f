"""An array is read object by object, and whatever else it holds is named."""

from __future__ import annotations

import io
import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderproof.prompts import json_array
from orderproof.prompts.json_array import read_array


class Refused(Exception):
    pass


def fail(problem: str, remedy: str, **_: Any) -> Refused:
    return Refused(problem)


def read(text: str, piece: int = 1) -> list[dict[str, Any]]:
    """With a reader that gives few characters at a time."""
    source = io.StringIO(text)
    return [value for _, value in read_array(lambda _: source.read(piece), fail)]


VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner))
OBJECTS = st.lists(st.dictionaries(st.text(), VALUES, max_size=3), max_size=5)


@given(OBJECTS, st.sampled_from([None, 1]), st.integers(1, 40))
def test_whatever_json_writes_comes_back(rows: list[dict[str, Any]], indent: int | None, piece: int) -> None:
    assert read(json.dumps(rows, indent=indent) + "\n", piece) == rows


@pytest.mark.parametrize("text", ["[", "[ ", '[{"a": 1}', '[{"a": 1},', '[{"a": "x', '[{"a": tr', '[{"a": 1} '])
def test_an_array_without_end_is_called_cut_off(text: str) -> None:
    with pytest.raises(Refused, match="cut off"):
        read(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[1]", "item 1 is not an object"),
        ('[{"a": 1}, null]', "item 2 is not an object"),
        ('[{"a": 1},]', "item 2 is not an object"),
        ('[{"a": 1} {"a": 2}]', "item 1 is followed by neither"),
        ('[{"a": 1}] {"a": 2}', "goes on after the end"),
        ("[{'a': 1, 'b': 2, 'c': 3}]", "item 1 is not JSON"),
        ('[{"a": NaN}]', "item 1 is not usable JSON"),
        ('[{"a": ' + "[" * 100_000, "item 1 is not usable JSON"),
    ],
)
def test_what_is_no_array_of_objects_is_named(text: str, problem: str) -> None:
    with pytest.raises(Refused, match=problem):
        read(text, 1 << 20)


def test_an_item_without_end_is_refused_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_array.json_lines, "LINE_LIMIT_BYTES", 1000)
    pieces = itertools.chain(['[{"a": "'], itertools.repeat("x" * 100))
    with pytest.raises(Refused, match="longer"):
        list(read_array(lambda _: next(pieces), fail))
