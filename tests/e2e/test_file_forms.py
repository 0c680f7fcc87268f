"""The same rows in every form that users have them give the same prompts, order and outputs; the stand-in generates."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orderproof.job.paths import OUTPUTS_FILE
from orderproof.job.spec import Job, OrderSpec
from orderproof.orders.order import Order
from orderproof.orders.registry import make_order
from orderproof.orders.view import view_of
from orderproof.prompts.prompt_files import find_files
from orderproof.prompts.tokenization import TokenizedPrompts
from orderproof.runs.promotion import write_promotion
from orderproof.runs.promotion_record import Evidence
from orderproof.validation.validate import validate_prompts
from tests.support.batches import TRIAL, edit_job, generate, make_project

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("no_tracker")]
ROWS, SHARDS = 1000, 12
TOPICS = ("rivers and lakes", "prime numbers", "the Python language", "cooking with garlic", "football in Brazil")
TEXTS = [f"Tell me about {TOPICS[k * 7 % 5]}, part {k}" for k in range(ROWS)]
LABELS = [f"topic {k * 7 % 5}" for k in range(ROWS)]
AS_CHATS = [[{"role": "user", "content": text}] for text in TEXTS]


def lines(rows: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def plain() -> list[dict[str, Any]]:
    return [{"id": f"p{k}", "text": TEXTS[k], "label": LABELS[k]} for k in range(ROWS)]


def as_jsonl(folder: Path) -> dict[str, Any]:
    (folder / "p.jsonl").write_bytes(lines(plain()))
    return {"prompts": "data/it/p.jsonl"}


def as_gzip(folder: Path) -> dict[str, Any]:
    (folder / "p.jsonl.gz").write_bytes(gzip.compress(lines(plain())))
    return {"prompts": "data/it/p.jsonl.gz"}


def as_zstd(folder: Path) -> dict[str, Any]:
    (folder / "p.jsonl.zst").write_bytes(pa.compress(lines(plain()), "zstd", asbytes=True))
    return {"prompts": "data/it/p.jsonl.zst"}


def as_shards(folder: Path) -> dict[str, Any]:
    table, start = pa.Table.from_pylist(plain()), 0
    for k in range(SHARDS):
        stop = ROWS * (k + 1) // SHARDS
        pq.write_table(table.slice(start, stop - start), folder / f"train-{k:05}-of-{SHARDS:05}.parquet")
        start = stop
    return {"prompts": "data/it/train-*-of-*.parquet"}


def as_messages(folder: Path) -> dict[str, Any]:
    rows = [{"prompt_id": f"p{k}", "dialogue": AS_CHATS[k], "source": LABELS[k]} for k in range(ROWS)]
    (folder / "chats.jsonl").write_bytes(lines(rows))
    columns = {"id": "prompt_id", "text": "dialogue", "label": "source"}
    return {"prompts": "data/it/chats.jsonl", "columns": columns}


def as_batch_file(folder: Path) -> dict[str, Any]:
    request = {"method": "POST", "url": "/v1/completions"}
    rows = [
        {"custom_id": f"p{k}", **request, "label": LABELS[k], "body": {"prompt": TEXTS[k], "max_tokens": 8}}
        for k in range(ROWS)
    ]
    (folder / "batch.jsonl").write_bytes(lines(rows))
    return {"prompts": "data/it/batch.jsonl"}


FORMS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "jsonl.gz": as_gzip,
    "jsonl.zst": as_zstd,
    "12 Parquet shards": as_shards,
    "messages in columns of other names": as_messages,
    "OpenAI batch file": as_batch_file,
}


def through(job: Job) -> tuple[TokenizedPrompts, Order, pa.Table]:
    """What becomes of a job's prompts: tokenized, ordered as promoted, generated."""
    prompts, md5 = validate_prompts(job, job.root / "found"), find_files(job).md5()
    order = make_order(OrderSpec(method="cluster", signal="lexical", clusters=8), view_of(prompts), md5)
    write_promotion(job, order, prompts.ids, Evidence(trial=TRIAL))
    run = generate(job)
    assert run.basis.order == order.record()
    return prompts, order, pq.read_table(job.data_dir / OUTPUTS_FILE)


@pytest.fixture
def expected(tmp_path: Path) -> tuple[TokenizedPrompts, Order, pa.Table]:
    job = make_project(tmp_path / "lines", 1)
    return through(edit_job(job, **as_jsonl(job.prompts_path.parent)))


def assert_same(job: Job, expected: tuple[TokenizedPrompts, Order, pa.Table]) -> None:
    prompts, order, outputs = through(job)
    assert prompts.ids == expected[0].ids
    assert prompts.labels == expected[0].labels
    assert (prompts.tokens == expected[0].tokens).all()
    assert (prompts.offsets == expected[0].offsets).all()
    assert order.permutation.tolist() == expected[1].permutation.tolist()
    assert outputs.equals(expected[2])


def test_the_same_rows_in_any_form_have_the_same_outputs(
    tmp_path: Path, expected: tuple[TokenizedPrompts, Order, pa.Table]
) -> None:
    for number, (form, write) in enumerate(FORMS.items()):
        job = make_project(tmp_path / str(number), 1)
        try:
            assert_same(edit_job(job, **write(job.prompts_path.parent)), expected)
        except AssertionError as error:
            raise AssertionError(f"{form}: {error}") from error


def test_the_same_rows_from_an_object_store_have_the_same_outputs(
    tmp_path: Path, expected: tuple[TokenizedPrompts, Order, pa.Table], bucket: Any
) -> None:
    bucket.pipe("prompts/set/a.jsonl", lines(plain()[:400]))
    bucket.pipe("prompts/set/b.jsonl", lines(plain()[400:]))
    assert_same(edit_job(make_project(tmp_path / "s3", 1), prompts="s3://prompts/set/*.jsonl"), expected)
