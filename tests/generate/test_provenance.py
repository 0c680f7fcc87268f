"""What outputs.parquet says of its own origin. The engine is the stand-in."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orderproof.generate.checkpoint_folder import FOLDER, KEY_FILE, CheckpointError
from orderproof.generate.provenance import METADATA_KEY, read_provenance
from orderproof.job.hashing import md5_of
from orderproof.job.paths import OUTPUTS_FILE
from orderproof.job.spec import Job
from tests.support.batches import generate, generate_and, make_project, promote_label_order


@pytest.fixture
def job(tmp_path: Path) -> Job:
    job = make_project(tmp_path / "p", 40)
    promote_label_order(job)
    return job


def test_outputs_carry_what_they_depend_on(job: Job) -> None:
    generate(job)
    held = read_provenance(job.data_dir / OUTPUTS_FILE)
    assert held is not None
    assert held.key["dataset_md5"] == md5_of(job.prompts_path)
    assert held.key["order"]["method"] == "label"
    assert held.everything["engine"]["versions"]["vllm"] == "stand-in"
    assert held.everything["engine"]["args"]["max_num_seqs"] == 16
    assert {"device", "device_name", "threads"} <= set(held.everything["engine"])


def test_the_same_inputs_give_the_same_file(job: Job) -> None:
    generate(job)
    first = md5_of(job.data_dir / OUTPUTS_FILE)
    generate(job)
    assert md5_of(job.data_dir / OUTPUTS_FILE) == first


def test_no_secret_travels_with_outputs_and_their_record(job: Job) -> None:
    args = {**job.engine.args, "hf_token": "word-1"}
    env = {**job.engine.env, "MY_PASS": "word-2", "AUTHORIZATION": "word-3", "DB": "https://me:word-4@host/"}
    command = ["env", "MYPW=word-5", sys.executable]
    engine = job.engine.model_copy(update={"args": args, "env": env, "command": tuple(command)})
    run = generate(job.model_copy(update={"engine": engine}))
    held = read_provenance(job.data_dir / OUTPUTS_FILE)
    assert held is not None
    for record in (held.model_dump_json(), run.model_dump_json()):
        assert "word-" not in record
    assert set(held.key["engine"]["env"]) >= {"MY_PASS", "AUTHORIZATION", "DB"}


def test_results_of_another_secret_are_not_mixed(job: Job) -> None:
    def with_token(token: str) -> Job:
        env = {**job.engine.env, "MY_TOKEN": token}
        return job.model_copy(update={"engine": job.engine.model_copy(update={"env": env})})

    with pytest.raises(KeyboardInterrupt):
        generate_and(with_token("word-1"), raise_interrupt, after=5)
    assert b"word-" not in (job.data_dir / FOLDER / KEY_FILE).read_bytes()
    with pytest.raises(CheckpointError, match=r"engine\.env\.MY_TOKEN"):
        generate(with_token("word-2"))
    generate(with_token("word-1"))


def raise_interrupt(engine: Any) -> None:
    raise KeyboardInterrupt


def test_a_file_without_an_origin_has_none(tmp_path: Path) -> None:
    for metadata in (None, {METADATA_KEY: b"[]"}):
        pq.write_table(pa.table({"id": ["a"]}).replace_schema_metadata(metadata), tmp_path / "outputs.parquet")
        assert read_provenance(tmp_path / "outputs.parquet") is None
