"""Prompt files are read as they were meant, or refused in one sentence that says where and what to do."""

from __future__ import annotations

import hashlib
import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderproof.job.hashing import md5_of
from orderproof.prompts import json_lines
from orderproof.prompts.prompt import Prompt, PromptError
from orderproof.prompts.prompt_file import read_prompts
from orderproof.prompts.tokenization import TokenizedPrompts, tokenize
from tests.support.tiny_tokenizer import TEMPLATE, job_of, save_model

GOOD = b'{"id": "a", "text": "one"}\n'
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_model(folder, TEMPLATE)
    return folder


def write(tmp_path: Path, content: bytes, name: str = "prompts.jsonl") -> Path:
    path = tmp_path / name
    path.write_bytes(content)
    return path


def parquet(tmp_path: Path, **columns: Any) -> Path:
    path = tmp_path / "prompts.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=2)
    return path


def line(**fields: Any) -> bytes:
    return json.dumps(fields).encode() + b"\n"


def refusal(path: Path) -> PromptError:
    with pytest.raises(PromptError) as caught:
        list(read_prompts(path))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    return caught.value


# Read rightly


def test_every_field_is_read_with_the_number_of_its_line(tmp_path: Path) -> None:
    row = line(id="b", text="two", label="code", sampling={"max_tokens": 5}, reference="4", source="kept out")
    assert list(read_prompts(write(tmp_path, GOOD + b"\n" + row))) == [
        Prompt("a", "one", line=1),
        Prompt("b", "two", "code", {"max_tokens": 5}, "4", line=3),
    ]


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf" + GOOD,
        GOOD.replace(b"\n", b"\r\n"),
        b"\xef\xbb\xbf" + GOOD.replace(b"\n", b"\r\n") + b"\r\n",
        GOOD.rstrip(),
        b"\n  \n" + GOOD + b" \t\r\n\n",
    ],
    ids=["byte order mark", "CRLF", "both and a blank line", "no newline at the end", "blank lines"],
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


def test_whole_numbers_become_ids_labels_and_references_in_decimal_text(tmp_path: Path) -> None:
    (prompt,) = read_prompts(write(tmp_path, line(id=7, text="one", label=3, reference=2.5)))
    assert (prompt.id, prompt.label, prompt.reference) == ("7", "3", "2.5")


def test_null_and_empty_optional_fields_are_absent(tmp_path: Path) -> None:
    (prompt,) = read_prompts(write(tmp_path, line(id="a", text="one", label="", sampling=None, reference=None)))
    assert (prompt.label, prompt.sampling, prompt.reference) == (None, None, None)


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


def test_the_hash_is_that_of_the_bytes(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    assert md5_of(path) == hashlib.md5(GOOD).hexdigest()


# Refused in one sentence


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
        (b"null", "null instead of an object", "one object per line"),
        (b'{"id": "b", "text": "caf\xe9"}', "byte 0xe9, 25 bytes into the line, is not UTF-8", "iconv -f latin1"),
        (b'{"id": "b", "text": "x", "reference": NaN}', "NaN", "Correct"),
        (b'{"id": ' + b"[" * 100_000, "not usable JSON", "Correct"),
        (b'{"id": ' + b"1" * 5_000 + b"}", "not usable JSON", "Correct"),
        (line(text="x"), "has no `id`; there are 'text'", "its own id"),
        (line(id=None, text="x"), "has no `id`", "its own id"),
        (line(id="", text="x"), "`id` is empty", "its own id"),
        (line(id=" ", text="x"), "`id` is empty", "its own id"),
        (line(id="a\tb", text="x"), "control character", "printable"),
        (line(id="a\x7f", text="x"), "control character", "printable"),
        (line(id="a\u2028b", text="x"), "control character", "printable"),
        (b'{"id": "\\ud800", "text": "x"}', "control character", "printable"),
        (line(id=1.5, text="x"), "not a number", "its own id"),
        (line(id=True, text="x"), "not true or false", "its own id"),
        (line(id=["a"], text="x"), "not a list", "its own id"),
        (line(id="b", text=None), "`text` is null", "leave the row out"),
        (line(id="b", prompt="x"), "has no `text`; there are 'id', 'prompt'", "leave the row out"),
        (line(id="b", text=""), "`text` is empty", "leave the row out"),
        (line(id="b", text=" \n"), "`text` is empty", "leave the row out"),
        (line(id="b", text=5), "`text` must be text or a list of messages, not a number", "JSON string"),
        (line(id="b", text="a\0b"), "`text` holds a NUL character at character 2", "Remove"),
        (b'{"id": "b", "text": "a\\udc00"}', "half of a surrogate pair at character 2", "Remove"),
        (line(id="b", text=[]), "messages hold no text", "role"),
        (line(id="b", text=[{"role": "user", "content": " "}]), "messages hold no text", "role"),
        (line(id="b", text=["x"]), "message 1 is text", "role"),
        (line(id="b", text=[CHAT[0], {"role": "user"}]), "`content` of message 2 must be text, not null", "role"),
        (line(id="b", text=[{"content": "x"}]), "`role` of message 1 must be text", "role"),
        (line(id="b", text=[{"role": "user", "content": [{"type": "text"}]}]), "not a list", "role"),
        (line(id="b", text=[{"role": "user", "content": "a\0"}]), "`content` of message 1 holds a NUL", "Remove"),
        (line(id="b", text="x", lable="c"), "`lable` is not a field: did you mean 'label'", "Rename"),
        (line(id="b", Text="x"), "did you mean 'text'", "Rename"),
        (line(id="b", text="x", refrence="c"), "did you mean 'reference'", "Rename"),
        (line(id="b", text="x", label=["c"]), "`label` must be text or a number, not a list", "Correct"),
        (line(id="b", text="x", reference={}), "`reference` must be text or a number, not an object", "Correct"),
        (line(id="b", text="x", sampling="hot"), "`sampling` must be an object, not text", "SamplingParams"),
        (line(id="b", text="x", sampling={"max_tokens": 0}), "whole number from 1 to 2147483647, not '0'", "Correct"),
        (line(id="b", text="x", sampling={"max_tokens": True}), "whole number from 1", "Correct"),
        (line(id="b", text="x", sampling={"n": 0}), "`sampling.n` must be a whole number from 1 to", "Correct"),
        (line(id="b", text="x", sampling={"max_tokens": 2**70}), "whole number from 1 to 2147483647", "Correct"),
        (line(id="b", text="x", sampling={"n": None}), "`sampling.n` must be a whole number", "Correct"),
    ],
)
def test_a_row_that_is_no_prompt_is_named_with_its_line(tmp_path: Path, row: bytes, problem: str, remedy: str) -> None:
    error = refusal(write(tmp_path, GOOD + row.rstrip(b"\n") + b"\n" + GOOD))
    assert problem in error.problem
    assert remedy in error.remedy
    assert ", line 2" in str(error)


def test_an_error_names_the_id_where_there_is_one_and_never_the_text(tmp_path: Path) -> None:
    error = refusal(write(tmp_path, line(id="private-7", text="secret\0words")))
    assert "(id 'private-7')" in str(error)
    assert "secret" not in str(error)


def test_a_free_field_that_resembles_one_that_is_there_is_no_mistake(tmp_path: Path) -> None:
    row = line(id="a", text="one", ids=[1], texts=["one"], label="x", labels=["x"], context="free", source="free")
    assert len(list(read_prompts(write(tmp_path, row)))) == 1


def test_a_file_saved_as_utf_16_is_recognised(tmp_path: Path) -> None:
    assert "iconv -f utf-16" in refusal(write(tmp_path, GOOD.decode().encode("utf-16"))).remedy


def test_a_line_without_end_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_lines, "LINE_LIMIT_BYTES", 1 << 20)
    error = refusal(write(tmp_path, GOOD + b"[" + b"0," * (1 << 20)))
    assert "line 2: is longer than 1 MiB" in str(error)


@pytest.mark.parametrize("name", ["prompts.csv", "prompts.jsonl.gz", "prompts", "prompts.json"])
def test_an_unknown_kind_of_file_is_refused_before_it_is_opened(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, GOOD, name)
    with pytest.raises(PromptError, match=r"unknown kind .* named \.jsonl, or Parquet"):
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
    error = refusal(parquet(tmp_path, id=["a", "b"], prompt=["x", "y"]))
    assert error.problem == "has no column `text`; there are 'id', 'prompt'"
    assert error.row is None


@pytest.mark.parametrize(
    ("columns", "where"),
    [
        ({"id": ["a", None], "text": ["x", "y"]}, "row 2: has no `id`"),
        ({"id": ["a", "b"], "text": ["x", None]}, "row 2 (id 'b'): `text` is null"),
        ({"id": ["a", "b"], "text": [b"x", b"y"]}, "row 1 (id 'a'): `text` must be text"),
        ({"id": [1.0, 2.0], "text": ["x", "y"]}, "row 1: `id` must be text or a whole number"),
        ({"id": pa.array([], pa.string()), "text": pa.array([], pa.string())}, "holds no prompts"),
        ({"id": ["a"], "text": ["x"], "lable": ["y"]}, "did you mean 'label'"),
    ],
)
def test_rows_of_parquet_are_named_by_their_number(tmp_path: Path, columns: dict[str, Any], where: str) -> None:
    assert where in str(refusal(parquet(tmp_path, **columns)))


def test_a_listener_hears_of_every_flaw_and_reading_goes_on(tmp_path: Path) -> None:
    flaws: list[PromptError] = []
    content = GOOD + b"{\n" + line(id="b", text=None) + line(text="x") + line(id="c", text="y") + b'{"id'
    kept = list(read_prompts(write(tmp_path, content), flaws.append))
    assert [p.id for p in kept] == ["a", "c"]
    assert [(flaw.row, flaw.flaw) for flaw in flaws] == [(2, "row"), (3, "text"), (4, "id"), (6, "row")]


# Tokenized


def tokenized(model: Path, tmp_path: Path, content: bytes, **changes: Any) -> TokenizedPrompts:
    path = write(tmp_path, content)
    return tokenize(job_of(path, model, **changes), read_prompts(path))


def test_plain_text_gets_the_tokenizers_special_tokens(model: Path, tmp_path: Path) -> None:
    found = tokenized(model, tmp_path, line(id="a", text="hé", label="x", reference="r") + line(id="b", text="yo"))
    assert (len(found), found.ids, found.labels, found.references) == (2, ["a", "b"], ["x", None], ["r", None])
    assert found.lengths.tolist() == [4, 3]  # <s> h 0xc3 0xa9, <s> y o
    assert (found.tokens.dtype, found.offsets.dtype) == (np.int32, np.int64)
    assert found.token_ids(1)[0] == 0
    assert found.texts(0) == "hé"
    assert found.lines.tolist() == [1, 2]


def test_chat_is_rendered_by_the_models_template_which_brings_its_own_special_tokens(
    model: Path, tmp_path: Path
) -> None:
    content = line(id="a", text=CHAT) + line(id="b", text="plain")
    found = tokenized(model, tmp_path, content, chat_template_args={"mood": "calm"})
    assert found.texts(0) == "<s>[system]Be brief.[user]Hello[assistant]calm"
    assert found.token_ids(0).count(0) == 1
    assert found.lengths.tolist() == [len("[system]Be brief.[user]Hello[assistant]calm") + 1, 6]


def test_tokens_are_those_of_one_prompt_at_a_time(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoTokenizer

    monkeypatch.setattr("orderproof.prompts.tokenization.BATCH_PROMPTS", 3)
    texts: list[Any] = [CHAT if i % 3 == 1 else "é" * (i + 1) for i in range(8)]
    found = tokenized(model, tmp_path, b"".join(line(id=i, text=text) for i, text in enumerate(texts)))
    alone = AutoTokenizer.from_pretrained(model)
    for i, text in enumerate(texts):
        expected = (
            alone(text)["input_ids"]
            if isinstance(text, str)
            else alone.apply_chat_template(text, add_generation_prompt=True, return_dict=False)
        )
        assert found.token_ids(i) == expected


def test_some_of_the_prompts_are_taken_whole_and_in_the_order_asked(model: Path, tmp_path: Path) -> None:
    rows = [line(id=i, text="x" * (i + 1), label=i, reference=i, sampling={"seed": i}) for i in range(6)]
    found = tokenized(model, tmp_path, b"".join(rows))
    taken = found.take(np.array([4, 0, 5]))
    assert (taken.ids, taken.labels, taken.references) == (["4", "0", "5"], ["4", "0", "5"], ["4", "0", "5"])
    assert taken.lines.tolist() == [5, 1, 6]
    assert taken.samplings[0] == {"seed": 4}
    assert [taken.token_ids(k) for k in range(3)] == [found.token_ids(i) for i in (4, 0, 5)]
    assert [taken.texts(k) for k in range(3)] == ["xxxxx", "x", "xxxxxx"]
    assert len(found.take(np.array([], np.int64))) == 0


def test_chat_for_a_tokenizer_without_a_template_is_refused_by_line(tmp_path: Path) -> None:
    save_model(tmp_path / "bare")
    with pytest.raises(PromptError, match=r"line 2 \(id 'b'\): .*no chat template\. Give plain text"):
        tokenized(tmp_path / "bare", tmp_path, GOOD + line(id="b", text=CHAT))


def test_messages_that_the_template_refuses_are_named(model: Path, tmp_path: Path) -> None:
    with pytest.raises(PromptError, match=r"line 1 \(id 'b'\): the model's chat template refuses .*no tools here"):
        tokenized(model, tmp_path, line(id="b", text=[{"role": "tool", "content": "x"}]))


def test_a_missing_model_says_how_to_fetch_one(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match=r"absent: the folder .* does not exist\. Fetch the model with: hf download"):
        tokenized(tmp_path / "absent", tmp_path, GOOD)


@pytest.mark.parametrize(
    "files",
    [{}, {"config.json": '{"model_type": "qwen3_moe"}'}, {"config.json": "{}", "tokenizer.json": "{"}],
    ids=["nothing", "no tokenizer", "a broken tokenizer"],
)
def test_a_folder_without_a_usable_tokenizer_is_refused(tmp_path: Path, files: dict[str, str]) -> None:
    (tmp_path / "model").mkdir()
    for name, content in files.items():
        (tmp_path / "model" / name).write_text(content)
    with pytest.raises(PromptError, match=r"model: holds no .*tokenizer.*hf download"):
        tokenized(tmp_path / "model", tmp_path, GOOD)


def test_a_model_that_would_run_code_of_its_own_is_refused(tmp_path: Path) -> None:
    folder, proof = tmp_path / "model", tmp_path / "ran"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "own", "auto_map": {"AutoTokenizer": ["own.Own", null]}}')
    (folder / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["own.Own", null]}}')
    (folder / "own.py").write_text(f"open({str(proof)!r}, 'w')\nclass Own: pass\n")
    with pytest.raises(PromptError, match="holds no usable tokenizer"):
        tokenized(folder, tmp_path, GOOD)
    assert not proof.exists()
