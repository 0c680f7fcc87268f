"""What a capture's record shows: figures, lines for a person, and a picture."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from orderproof.capture.capture import Captured
from orderproof.capture.report import MISSING_SHOWN, capture_run, draw_capture
from orderproof.capture.sample import groups_of
from orderproof.capture.statistics import RoutingTable, routing_table
from orderproof.job.spec import EngineSpec, Job, OrderSpec
from orderproof.routing.routes import Routes
from tests.support.capturing_engine import EXPERTS, LAYERS, MD5, MODEL, TOP_K, capture_sample, make_sample
from tests.support.trial_maker import logging_text

NOON = datetime.datetime(2026, 11, 29, 12, tzinfo=datetime.UTC)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(name="it", root=tmp_path, prompts="p.jsonl", model="m", engine=EngineSpec(args={"max_num_seqs": 8}))


def captured_with_table(job: Job, **faults: int) -> tuple[Captured, RoutingTable]:
    done, prompts = capture_sample(job, **faults), make_sample().prompts
    kind, groups = groups_of(prompts, OrderSpec())
    with Routes(done.path) as routes:
        table = routing_table(routes, dict(zip(prompts.ids, groups, strict=True)), kind, (LAYERS, EXPERTS, TOP_K))
    return done, table


def test_the_record_holds_what_was_captured_of_which_prompts_and_model(job: Job) -> None:
    done, table = captured_with_table(job, refuse=3)
    run = capture_run(job, MODEL, make_sample(), done, table, NOON)
    assert (run.verb, run.answer, run.exit_code) == ("capture", "captured", 0)
    assert (run.figure("captured"), run.figure("sampled")) == (29, 30)
    assert (run.figure("prefill_tokens"), run.figure("decode_tokens")) == (done.prefill_tokens, done.decode_tokens)
    assert (run.figure("wall_s"), run.figure("favourite_share")) == (2.0, table.favourite_share)
    assert (run.basis.dataset_md5, run.basis.model_fingerprint, run.basis.toy) == (MD5, MODEL.fingerprint, True)
    assert run.basis.prompts_total == 60
    assert run.files == {"routes": "data/it/routes.parquet"}
    assert run.next_command == "orderproof plan it"


def test_the_table_is_in_the_details_as_it_was_computed(job: Job) -> None:
    done, table = captured_with_table(job)
    details = capture_run(job, MODEL, make_sample(), done, table, NOON).as_json()["details"]
    assert [row["batch"] for row in details["table"]["touched"]] == [8, 16, 32, 64, 128]
    assert details["table"]["favourite_share"] == table.favourite_share
    assert details["capture"]["captured"] == 30


def test_a_person_reads_of_batches_that_were_captured_and_of_no_others(job: Job) -> None:
    done, table = captured_with_table(job)
    run = capture_run(job, MODEL, make_sample(), done, table, NOON)
    assert "30 of 30" in run.sentence
    batches = [line.split()[1] for line in run.lines if line.startswith("  batch")]
    assert batches == ["8", "16"], "32 were not captured"


def test_missing_prompts_are_named_with_their_reasons_up_to_a_limit(job: Job) -> None:
    done, table = captured_with_table(job, refuse=3)
    closed = capture_run(job, MODEL, make_sample(), done, table, NOON)
    assert "too long" not in closed.model_dump_json()
    assert closed.lines[-1] == "missing: 1 of 30 prompts: the metadata of data/it/routes.parquet has the reasons"
    job = logging_text(job)
    run = capture_run(job, MODEL, make_sample(), done, table, NOON)
    assert f"missing: {make_sample().prompts.ids[3]}: too long" in run.lines
    many = Captured(done.path, 60, 30, 1, 1, {f"p{k}": "too long" for k in range(MISSING_SHOWN + 2)}, 1.0)
    shown = [line for line in capture_run(job, MODEL, make_sample(), many, table, NOON).lines if "missing" in line]
    assert len(shown) == MISSING_SHOWN + 1
    assert "2 more" in shown[-1]


def test_the_picture_is_drawn(job: Job, tmp_path: Path) -> None:
    done, table = captured_with_table(job)
    draw_capture("it", done, table, True, tmp_path / "routing.png")
    assert (tmp_path / "routing.png").read_bytes().startswith(b"\x89PNG")
