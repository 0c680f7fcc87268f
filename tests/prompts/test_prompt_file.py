"""Prompt files of either kind are streamed, and what is none is refused."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orderproof.prompts.prompt import PromptError
from orderproof.prompts.prompt_file import read_prompts
from tests.support.lfs import POINTER
from tests.support.prompt_files import GOOD, line, parquet, refusal, write


def test_parquet_is_read_like_json_lines_across_its_row_groups(tmp_path: Path) -> None:
    path = parquet(tmp_path, id=[1, 2, 3], text=["one", "two", "three"], label=["x", None, "z"], extra=[0, 0, 0])
    assert [(p.id, p.text, p.label, p.line) for p in read_prompts(path)] == [
        ("1", "one", "x", 1),
        ("2", "two", None, 2),
        ("3", "three", "z", 3),
    ]


def test_members_that_a_parquet_struct_lacks_are_absent_and_not_null(tmp_path: Path) -> None:
    messages = [[{"role": "user", "content": "Hi"}], [{"role": "user", "content": "Ho", "name": "Eve"}]]
    path = parquet(tmp_path, id=["a", "b"], text=messages, sampling=[{"max_tokens": 4}, {"temperature": 0.5}])
    first, second = read_prompts(path)
    assert (first.text, first.sampling) == (({"role": "user", "content": "Hi"},), {"max_tokens": 4})
    assert second.sampling == {"temperature": 0.5}


def test_null_members_are_left_out_at_every_depth_and_nulls_in_lists_are_kept(tmp_path: Path) -> None:
    samplings = [
        {"logit_bias": {"5": 1.0}, "structured_outputs": {"json": {"properties": {"a": {"type": "string"}}}}},
        {"logit_bias": {"7": 2.0}, "structured_outputs": {"json": {"properties": {"b": {"enum": [1, None]}}}}},
        {},
    ]
    path = parquet(tmp_path, id=["a", "b", "c"], text=["x", "y", "z"], sampling=samplings)
    assert pq.read_table(path).to_pylist()[0]["sampling"]["logit_bias"] == {"5": 1.0, "7": None}
    assert [prompt.sampling for prompt in read_prompts(path)] == [*samplings[:2], None]


def test_a_column_of_maps_is_read_as_objects(tmp_path: Path) -> None:
    biases = pa.array([[("5", 1.0)], [("7", None)]], pa.map_(pa.string(), pa.float64()))
    path = parquet(
        tmp_path, id=["a", "b"], text=["x", "y"], sampling=pa.StructArray.from_arrays([biases], ["logit_bias"])
    )
    assert [prompt.sampling for prompt in read_prompts(path)] == [{"logit_bias": {"5": 1.0}}, {"logit_bias": {}}]


def test_a_prompt_of_ten_megabytes_is_read(tmp_path: Path) -> None:
    (prompt,) = read_prompts(write(tmp_path, line(id="a", text="long " * 2_000_000)))
    assert len(prompt.text) == 10_000_000


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_large_file_is_read_in_constant_memory(tmp_path: Path, suffix: str) -> None:
    texts = [f"{i} " + "x" * 1000 for i in range(20_000)]
    if suffix == "parquet":
        path = tmp_path / "prompts.parquet"
        pq.write_table(pa.table({"id": range(len(texts)), "text": texts}), path)
    else:
        path = write(tmp_path, b"".join(line(id=i, text=text) for i, text in enumerate(texts)))
    del texts
    tracemalloc.start()
    arrow_before = pa.total_allocated_bytes()
    count = arrow = 0
    for _ in read_prompts(path):
        count += 1
        arrow = max(arrow, pa.total_allocated_bytes() - arrow_before)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 20_000
    assert peak + arrow < 12_000_000  # of 20 MB


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is empty"),
        (b"\xef\xbb\xbf", "no prompts"),
        (b"  \n\t\n\r\n", "only blank lines"),
        (b"   ", "only blank lines"),
    ],
)
def test_a_file_without_prompts_is_named_as_such(tmp_path: Path, content: bytes, problem: str) -> None:
    error = refusal(write(tmp_path, content))
    assert problem in error.problem
    assert error.row is None
    assert '{"id"' in error.remedy


@pytest.mark.parametrize("name", ["prompts.txt", "prompts.parquet.gz", "prompts", "prompts.gz"])
def test_an_unknown_kind_of_file_is_refused_before_it_is_opened(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, GOOD, name)
    with pytest.raises(PromptError, match=r"unknown kind .* named \.jsonl, or another file of"):
        read_prompts(path)


def test_a_missing_file_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match=r"absent\.jsonl: does not exist"):
        read_prompts(tmp_path / "absent.jsonl")


def test_a_folder_or_a_link_to_nowhere_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(PromptError, match="is a folder"):
        read_prompts(tmp_path / "folder.jsonl")
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "nowhere")
    with pytest.raises(PromptError, match="is not a file"):
        read_prompts(tmp_path / "link.jsonl")


def test_parquet_that_is_none_or_was_torn_is_refused(tmp_path: Path) -> None:
    whole = parquet(tmp_path, id=["a"] * 100, text=["x"] * 100).read_bytes()
    for content in (b"", b"PAR1", GOOD, whole[: len(whole) // 2]):
        assert "not readable as Parquet" in refusal(write(tmp_path, content, "torn.parquet")).problem


def test_parquet_damaged_inside_is_refused_where_reading_stopped(tmp_path: Path) -> None:
    path = tmp_path / "prompts.parquet"
    texts = [f"prompt {i}" for i in range(5000)]
    pq.write_table(pa.table({"id": range(5000), "text": texts}), path, row_group_size=2500, compression="zstd")
    content = bytearray(path.read_bytes())
    start = pq.ParquetFile(path).metadata.row_group(1).column(1).data_page_offset
    content[start : start + 400] = b"\xff" * 400
    path.write_bytes(content)
    assert "after row 2048" in refusal(path).problem


def test_parquet_without_a_needed_column_is_refused_once_and_not_by_row(tmp_path: Path) -> None:
    error = refusal(parquet(tmp_path, id=["a", "b"], input=["x", "y"]))
    assert error.problem == "has no column `text`; there are 'id', 'input'"
    assert error.row is None


@pytest.mark.parametrize(
    ("columns", "where"),
    [
        ({"id": ["a", None], "text": ["x", "y"]}, "row 2: has no `id`"),
        ({"id": ["a", "b"], "text": ["x", None]}, "row 2 (id 'b'): `text` is null"),
        ({"id": ["a", "b"], "text": [b"x", b"y"]}, "row 1 (id 'a'): `text` must be text"),
        ({"id": [1.0, 2.0], "text": ["x", "y"]}, "row 1: `id` must be text or a whole number"),
        ({"id": pa.array([], pa.string()), "text": pa.array([], pa.string())}, "holds no prompts"),
    ],
)
def test_rows_of_parquet_are_named_by_their_number(tmp_path: Path, columns: dict[str, Any], where: str) -> None:
    assert where in str(refusal(parquet(tmp_path, **columns)))


def test_a_listener_hears_of_every_flaw_and_reading_goes_on(tmp_path: Path) -> None:
    flaws: list[PromptError] = []
    content = GOOD + b"{\n" + line(id="b", text=None) + line(text="x") + line(id="c", text="y") + b'{"id'
    kept = list(read_prompts(write(tmp_path, content), flaws.append))
    assert [p.id for p in kept] == ["a", "c"]
    assert [(flaw.row, flaw.flaw) for flaw in flaws] == [(2, "row"), (3, "text"), (4, "id"), (6, "end")]


@pytest.mark.parametrize("name", ["prompts.jsonl", "prompts.parquet"])
def test_prompts_that_git_lfs_has_not_fetched_are_refused(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, POINTER, name)
    with pytest.raises(PromptError, match=r"Git LFS pointer.*git lfs pull"):
        read_prompts(path)
