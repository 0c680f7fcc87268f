"""`orderproof measure` on real vLLM, MLflow, DVC, Prefect, Great Expectations: records are asserted, not verdicts."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from orderproof.measure.trial import randomize_arms
from orderproof.measure.trial_store import Trial
from orderproof.outputs.passes import PassOutputs
from tests.e2e.conftest import BLOCKS, Project

pytestmark = pytest.mark.engine


@pytest.fixture(scope="session")
def trial(measured: Any) -> Trial:
    return Trial.read(Path(measured["folder"]))


def test_a_trial_records_every_pass_of_every_planned_block(trial: Trial) -> None:
    assert [block.number for block in trial.blocks()] == list(range(1, BLOCKS + 1))
    assert {arm for block in trial.blocks() for arm in block.passes} == {"control", "candidate"}
    for timed in (p for p in trial.passes if p.block):
        assert timed.requests == 96
        assert timed.output_tokens == 96 * 16
        assert timed.failed == timed.cut_short == timed.preempted == timed.admission_inversions == 0
        assert timed.throughput_req_s == pytest.approx(96 / timed.wall_s)
        assert timed.steps >= 96 * 16 / 8


def test_the_coin_decides_which_arm_comes_first(trial: Trial) -> None:
    coin_seed, arms = trial.manifest.coin_seed, trial.manifest.arms
    for number, attempts in trial.block_attempts().items():
        for attempt in attempts:
            assert [timed.arm for timed in attempt] == randomize_arms(coin_seed, number, attempt[0].attempt, arms)
            assert [timed.turn for timed in attempt] == list(range(len(arms)))
            assert attempt == sorted(attempt, key=lambda timed: timed.started_utc)


def test_every_block_shuffles_afresh_and_the_candidate_stays(trial: Trial) -> None:
    blocks = trial.blocks()
    assert len({block.passes["control"].order_sha256 for block in blocks}) == BLOCKS
    assert {block.passes["candidate"].order_sha256 for block in blocks} == {trial.manifest.candidate.sha256}


def test_the_candidate_was_sent_in_label_order_and_admitted_as_sent(trial: Trial) -> None:
    tokens = trial.tokens("b01-candidate")
    labels = [prompt.rsplit("-", 1)[0] for prompt in tokens["prompt_id"].to_pylist()]
    assert sum(a != b for a, b in itertools.pairwise(labels)) == 5, "six groups, five borders"
    assert tokens["admitted"].to_pylist() == tokens["position"].to_pylist()


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
    assert {key: again[key] for key in ("verdict", "gain", "gain_low", "outputs")} == {
        key: measured[key] for key in ("verdict", "gain", "gain_low", "outputs")
    }


def test_the_order_beside_the_dataset_holds_every_prompt_once(project: Project, measured: Any) -> None:
    folder = project.root / "data" / "six-domains"
    table = pq.read_table(folder / "order.parquet")
    record = json.loads((folder / "order.json").read_text())
    assert table["position"].to_pylist() == list(range(96))
    assert len(set(table["prompt_id"].to_pylist())) == 96
    assert record["trial"] == measured["trial"]
    assert record["promoted"] == (measured["verdict"] == "promote")
    assert record["mlflow_run"] == measured["mlflow_run"]


def test_dvc_holds_the_outcome_and_has_nothing_left_to_do(project: Project, measured: Any) -> None:
    assert "up to date" in project.tool(sys.executable, "-m", "dvc", "status", "measure@six-domains")
    said = project.tool(sys.executable, "-m", "dvc", "repro", "measure@six-domains")
    assert "didn't change" in said
    assert len(project.trials("six-domains")) == 1, "an unchanged job is not measured again"


def test_mlflow_compares_the_passes(project: Project, measured: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    from mlflow import MlflowClient

    from orderproof.runs.trial_tracking import tracking_uri

    client = MlflowClient(tracking_uri(project.root))
    experiment = client.get_experiment_by_name("orderproof/six-domains")
    assert experiment is not None
    parent = client.get_run(measured["mlflow_run"])
    assert parent.data.tags["orderproof.trial"] == measured["trial"]
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
    assert {"verdict.html", "verdict.json", "manifest.json", "passes.jsonl", "gain.png", "throughput.png"} <= names


def test_the_page_stands_alone(measured: Any) -> None:
    page = Path(measured["page"]).read_text("utf-8")
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert 'src="data:image/png;base64,' in page
    assert "not your gain" in page


def test_validation_is_kept_and_readable(project: Project, measured: Any) -> None:
    folder = project.root / "reports" / "validation" / "six-domains"
    assert json.loads((folder / "validation.json").read_text())
    assert list((folder / "validation").glob("**/*.html"))


def test_a_dense_model_is_refused_before_an_engine_starts(project: Project) -> None:
    outcome = project.json("measure", "dense")
    assert (outcome["verdict"], outcome["trial"]) == ("refused", None)
    assert "dense model" in outcome["reason"]
    assert not (project.root / ".orderproof" / "logs" / "dense.log").exists()
    assert "up to date" in project.tool(sys.executable, "-m", "dvc", "status", "measure@dense")


def test_exit_codes_are_the_verdicts_own_only_when_asked(project: Project) -> None:
    project.run("measure", "dense", "--only-if-changed")
    project.run("measure", "dense", "--exit-code", code=12)


def test_status_tells_all_jobs(project: Project, measured: Any) -> None:
    told = {job["job"]: job for job in project.json("status")}
    assert told["six-domains"]["verdict"]["verdict"] == measured["verdict"]
    assert told["slow"]["verdict"] is None


@pytest.mark.long
def test_a_placebo_reaches_neither_a_promotion_nor_dvc(project: Project, measured: Any) -> None:
    order = (project.root / "data" / "six-domains" / "order.json").read_bytes()
    lock = (project.root / "dvc.lock").read_bytes()
    outcome = project.json("measure", "six-domains", "--placebo")
    assert outcome["placebo"]
    assert outcome["verdict"] in ("keep", "inconclusive", "promote")
    assert outcome["promoted"] is None
    assert "/reports/placebo/six-domains/" in outcome["folder"]
    assert (project.root / "data" / "six-domains" / "order.json").read_bytes() == order
    assert (project.root / "dvc.lock").read_bytes() == lock
    assert project.json("decide", "six-domains", "--placebo")["same_as_recorded"]
    assert len(project.trials("six-domains")) == 1
