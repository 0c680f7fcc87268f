"""`orderproof measure` on real vLLM, MLflow, DVC, Great Expectations: records are asserted, not verdicts."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from orderproof.measure.trial_store import Trial
from orderproof.outputs.passes import PassOutputs
from orderproof.runs.mlflow_run import RUN_TAG
from tests.e2e.conftest import BLOCKS, Project

pytestmark = pytest.mark.engine


@pytest.fixture(scope="session")
def folder(project: Project, measured: Any) -> Path:
    """Of the trial."""
    return project.root / "reports" / "six-domains" / "measure" / str(measured["id"])


@pytest.fixture(scope="session")
def trial(folder: Path) -> Trial:
    return Trial.read(folder)


def test_a_trial_records_every_slice_of_every_block(trial: Trial) -> None:
    assert [block.number for block in trial.blocks()] == list(range(1, len(trial.blocks()) + 1))
    assert len(trial.blocks()) in trial.manifest.rule.looks
    assert {arm for block in trial.blocks() for arm in block.passes} == {"control", "candidate"}
    for block in trial.blocks():
        assert len(block.slices) == 2 * trial.manifest.slices.strata
        for part in block.slices.values():
            assert part.output_tokens == part.window_output_tokens == 16 * part.requests
            assert (part.failed, part.cut_short, part.foreign_tokens) == (0, 0, 0)
            assert part.steps >= 16 * part.requests / 8
        for recorded in block.passes.values():
            assert (recorded.requests, recorded.output_tokens) == (96, 96 * 16)
            assert recorded.preempted == recorded.admission_inversions == 0
            assert recorded.throughput_req_s == pytest.approx(96 / recorded.wall_s)


def test_the_coins_decide_which_slice_comes_first(trial: Trial) -> None:
    for block in trial.blocks():
        by_time = sorted(block.slices.values(), key=lambda part: part.start_s)
        assert [(part.slot, part.turn) for part in by_time] == sorted((part.slot, part.turn) for part in by_time)
        firsts = [part.arm for part in by_time if part.turn == 0]
        assert firsts.count("candidate") * 2 == len(firsts)


def test_every_block_shuffles_afresh_and_the_candidate_stays(trial: Trial) -> None:
    blocks = trial.blocks()
    assert len({block.passes["control"].order_sha256 for block in blocks}) == BLOCKS
    assert {block.passes["candidate"].order_sha256 for block in blocks} == {trial.manifest.candidate.sha256}


def test_the_candidate_was_sent_in_label_order_and_admitted_as_sent(trial: Trial) -> None:
    tokens = trial.tokens("b01-candidate")
    labels = [prompt.rsplit("-", 1)[0] for prompt in tokens["prompt_id"].to_pylist()]
    assert sum(a != b for a, b in itertools.pairwise(labels)) == 5, "six groups, five borders"
    assert [timed.admission_inversions for timed in trial.passes] == [0] * len(trial.passes)


def test_greedy_outputs_of_two_passes_of_one_order_are_equal(trial: Trial) -> None:
    """The candidate is one order throughout, and the engine core runs in one process: nothing moves its outputs."""
    ids = sorted(trial.tokens("b01-candidate", ["prompt_id"])["prompt_id"].to_pylist())
    first, second = (
        PassOutputs.from_tokens(p, "candidate", trial.tokens(p), ids) for p in ("b01-candidate", "b02-candidate")
    )
    assert (first.digests == second.digests).all()


def test_the_verdict_is_recomputed_offline_bit_for_bit(project: Project, measured: Any) -> None:
    again = project.json("decide", "six-domains")
    assert again["same_as_recorded"]
    assert (again["trial"], again["answer"]) == (measured["id"], measured["answer"])
    assert again["verdict"] == measured["details"]["verdict"]


def test_the_order_beside_the_dataset_holds_every_prompt_once(project: Project, measured: Any) -> None:
    folder = project.root / "data" / "six-domains"
    table = pq.read_table(folder / "order.parquet")
    record = json.loads((folder / "order.json").read_text())
    assert table["position"].to_pylist() == list(range(96))
    assert len(set(table["prompt_id"].to_pylist())) == 96
    assert record["trial"] == measured["id"]
    assert record["promoted"] == measured["details"]["promoted"] == (measured["answer"] == "promote")
    assert record["mlflow_run"] == measured["mlflow_run"]


def test_dvc_holds_the_outcome_and_has_nothing_left_to_do(project: Project, measured: Any) -> None:
    assert "up to date" in project.tool(sys.executable, "-m", "dvc", "status", "measure@six-domains")
    said = project.tool(sys.executable, "-m", "dvc", "repro", "measure@six-domains")
    assert "didn't change" in said
    assert len(project.trials("six-domains")) == 1, "an unchanged job is not measured again"


def test_mlflow_compares_the_passes(project: Project, measured: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    from mlflow import MlflowClient

    from orderproof.runs.mlflow_client import tracking_uri

    client = MlflowClient(tracking_uri(project.root))
    experiment = client.get_experiment_by_name("orderproof/six-domains")
    assert experiment is not None
    parent = client.get_run(measured["mlflow_run"])
    assert parent.data.tags[RUN_TAG] == f"measure/{measured['id']}"
    assert {"gain", "gain_low", "gain_high", "output_diff_rate", "output_diff_floor"} <= set(parent.data.metrics)
    children = client.search_runs([experiment.experiment_id], f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'")
    counted = [child for child in children if not child.info.run_name.startswith("warm")]
    assert (
        len(
            [
                c
                for c in counted
                if {"throughput_req_s", "time_per_batch_ms", "cost_per_1k_requests"} <= set(c.data.metrics)
            ]
        )
        >= 10
    )
    names = {artifact.path for artifact in client.list_artifacts(parent.info.run_id)}
    assert {"page.html", "run.json", "verdict.json", "manifest.json", "passes.jsonl"} <= names
    assert {"gain.png", "throughput.png"} <= names


def test_the_page_stands_alone(project: Project, measured: Any) -> None:
    page = (project.root / measured["files"]["page"]).read_text("utf-8")
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert 'src="data:image/png;base64,' in page
    assert "Toy model" in page


def test_validation_is_kept_and_readable(project: Project, measured: Any) -> None:
    folder = project.root / "reports" / "six-domains" / "validation"
    assert json.loads((folder / "validation.json").read_text())
    assert list((folder / "validation").glob("**/*.html"))


def test_a_dense_model_is_refused_before_an_engine_starts(project: Project) -> None:
    run = project.json("measure", "dense")
    assert (run["answer"], run["exit_code"], project.trials("dense")) == ("refused", 12, [])
    assert "is dense" in run["reason"]
    assert not list((project.root / ".orderproof").glob("logs/dense*"))
    assert "up to date" in project.tool(sys.executable, "-m", "dvc", "status", "measure@dense")


def test_exit_codes_are_the_verdicts_own_only_when_asked(project: Project) -> None:
    project.run("measure", "dense", "--only-if-changed")
    project.run("measure", "dense", "--exit-code", code=12)


def test_status_tells_all_jobs(project: Project, measured: Any) -> None:
    runs = {job["job"]: job["runs"] for job in project.json("status")}
    assert runs["six-domains"]["measure"]["id"] == measured["id"]
    assert runs["six-domains"]["measure"]["answer"] == measured["answer"]
    assert "measure" not in runs["slow"]


@pytest.mark.long
def test_an_aa_test_reaches_neither_a_promotion_nor_dvc(project: Project, measured: Any) -> None:
    order = (project.root / "data" / "six-domains" / "order.json").read_bytes()
    lock = (project.root / "dvc.lock").read_bytes()
    run = project.json("measure", "six-domains", "--aa")
    assert run["verb"] == "aa"
    assert run["answer"] in ("keep", "inconclusive", "promote")
    assert "promoted" not in run["details"]
    assert (project.root / "reports" / "six-domains" / "aa" / run["id"] / "run.json").exists()
    assert (project.root / "data" / "six-domains" / "order.json").read_bytes() == order
    assert (project.root / "dvc.lock").read_bytes() == lock
    assert project.json("decide", "six-domains", "--aa")["same_as_recorded"]
    assert len(project.trials("six-domains")) == 1
