"""Generated files and settings that are wrong in some way: an answer or one message each, and nothing half-written."""

from __future__ import annotations

import csv
import gzip
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.command_line import RunCommand
from tests.support.tiny_tokenizer import save_model

FEW, MANY = 30, 250  # examples in `make test` and in `make test-long`


def examples(number: int) -> settings:
    return settings(max_examples=number, deadline=None, database=None, suppress_health_check=list(HealthCheck))


names = st.sampled_from(
    ["id", "text", "label", "sampling", "reference", "lora", "messages", "conversations", "custom_id", "body", "method",
     "url", "max_tokens", "", "ID", "Text", "\0"]
)  # fmt: skip
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=12),
    st.sampled_from(["a", "", "\ud800", "[]", '[{"role": "user", "content": "hi"}]', "9" * 5000]),
)  # fmt: skip
messages = st.lists(
    st.dictionaries(st.sampled_from(["role", "content", "from", "value", "name"]), scalars, max_size=3), max_size=3
)
sampling = st.dictionaries(
    st.sampled_from(["max_tokens", "n", "temperature", "temprature", "stop", "logit_bias", "min_tokens", "top_p", ""]),
    st.recursive(scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner, max_size=2)),
    max_size=3,
)
rows = st.lists(st.dictionaries(names, scalars | messages | sampling, max_size=5), min_size=0, max_size=5)
damage = st.one_of(
    st.just(lambda content: content),
    st.integers(0, 400).map(lambda length: lambda content: content[:length]),
    st.tuples(st.integers(0, 400), st.binary(max_size=4)).map(
        lambda cut: lambda content: content[: cut[0]] + cut[1] + content[cut[0] :]
    ),
    st.binary(max_size=40).map(lambda other: lambda content: other),
)


def as_jsonl(found: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in found)


def as_csv(found: list[dict[str, Any]]) -> bytes:
    table = io.StringIO()
    writer = csv.DictWriter(table, sorted({name for row in found for name in row}))
    writer.writeheader()
    writer.writerows(found)
    return table.getvalue().encode("utf-8", "surrogatepass")


def as_parquet(found: list[dict[str, Any]]) -> bytes:
    sink = io.BytesIO()
    try:
        pq.write_table(pa.Table.from_pylist(found), sink)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError, TypeError):
        return b"PAR1"  # Arrow has no column for such values, so nobody has such a file
    return sink.getvalue()


FORMATS: dict[str, Callable[[list[dict[str, Any]]], bytes]] = {
    "p.jsonl": as_jsonl,
    "p.json": lambda found: json.dumps(found).encode(),
    "p.csv": as_csv,
    "p.parquet": as_parquet,
    "p.jsonl.gz": lambda found: gzip.compress(as_jsonl(found)),
    "p.jsonl.zst": lambda found: pa.compress(as_jsonl(found), "zstd", asbytes=True),
}

keys = st.sampled_from(
    ["prompts", "model", "engine", "order", "sampling", "columns", "measure", "accept_lossy", "tokenizer", "x",
     "engine.args", "engine.args.max_num_seqs", "engine.env", "engine.command", "engine.replicas", "engine.server",
     "order.method", "order.window", "measure.looks", "measure.alpha", "sampling.n", "sampling.max_tokens",
     "columns.text"]
)  # fmt: skip
values = st.recursive(
    scalars | st.sampled_from(["~/none", "*.jsonl", "s3://no-bucket", "http://127.0.0.1:9/v1", "label", -1, 10**30]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=4,
)
documents = st.dictionaries(keys, values, min_size=1, max_size=3)


def set_at(job: dict[str, Any], path: list[str], value: Any) -> None:
    for part in path[:-1]:
        if not isinstance(job.get(part), dict):
            job[part] = {}
        job = job[part]
    job[path[-1]] = value


@pytest.fixture
def tried(run: RunCommand, tmp_path: Path) -> Callable[[str, bytes, dict[str, Any]], None]:
    """Validate a job with this file and these settings, and look at what is left of it."""
    save_model(tmp_path / "m", "{% for m in messages %}{{ m.content }}{% endfor %}")

    def validate(name: str, content: bytes, changes: dict[str, Any]) -> None:
        (tmp_path / name).write_bytes(content)
        job: dict[str, Any] = {"prompts": name, "model": "m", "engine": {"args": {"max_num_seqs": 4}}}
        for key, value in changes.items():
            set_at(job, key.split("."), value)
        (tmp_path / "params.yaml").write_bytes(
            json.dumps({"defaults": {}, "jobs": {"it": job}}).encode("utf-8", "surrogatepass")
        )
        result = run("validate", "it", "--no-engine")
        assert result.code in (0, 1, 2), result
        assert "Traceback" not in result.err, result.err
        if result.code:
            assert [line for line in result.err.splitlines() if line.startswith("orderproof: ")], result.err
        kept = {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*")}
        assert kept <= {name, "params.yaml", "m", "reports", ".orderproof"}
        assert not [path for path in tmp_path.rglob("*") if path.suffix in (".part", ".tmp")]
        (tmp_path / name).unlink()
        shutil.rmtree(tmp_path / "reports", ignore_errors=True)

    return validate


Tried = Callable[[str, bytes, dict[str, Any]], None]


@examples(FEW)
@given(name=st.sampled_from(list(FORMATS)), found=rows, spoil=damage)
def test_a_malformed_file_is_one_message(tried: Tried, name: str, found: Any, spoil: Any) -> None:
    tried(name, spoil(FORMATS[name](found)), {})


@examples(FEW)
@given(changes=documents)
def test_malformed_settings_are_one_message(tried: Tried, changes: dict[str, Any]) -> None:
    tried("p.jsonl", b'{"id": "a", "text": "one"}\n', changes)


@pytest.mark.long
@examples(MANY)
@given(name=st.sampled_from(list(FORMATS)), found=rows, spoil=damage)
def test_many_malformed_files(tried: Tried, name: str, found: Any, spoil: Any) -> None:
    tried(name, spoil(FORMATS[name](found)), {})


@pytest.mark.long
@examples(MANY)
@given(changes=documents)
def test_many_malformed_settings(tried: Tried, changes: dict[str, Any]) -> None:
    tried("p.jsonl", b'{"id": "a", "text": "one"}\n', changes)
