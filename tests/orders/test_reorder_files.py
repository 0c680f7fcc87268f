"""Any tool's files are sorted and restored without a byte of a row changed."""

from __future__ import annotations

import gc
import gzip
import hashlib
import io
import os
import stat
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orderproof.job.errors import OrderproofError
from orderproof.job.spec import OrderSpec
from orderproof.orders import reorder_files
from orderproof.orders.destination import ReorderError
from orderproof.orders.order import OrderError
from orderproof.orders.registry import make_order
from orderproof.orders.reorder_files import reorder_file
from orderproof.orders.restore_files import restore_file
from orderproof.orders.view import view_of
from orderproof.prompts.prompt_file import read_prompts
from orderproof.prompts.tokenization import tokenize
from orderproof.prompts.verbatim_rows import RowError
from tests.support.routed import make_routed
from tests.support.row_files import read_rows, write_rows
from tests.support.tiny_tokenizer import job_of

SHUFFLED, LENGTH, LABEL = OrderSpec(method="shuffled", seed=1), OrderSpec(method="length"), OrderSpec(method="label")


IMPORTS = "from orderproof.job.spec import OrderSpec; from orderproof.orders.reorder_files import *; "
IMPORTS += "from orderproof.orders.restore_files import *"


def test_lines_keep_their_bytes(tmp_path: Path) -> None:
    lines = [
        b'{"id":"a",  "text":"spaces\\u0020and \\u2028 escapes", "x": 1.50}\n',
        '{"id": "b", "text": "a line separator \u2028 inside, and \u0085"}\n'.encode(),
        b'{"text": "keys in another order", "id": "c"}   \n',
    ]
    source = tmp_path / "in.jsonl"
    source.write_bytes(b"".join(lines))
    order = reorder_file(source, tmp_path / "out.jsonl", SHUFFLED)
    assert (tmp_path / "out.jsonl").read_bytes() == b"".join(order.apply(lines))


def test_a_byte_order_mark_stays_first_crlf_stays_and_a_last_line_gets_its_end(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(b'\xef\xbb\xbf{"id": "a", "text": "x"}\r\n\r\n{"id": "b", "text": "longer"}')
    reorder_file(source, tmp_path / "out.jsonl", LENGTH)
    assert (tmp_path / "out.jsonl").read_bytes() == (
        b'\xef\xbb\xbf{"id": "b", "text": "longer"}\r\n{"id": "a", "text": "x"}\r\n'
    )


def test_parquet_rows_keep_their_values_types_and_metadata(tmp_path: Path) -> None:
    types = {"id": pa.int32(), "text": pa.large_string(), "when": pa.timestamp("us"), "tags": pa.list_(pa.string())}
    rows = [{"id": i, "text": "w" * (5 * i % 7), "when": i * 10**6, "tags": ["t"] * i} for i in range(7)]
    pq.write_table(pa.Table.from_pylist(rows, pa.schema(types, {"made by": "a test"})), tmp_path / "in.parquet")
    table = pq.read_table(tmp_path / "in.parquet")
    order = reorder_file(tmp_path / "in.parquet", tmp_path / "out.parquet", LENGTH)
    assert pq.read_table(tmp_path / "out.parquet").equals(table.take(order.permutation), check_metadata=True)
    restore_file(tmp_path / "out.parquet", tmp_path / "in.parquet", tmp_path / "back.parquet")
    assert pq.read_table(tmp_path / "back.parquet").equals(table)


def test_a_batch_apis_requests_are_sorted_by_the_words_in_their_bodies(tmp_path: Path) -> None:
    rows = [
        {
            "custom_id": f"r{i}",
            "url": "/v1/chat/completions",
            "body": {"messages": [{"role": "user", "content": "w" * i}]},
        }
        for i in range(5)
    ]
    reorder_file(write_rows(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl", LENGTH)
    assert [row["custom_id"] for row in read_rows(tmp_path / "out.jsonl")] == ["r4", "r3", "r2", "r1", "r0"]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "no rows"),
        (b"  \n\n \r\n", "no rows"),
        (b'{"id": "a"}\n\n{"id": "b", "te', "line 3: .* cut off"),
        (b'{"id": "a"}\n[1]\n', "line 2: holds a list"),
        (b'{"id": "a"}\n{"id": "caf\xe9"}\n', "line 2: byte 0xe9"),
        (b'{"id": "a"}\n{"text": "b"}\n', "line 2: has no `id`"),
        (b'{"id": null}\n', "line 1: has no `id`"),
        (b'{"id": true}\n', "line 1: `id` must be text"),
        (b'{"id": "a"}\n{"id": "b"}\n\n{"id": "a"}\n', "duplicate id 'a' on line 4, first on line 1"),
        (b'{"id": "a"}\n\x00\n', "line 2: is not JSON"),
        (b"PAR1 but no more", "not readable as Parquet"),
        (b"[" * 100_000, "line 1: .*JSON"),
    ],
)
def test_a_flawed_file_is_named_with_its_line_and_nothing_is_written(tmp_path: Path, content: bytes, told: str) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out"
    source.write_bytes(content)
    with pytest.raises(OrderproofError, match=told) as refusal:
        reorder_file(source, target, OrderSpec(method="file"))
    assert str(source) in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert list(tmp_path.iterdir()) == [source]


def test_what_the_order_needs_and_a_row_lacks_is_named(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "in.jsonl", [{"id": "a", "text": "x", "label": "l"}, {"id": "b"}])
    with pytest.raises(OrderError, match=r"in\.jsonl, line 2 \(id 'b'\): .*no text"):
        reorder_file(source, tmp_path / "out.jsonl", LENGTH)
    with pytest.raises(OrderError, match=r"in\.jsonl, line 2 \(id 'b'\) has no `label`"):
        reorder_file(source, tmp_path / "out.jsonl", LABEL)
    reorder_file(source, tmp_path / "out.jsonl", SHUFFLED)


def test_a_missing_file_a_folder_and_another_kind_are_refused(prompts: Path, tmp_path: Path) -> None:
    with pytest.raises(RowError, match=r"none\.jsonl: cannot be read"):
        reorder_file(tmp_path / "none.jsonl", tmp_path / "out.jsonl", SHUFFLED)
    with pytest.raises(RowError, match="cannot be read"):
        reorder_file(tmp_path, tmp_path / "out.jsonl", SHUFFLED)
    with pytest.raises(ReorderError, match="is a folder"):
        reorder_file(prompts, tmp_path, SHUFFLED)
    with pytest.raises(ReorderError, match=r"Give a \.jsonl file"):
        reorder_file(prompts, tmp_path / "out.parquet", SHUFFLED)


@pytest.mark.parametrize("name", ["x.csv", "x.json", "x.jsonl.gz"])
def test_a_name_that_promises_another_format_is_refused(prompts: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(ReorderError, match=r"Give a \.jsonl file"):
        reorder_file(prompts, tmp_path / name, SHUFFLED)
    reorder_file(prompts, tmp_path / "sorted.txt", SHUFFLED)


def test_a_folder_that_does_not_exist_is_named_before_rows_are_ordered(
    prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reorder_files, "make_order", lambda *_: pytest.fail("rows were ordered"))
    with pytest.raises(ReorderError, match="its folder does not exist"):
        reorder_file(prompts, tmp_path / "no" / "such" / "x.jsonl", SHUFFLED)


@pytest.mark.parametrize("compress", [gzip.compress, lambda rows: pa.compress(rows, "zstd", asbytes=True)])
def test_a_compressed_file_is_named_with_the_way_to_read_it(
    prompts: Path, tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    packed = tmp_path / "packed.jsonl"
    packed.write_bytes(compress(prompts.read_bytes()))
    with pytest.raises(RowError, match="is compressed"):
        reorder_file(packed, tmp_path / "x.jsonl", SHUFFLED)


def test_neither_command_overwrites_the_prompts(prompts: Path, tmp_path: Path) -> None:
    before = prompts.read_bytes()
    (tmp_path / "link.jsonl").symlink_to(prompts)
    for target in (prompts, tmp_path / "link.jsonl"):
        with pytest.raises(ReorderError, match="would be overwritten"):
            reorder_file(prompts, target, SHUFFLED)
        with pytest.raises(ReorderError, match="would be overwritten"):
            restore_file(prompts, prompts, target)
    assert prompts.read_bytes() == before


def test_a_device_is_written_to_and_never_replaced(prompts: Path) -> None:
    reorder_file(prompts, "/dev/null", SHUFFLED)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def in_a_pipe(call: str, given: bytes) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-c", f"{IMPORTS}; {call}"], input=given, capture_output=True, check=True)


def test_standard_streams_are_pipes_of_both_kinds(prompts: Path, tmp_path: Path) -> None:
    reorder_file(prompts, tmp_path / "sorted.jsonl", SHUFFLED)
    sort = 'reorder_file("-", "-", OrderSpec(method="shuffled", seed=1))'
    assert in_a_pipe(sort, prompts.read_bytes()).stdout == (tmp_path / "sorted.jsonl").read_bytes()
    restore = f'restore_file("-", {str(prompts)!r}, "-")'
    assert in_a_pipe(restore, (tmp_path / "sorted.jsonl").read_bytes()).stdout == prompts.read_bytes()
    table = pa.table({"id": ["a", "b", "c"], "text": ["x", "y", "z"]})
    pq.write_table(table, tmp_path / "in.parquet")
    piped = in_a_pipe(sort, (tmp_path / "in.parquet").read_bytes()).stdout
    assert sorted(pq.read_table(io.BytesIO(piped))["id"].to_pylist()) == ["a", "b", "c"]


def test_a_named_pipe_is_read_too(prompts: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cp", prompts, pipe]):
        reorder_file(pipe, tmp_path / "sorted.jsonl", SHUFFLED)
    assert sorted(read_rows(tmp_path / "sorted.jsonl"), key=str) == sorted(read_rows(prompts), key=str)


def test_the_lines_are_not_held_in_memory(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "in.jsonl", [{"id": i, "text": "x" * 2000} for i in range(10_000)])
    tracemalloc.start()
    reorder_file(source, tmp_path / "out.jsonl", LENGTH)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < source.stat().st_size / 4


# -- windows -----------------------------------------------------------------------------------------------------------

WINDOWED = OrderSpec(method="label", window=8)


def test_windows_of_a_stream_give_the_order_that_the_whole_file_has(prompts: Path, tmp_path: Path) -> None:
    order = reorder_file(prompts, tmp_path / "sorted.jsonl", WINDOWED)
    rows = read_rows(prompts)
    assert read_rows(tmp_path / "sorted.jsonl") == make_order(WINDOWED, rows, "").apply(rows)
    assert (order.dataset_md5, len(order)) == (hashlib.md5(prompts.read_bytes()).hexdigest(), 20)
    restore_file(tmp_path / "sorted.jsonl", prompts, tmp_path / "restored.jsonl")
    assert (tmp_path / "restored.jsonl").read_bytes() == prompts.read_bytes()


def test_a_window_leaves_a_pipe_before_the_next_prompt_enters_it(prompts: Path) -> None:
    command = f"{IMPORTS}; reorder_file('-', '-', OrderSpec(method='label', window=8))"
    lines, pipe = prompts.read_bytes().splitlines(keepends=True), subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", command], stdin=pipe, stdout=pipe) as process:
        assert process.stdin
        assert process.stdout
        given: list[bytes] = []
        for window in (lines[:8], lines[8:16]):
            process.stdin.write(b"".join(window))
            process.stdin.flush()  # and stays open: the rest is not even made yet
            given += [process.stdout.readline() for _ in window]
        process.stdin.write(b"".join(lines[16:]))
        process.stdin.close()
        given += process.stdout.readlines()
        assert process.wait() == 0
    assert sorted(given) == sorted(lines)
    assert given != lines


def test_a_stream_of_any_length_needs_the_memory_of_a_window(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "in.jsonl", [{"id": i, "text": "x" * 2000, "label": i % 5} for i in range(10_000)])
    gc.disable()  # nothing waits for the collector
    tracemalloc.start()
    try:
        reorder_file(source, tmp_path / "out.jsonl", OrderSpec(method="label", window=64))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        gc.enable()
    assert peak < 3 << 20, "of 20 MB"


def test_a_flaw_in_a_stream_leaves_a_file_as_it_was_and_a_pipe_with_whole_windows(
    prompts: Path, tmp_path: Path
) -> None:
    with open(prompts, "a") as sink:
        sink.write('{"id": "p3", "text": "again", "label": "a"}\n')
    target = tmp_path / "sorted.jsonl"
    target.write_text("as before")
    with pytest.raises(ReorderError, match=r"prompts\.jsonl: duplicate id 'p3' on line 21"):
        reorder_file(prompts, target, WINDOWED)
    assert (target.read_text(), [path.name for path in tmp_path.glob(".*")]) == ("as before", [])
    command = [sys.executable, "-c", f"{IMPORTS}; reorder_file('-', '-', OrderSpec(method='label', window=8))"]
    done = subprocess.run(command, input=prompts.read_bytes(), capture_output=True)
    assert done.returncode
    assert done.stdout.count(b"\n") == 16


def test_a_byte_order_mark_stays_first_in_a_stream_and_a_last_line_gets_its_end(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(b'\xef\xbb\xbf{"id": "a", "text": "x"}\n\n{"id": "b", "text": "longer"}')
    reorder_file(source, tmp_path / "out.jsonl", OrderSpec(method="length", window=2))
    assert (tmp_path / "out.jsonl").read_bytes() == (
        b'\xef\xbb\xbf{"id": "b", "text": "longer"}\n{"id": "a", "text": "x"}\n'
    )


def test_parquet_in_windows_is_read_as_a_whole(tmp_path: Path) -> None:
    rows = [{"id": str(i), "text": "x", "label": "ab"[i % 2]} for i in range(20)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in.parquet")
    reorder_file(tmp_path / "in.parquet", tmp_path / "out.parquet", WINDOWED)
    assert pq.read_table(tmp_path / "out.parquet").to_pylist() == make_order(WINDOWED, rows, "").apply(rows)


# -- prompts that were captured ----------------------------------------------------------------------------------------

OBSERVED = OrderSpec(method="cluster", signal="observed", clusters=12)


def as_batch(row: dict[str, Any]) -> dict[str, Any]:
    body = {"model": "any", "messages": row["text"], "max_tokens": 7}
    return {"custom_id": row["id"], "method": "POST", "url": "/v1/chat/completions", "body": body}


FORMS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "text": lambda row: row,
    "messages": lambda row: {"id": row["id"], "messages": row["text"]},
    "batch": as_batch,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("window", [None, 30])
def test_chats_are_known_by_their_captured_routes_in_every_form_of_row(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, form: str, window: int | None
) -> None:
    routed, spec = (
        make_routed(tmp_path, chat_template_args={"mood": "calm"}),
        OBSERVED.model_copy(update={"window": window}),
    )
    job = job_of(tmp_path / "prompts.jsonl", tmp_path / "model", chat_template_args={"mood": "calm"})
    as_a_job = view_of(tokenize(job, read_prompts(job.prompts_path)), routed.served)
    # Not tokenized, as rows of a file are not: a byte-level tokenizer puts its mark at the beginning of tokenized ones.
    wanted = make_order(spec, replace(as_a_job, token_ids=None), "")
    rows = write_rows(tmp_path / "rows.jsonl", [FORMS[form](row) for row in routed.prompts])
    order = reorder_file(rows, tmp_path / "sorted.jsonl", spec, served=routed.served)
    assert order.permutation.tolist() == wanted.permutation.tolist()
    assert "has the id of a captured prompt" not in caplog.text


def test_chats_that_were_captured_with_another_text_are_predicted_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    routed = make_routed(tmp_path, chat_template_args={})
    for row in routed.prompts:
        row["text"][0]["role"] = "system"
    rows = write_rows(tmp_path / "rows.jsonl", routed.prompts)
    orders = [
        reorder_file(
            rows, tmp_path / "sorted.jsonl", OBSERVED.model_copy(update={"signal": signal}), served=routed.served
        )
        for signal in ("observed", "predicted")
    ]
    assert orders[0].permutation.tolist() == orders[1].permutation.tolist()
    assert caplog.text.count("prompt 'p0' has the id of a captured prompt but") == 1


def test_rows_that_no_job_takes_are_read_by_their_words(tmp_path: Path) -> None:
    """Pictures beside the words, a tool's message that the template refuses, and completions of another field."""
    routed = make_routed(tmp_path, chat_template_args={})
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}]
    others = [
        {"id": "new", "messages": [{"role": "user", "content": parts}]},
        {"id": "tool", "text": [{"role": "tool", "content": "b"}]},
        {"id": "input", "input": "c"},
    ]
    rows = write_rows(tmp_path / "rows.jsonl", [*routed.prompts, *others])
    assert len(reorder_file(rows, tmp_path / "sorted.jsonl", OBSERVED, served=routed.served)) == 103
