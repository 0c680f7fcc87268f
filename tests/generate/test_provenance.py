"""What outputs.parquet says of its own origin. The engine is the stand-in."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orderproof.generate.delivery import OUTPUTS_FILE
from orderproof.generate.provenance import METADATA_KEY, read_provenance
from orderproof.job.hashing import md5_of
from orderproof.job.spec import Job
from tests.support.batches import generate, make_project, promote_label_order


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


def test_no_secret_of_the_environment_travels_with_outputs(job: Job) -> None:
    env = {**job.engine.env, "HF_TOKEN": "hf_abc"}
    generate(job.model_copy(update={"engine": job.engine.model_copy(update={"env": env})}))
    assert b"hf_abc" not in (job.data_dir / OUTPUTS_FILE).read_bytes()


def test_a_file_without_an_origin_has_none(tmp_path: Path) -> None:
    for metadata in (None, {METADATA_KEY: b"[]"}):
        pq.write_table(pa.table({"id": ["a"]}).replace_schema_metadata(metadata), tmp_path / "outputs.parquet")
        assert read_provenance(tmp_path / "outputs.parquet") is None
