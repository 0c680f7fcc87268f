"""Any rows of a prompt file are reached as streaming gives them, and its flaws are named."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orderproof.job.hashing import md5_of
from orderproof.job.spec import GenerateSpec
from orderproof.prompts.ids import id_key
from orderproof.prompts.prompt import PromptError
from orderproof.prompts.prompt_file import read_prompts
from orderproof.prompts.request_defaults import RequestDefaults
from orderproof.prompts.source import PromptSource
from tests.support.tiny_tokenizer import job_of

ROWS = [
    {"id": "a", "text": "one", "label": "x"},
    {"id": "é", "text": "two\u2028lines", "sampling": {"max_tokens": 3}},
    {"id": "c", "text": [{"role": "user", "content": "hi"}], "reference": "4"},
]


def jsonl(folder: Path, lines: list[str], start: bytes = b"") -> Path:
    path = folder / "prompts.jsonl"
    path.write_bytes(start + "\n".join(lines).encode() + b"\n")
    return path


def parquet(folder: Path) -> Path:
    path = folder / "prompts.parquet"
    rows = [{**row, "text": row["text"] if isinstance(row["text"], str) else "hi"} for row in ROWS]
    pq.write_table(
        pa.Table.from_pylist(rows, pa.schema([("id", pa.string()), ("text", pa.string()), ("label", pa.string())])),
        path,
    )
    return path


def test_any_rows_are_the_prompts_that_streaming_gives(tmp_path: Path) -> None:
    path = jsonl(
        tmp_path,
        ["", json.dumps(ROWS[0]), "  \r", *(json.dumps(r, ensure_ascii=False) for r in ROWS[1:])],
        b"\xef\xbb\xbf",
    )
    whole = list(read_prompts(path))
    with PromptSource(path) as source:
        assert (len(source), source.md5) == (3, md5_of(path))
        assert source.read([2, 0, 1, 0]) == [whole[2], whole[0], whole[1], whole[0]]
        assert list(source.ids) == ["a", "é", "c"]


def test_rows_of_parquet_are_reached_like_lines(tmp_path: Path) -> None:
    path = parquet(tmp_path)
    whole = list(read_prompts(path))
    with PromptSource(path) as source:
        assert source.read([2, 0]) == [whole[2], whole[0]]


def test_ids_are_found_in_any_order_and_strangers_are_not(tmp_path: Path) -> None:
    with PromptSource(jsonl(tmp_path, [json.dumps(row) for row in ROWS])) as source:
        assert source.places(["c", "a", "nobody", "é"]).tolist() == [2, 0, -1, 1]


def test_the_first_flaw_is_named_and_the_others_are_counted(tmp_path: Path) -> None:
    path = jsonl(tmp_path, [json.dumps(ROWS[0]), '{"id": "b"}', "nonsense"])
    with pytest.raises(PromptError, match=r"line 2 .id 'b'.*has no `text`.*1 more rows are wrong"):
        PromptSource(path)


def test_an_id_that_is_used_twice_is_named_with_both_lines(tmp_path: Path) -> None:
    path = jsonl(tmp_path, [json.dumps({"id": id, "text": "t"}) for id in "abcb"])
    with pytest.raises(PromptError, match=r"line 4 .id 'b'.*first on line 2"):
        PromptSource(path)


def test_a_file_without_prompts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="holds no prompts"):
        PromptSource(jsonl(tmp_path, [""]))
    with pytest.raises(PromptError, match="does not exist"):
        PromptSource(tmp_path / "nowhere.jsonl")


@pytest.mark.parametrize("edit", [b"", b'{"id": "a", "text": "other"}\n'])
def test_an_edited_file_is_never_read_as_the_old_one(tmp_path: Path, edit: bytes) -> None:
    path = jsonl(tmp_path, [json.dumps(row) for row in ROWS])
    with PromptSource(path) as source:
        source.read([1])
        path.write_bytes(edit)
        with pytest.raises(PromptError, match="was changed while the job ran"):
            source.read([1])


def test_a_file_that_vanishes_is_refused(tmp_path: Path) -> None:
    path = jsonl(tmp_path, [json.dumps(row) for row in ROWS])
    with PromptSource(path) as source:
        path.unlink()
        with pytest.raises(PromptError, match="was changed"):
            source.check_unchanged()


def test_keys_of_ids_never_change() -> None:
    assert id_key("p0") == 17613450280036892301


def tolerant(tmp_path: Path, lines: list[str], share: float) -> RequestDefaults:
    path = jsonl(tmp_path, lines)
    return RequestDefaults(job_of(path, tmp_path, generate=GenerateSpec(tolerated_failures=share)))


@pytest.mark.parametrize("kind", ["jsonl", "json"])
def test_rows_that_are_no_prompts_keep_their_places_as_far_as_they_are_tolerated(tmp_path: Path, kind: str) -> None:
    lines = [json.dumps(ROWS[0]), "no JSON", '{"text": "no id"}', '{"id": "b", "text": null}', json.dumps(ROWS[1])]
    if kind == "json":
        lines[1] = '{"id": 5.5}'
    defaults = tolerant(tmp_path, lines, 0.6)
    path = defaults.job.prompts_path
    if kind == "json":
        path = tmp_path / "prompts.json"
        path.write_text("[" + ", ".join(lines) + "]")
    with PromptSource(path, defaults) as source:
        word = "line" if kind == "jsonl" else "row"
        assert list(source.ids) == ["a", f"{word} 2", f"{word} 3", "b", "é"]
        flaws = [prompt.flaw for prompt in source.read(range(5))]
        assert [flaw is None for flaw in flaws] == [True, False, False, False, True]
        assert "`text` is null" in str(flaws[3])
        assert source.places(["b"]).tolist() == [3]
        assert not source.is_batch_file


def test_more_of_them_are_refused_with_the_share_that_would_do(tmp_path: Path) -> None:
    lines = [json.dumps({"id": f"p{k}", "text": "x"}) for k in range(18)]
    defaults = tolerant(tmp_path, ["{", *lines, "{"], 0.05)
    with pytest.raises(PromptError, match=r"line 1: .*go on without such rows: set `tolerated_failures` to 0\.1$"):
        PromptSource(defaults.job.prompts_path, defaults)


def test_a_file_that_is_cut_off_is_never_tolerated(tmp_path: Path) -> None:
    defaults = tolerant(tmp_path, [json.dumps(ROWS[0])], 1)
    path = defaults.job.prompts_path
    path.write_bytes(path.read_bytes() + b'{"id": "b", "te')
    with pytest.raises(PromptError, match="the last line is cut off"):
        PromptSource(path, defaults)


def test_an_id_is_used_once_also_by_a_row_that_is_no_prompt(tmp_path: Path) -> None:
    defaults = tolerant(tmp_path, [json.dumps(ROWS[0]), '{"id": "a", "text": null}'], 1)
    with pytest.raises(PromptError, match=r"line 2 .*duplicate id, first on line 1"):
        PromptSource(defaults.job.prompts_path, defaults)
