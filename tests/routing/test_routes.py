"""Routes come back from their file as they were written; damage and other owners are detected."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orderproof.job.model import ModelFacts, MoeFacts
from orderproof.routing import routes, routes_writer
from orderproof.routing.errors import RoutingError
from orderproof.routing.experts import frequencies
from orderproof.routing.routes import Routes, frequency_matrix, open_routes
from orderproof.routing.routes_writer import write_routes
from tests.support.routes_maker import RECORD, experts_of, make_routes

MODEL = ModelFacts("models/m", RECORD.model, "Qwen3MoeForCausalLM", 512, MoeFacts(64, 4, 4, 786432), toy=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "routes.parquet"


# -- written and read --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("experts", "dtype"), [(64, "u1"), (256, "u1"), (300, "<u2")])
def test_what_was_written_is_read_again(path: Path, experts: int, dtype: str) -> None:
    written = make_routes(path, 9, experts=experts)
    with Routes(path) as read:
        assert read.ids == tuple(written)
        assert read.prompt_tokens.tolist() == list(range(1, 10))
        assert read.decode_tokens.tolist() == list(range(9))
        for k in np.random.default_rng(0).permutation(9).tolist():
            assert read[k].experts.dtype == np.dtype(dtype)
            assert np.array_equal(read[k].experts, written[f"p{k}"])
            assert np.array_equal(read[k].prefill, written[f"p{k}"][: k + 1])
            assert np.array_equal(read[k].decode, written[f"p{k}"][k + 1 :])
            assert read.place[read[k].prompt_id] == k
        assert [prompt.prompt_id for prompt in read] == list(read.ids)


def test_the_record_comes_back_with_what_was_missing_and_why(path: Path) -> None:
    record = RECORD.model_copy(update={"capture": {"mode": "eager", "sample": 2}, "missing": {"p7": "too long"}})
    with write_routes(path, record) as writer:
        writer.add("p1", 1, experts_of(3, record, 0))
        writer.miss("p2", "preempted")
    read = Routes(path)
    assert read.record == record.model_copy(update={"missing": {"p7": "too long", "p2": "preempted"}})
    assert "p2" not in read.place


def test_one_prompt_more_than_a_group_holds_begins_another_and_groups_are_kept_within_their_bytes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes_writer, "GROUP_PROMPTS", 4)
    monkeypatch.setattr(routes, "CACHE_BYTES", 2000)
    written = make_routes(path, 30)
    read = Routes(path)
    sizes = [read._file.metadata.row_group(k).num_rows for k in range(read._file.metadata.num_row_groups)]
    assert sizes == [4] * 7 + [2]
    for k in np.random.default_rng(0).permutation(30).tolist() * 2:
        assert np.array_equal(read[k].experts, written[f"p{k}"])
        kept = [sum(prompt.experts.nbytes for prompt in group) for group in read._groups.values()]
        assert kept
        assert sum(kept) <= 2000 or len(kept) == 1


def test_a_group_holds_no_more_bytes_than_allowed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes_writer, "GROUP_BYTES", 500)
    written = make_routes(path, 12)
    read = Routes(path)
    ends = read._ends.tolist()
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        assert end - start == 1 or sum(written[f"p{k}"].size for k in range(start, end)) <= 500


def test_nothing_is_left_of_a_file_whose_writer_failed(path: Path) -> None:
    def fail() -> None:
        with write_routes(path, RECORD) as writer:
            writer.add("p1", 1, experts_of(3, RECORD, 0))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list(path.parent.iterdir()) == []


def test_no_prompts_are_routes_too(path: Path) -> None:
    make_routes(path, 0)
    with Routes(path) as read:
        assert (len(read), list(read), frequency_matrix(read, "prefill").shape) == (0, [], (0, 256))
        with pytest.raises(IndexError):
            read[0]


def test_frequencies_of_prompts_are_those_of_their_rows(path: Path) -> None:
    written = make_routes(path, 5)
    read = Routes(path)
    for part, rows in (("prefill", lambda k: slice(k + 1)), ("decode", lambda k: slice(k + 1, None))):
        matrix = frequency_matrix(read, part)  # type: ignore[arg-type]
        assert matrix.dtype == np.float32
        for k in range(5):
            assert np.array_equal(matrix[k], frequencies(written[f"p{k}"][rows(k)].astype(np.uint8), 64))


# -- refused -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("experts", "prompt_tokens", "message"),
    [
        (np.zeros((3, 4, 4), int), 1, "'p' *: a token chose the same expert twice"),
        (experts_of(3, RECORD, 0) + 1 - 1 + 64 * (np.arange(4) == 2), 1, "a layer has 64"),
        (experts_of(3, RECORD, 0) - 64 * (np.arange(4) == 2), 1, "experts -"),
        (experts_of(3, RECORD, 0)[:, :3], 1, r"shape \(3, 3, 4\), expected 1 prompt tokens × 4 layers × top-4"),
        (experts_of(3, RECORD, 0), 4, "4 prompt tokens"),
        (experts_of(3, RECORD, 0), 0, "0 prompt tokens"),
    ],
)
def test_invalid_routes_are_not_written(path: Path, experts: Any, prompt_tokens: int, message: str) -> None:
    def write() -> None:
        with write_routes(path, RECORD) as writer:
            writer.add("p", prompt_tokens, experts)

    with pytest.raises(RoutingError, match=message):
        write()
    assert not path.exists()


def test_a_prompt_is_written_once(path: Path) -> None:
    def write() -> None:
        with write_routes(path, RECORD) as writer:
            for _ in range(2):
                writer.add("p", 1, experts_of(3, RECORD, 0))

    with pytest.raises(RoutingError, match="'p' was captured twice"):
        write()


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_file_cut_off_is_named_with_what_to_do(path: Path, share: float) -> None:
    make_routes(path, 20)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(RoutingError, match=r"routes\.parquet cannot be read as routes: .*`orderproof capture JOB`"):
        Routes(path)


def test_a_missing_file_says_what_makes_it(path: Path) -> None:
    with pytest.raises(RoutingError, match=r"does not exist.*orderproof capture JOB"):
        Routes(path)


def test_a_byte_changed_inside_is_found_when_it_is_read(path: Path) -> None:
    written = make_routes(path, 20)
    content = bytearray(path.read_bytes())
    for place in range(200, len(content) // 2, 50):
        content[place] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(RoutingError, match=r"routes\.parquet"):
        list(Routes(path))
    assert written


def test_a_byte_changed_anywhere_is_detected_or_changes_nothing(path: Path) -> None:
    make_routes(path, 20)
    whole, last = path.read_bytes(), pq.read_metadata(path).row_group(0).column(3)
    read = [(one.prompt_id, one.prompt_tokens, one.experts.tobytes()) for one in Routes(path)]
    message, end = 0, (last.dictionary_page_offset or last.data_page_offset) + last.total_compressed_size
    for place in range(4, end, 31):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x15]) + whole[place + 1 :])
        try:
            again = [(one.prompt_id, one.prompt_tokens, one.experts.tobytes()) for one in Routes(path)]
            assert again == read, place
        except RoutingError:
            message += 1
    assert message > 20


def test_names_that_are_no_text_are_refused(path: Path) -> None:
    make_routes(path, 2)
    path.write_bytes(path.read_bytes().replace(b"decode_tokens", b"decode\xfftokens"))
    with pytest.raises(RoutingError, match="cannot be read as routes"):
        Routes(path)


def _open_files(path: Path) -> int:
    return sum(os.path.realpath(link) == str(path) for link in Path("/proc/self/fd").iterdir())


def test_a_file_that_is_refused_is_closed(path: Path) -> None:
    make_routes(path, 2)
    with pytest.raises(RoutingError) as other:
        open_routes(path, MODEL, "e" * 32)
    pq.write_table(pa.table({"prompt_id": ["a"]}), path)
    with pytest.raises(RoutingError) as strange:
        Routes(path)
    assert (other, strange, _open_files(path)) == (other, strange, 0)  # though their tracebacks are held


@pytest.mark.parametrize("spoil", ["token", "rows", "expert", "twice"])
def test_rows_that_do_not_fit_are_named_with_their_prompt(path: Path, spoil: str) -> None:
    make_routes(path, 3)
    table, kept = pq.read_table(path), pq.read_metadata(path).metadata
    rows = table.to_pylist()
    content = bytearray(rows[1]["experts"])
    if spoil == "token":
        rows[1]["prompt_tokens"] += 1
    elif spoil == "rows":
        content = content[:-1]
    elif spoil == "expert":
        content[5] = 64
    else:
        content[0] = content[1]
    rows[1]["experts"] = bytes(content)
    changed = pa.Table.from_pylist(rows, schema=routes.ROUTES_SCHEMA.with_metadata(kept))
    pq.write_table(changed, path)
    with pytest.raises(RoutingError, match=r"routes\.parquet: prompt 'p1'.*capture JOB"):
        list(Routes(path))


def test_parquet_of_something_else_is_refused(path: Path) -> None:
    pq.write_table(pa.table({"prompt_id": ["a"]}), path)
    with pytest.raises(RoutingError, match="does not hold routes"):
        Routes(path)


def test_another_version_of_the_format_is_refused(path: Path) -> None:
    make_routes(path, 1)
    kept = pq.read_metadata(path).metadata[routes.RECORD_KEY].replace(b"routes/1", b"routes/9")
    pq.write_table(pq.read_table(path).replace_schema_metadata({routes.RECORD_KEY: kept}), path)
    with pytest.raises(RoutingError, match="another version of orderproof"):
        Routes(path)


def test_routes_of_another_model_or_other_prompts_are_refused(path: Path) -> None:
    make_routes(path, 2)
    assert len(open_routes(path, MODEL, RECORD.dataset_md5)) == 2
    for model, dataset_md5, message in (
        (dataclasses.replace(MODEL, fingerprint="0" * 64), RECORD.dataset_md5, "another model .*5f0c2a9e.*capture JOB"),
        (dataclasses.replace(MODEL, moe=MoeFacts(64, 8, 4, 1)), RECORD.dataset_md5, "top-4, and models/m has .*top-8"),
        (dataclasses.replace(MODEL, moe=None), RECORD.dataset_md5, "models/m has no experts"),
        (MODEL, "e" * 32, "other prompts .*8c5e8f6d.*capture JOB"),
    ):
        with pytest.raises(RoutingError, match=message):
            open_routes(path, model, dataset_md5)
