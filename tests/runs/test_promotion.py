"""The two files of a job's chosen order: written together, read back, and reported where they are broken."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from orderproof.job.hashing import md5_of
from orderproof.job.spec import Job
from orderproof.orders.order import Order
from orderproof.runs import promotion
from orderproof.runs.promotion import (
    PromotionError,
    current_order,
    demote,
    keep_current,
    read_promotion,
    write_promotion,
)
from orderproof.runs.promotion_record import Evidence, Promotion, VerdictSummary, engine_fingerprint

IDS = [f"p{i}" for i in range(12)]
SORTED = np.array([0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11])
TRIAL = "20261129T144640Z-3f9a"
PROMOTE = VerdictSummary(
    verdict="promote", reason="surely faster", blocks=5, gain=0.183, gain_low=0.15, gain_high=0.21, outputs=None
)
KEEP = PROMOTE.model_copy(update={"verdict": "keep", "gain": 0.002, "gain_low": None, "gain_high": None})
PROMOTED = Evidence(verdict=PROMOTE, trial=TRIAL, manifest_sha256="5ha", model="f00d", engine="e", mode="eager")
KEPT = PROMOTED.model_copy(update={"verdict": KEEP})


@pytest.fixture
def job(tmp_path: Path) -> Job:
    job = Job(name="six-domains", root=tmp_path, prompts="data/six-domains/prompts.jsonl", model="data/models/demo-moe")
    write_prompts(job)
    return job


def write_prompts(job: Job, first_text: str = "hello") -> None:
    job.data_dir.mkdir(parents=True, exist_ok=True)
    rows = [{"id": prompt_id, "text": first_text if i == 0 else f"text {i}"} for i, prompt_id in enumerate(IDS)]
    job.prompts_path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def clustered(job: Job) -> Order:
    return Order(SORTED, "cluster", {"clusters": 3}, {"kmeans": 0}, md5_of(job.prompts_path))


def promote(job: Job, evidence: Evidence = PROMOTED) -> Promotion:
    return write_promotion(job, clustered(job), IDS, evidence)


def files(job: Job) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in job.data_dir.glob("order.*")}


def sent_ids(job: Job) -> list[str]:
    rows = pq.read_table(job.data_dir / "order.parquet").to_pylist()
    assert [row["position"] for row in rows] == list(range(len(rows)))
    return [row["prompt_id"] for row in rows]


# -- promoting ---------------------------------------------------------------------------------------------------------


def test_a_promotion_is_kept_with_all_that_it_rests_on(job: Job) -> None:
    order = clustered(job)
    promotion = write_promotion(job, order, IDS, PROMOTED.model_copy(update={"mlflow_run": "run-1"}))
    assert sent_ids(job) == [IDS[i] for i in SORTED]
    assert promotion == read_promotion(job)
    assert promotion.promoted
    assert promotion.order == order.record()
    assert promotion.verdict == PROMOTE
    assert (promotion.trial, promotion.manifest_sha256) == (TRIAL, "5ha")
    assert (promotion.model, promotion.engine, promotion.mode) == ("f00d", "e", "eager")
    assert (promotion.mlflow_run, promotion.prompts) == ("run-1", 12)
    headline = "six-domains: promote the cluster order; promote, gain +18.3% (+15.0% to +21.0%) in 5 blocks"
    assert promotion.headline == headline


def test_the_promoted_order_is_the_current_one(job: Job) -> None:
    order = clustered(job)
    promote(job)
    current = current_order(job, order.dataset_md5, IDS)
    assert current.permutation.tolist() == SORTED.tolist()
    assert current.record() == order.record()


def test_a_promotion_for_the_same_evidence_again_leaves_the_files_byte_for_byte(job: Job) -> None:
    first = promote(job)
    before = files(job)
    assert promote(job) == first
    assert files(job) == before


def test_a_promotion_without_mlflow_keeps_the_mlflow_run_that_its_trial_already_has(job: Job) -> None:
    promote(job, PROMOTED.model_copy(update={"mlflow_run": "run-1"}))
    assert promote(job).mlflow_run == "run-1"
    assert promote(job, PROMOTED.model_copy(update={"trial": "20261130T144640Z-77aa"})).mlflow_run is None


@pytest.mark.parametrize("edit", ["changed", "removed"])
def test_an_order_of_prompts_that_changed_since_is_not_written(job: Job, edit: str) -> None:
    order = clustered(job)
    if edit == "changed":
        write_prompts(job, "hallo")
        expected = order.dataset_md5
    else:
        job.prompts_path.unlink()
        expected = "does not exist"
    with pytest.raises(PromotionError, match=expected):
        write_promotion(job, order, IDS, PROMOTED)
    with pytest.raises(PromotionError, match=expected):
        keep_current(job, order.dataset_md5, IDS, KEPT)
    assert files(job) == {}


@pytest.mark.parametrize(
    "other", [{"args": {"max_num_seqs": 8}}, {"env": {"A": "2"}}, {"replicas": 2}, {"args": {}}, {"env": {}}]
)
def test_engines_with_other_settings_have_other_fingerprints(other: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"args": {"max_num_seqs": 4}, "env": {"A": "1"}, "replicas": 1}
    same = engine_fingerprint(**settings)
    assert same == engine_fingerprint(**settings)
    assert same != engine_fingerprint(**{**settings, **other})


# -- keeping -----------------------------------------------------------------------------------------------------------


def test_without_a_promotion_the_files_hold_the_files_own_order(job: Job) -> None:
    kept = keep_current(job, md5_of(job.prompts_path), IDS, KEPT)
    assert sent_ids(job) == IDS
    assert (kept.promoted, kept.order.method, kept.verdict) == (False, "file", KEEP)
    assert kept.headline == "six-domains: keep the file order; keep, gain +0.2% in 5 blocks"
    assert read_promotion(job) == kept


def test_a_job_refused_before_any_trial_has_its_order_too(job: Job) -> None:
    refused = VerdictSummary(
        verdict="refused", reason="a dense model", blocks=0, gain=None, gain_low=None, gain_high=None, outputs=None
    )
    kept = keep_current(job, md5_of(job.prompts_path), IDS, Evidence(verdict=refused))
    assert (kept.trial, kept.model, kept.mode) == (None, None, None)
    assert kept.headline == "six-domains: keep the file order; refused"


def test_an_earlier_promotion_that_fits_stays_byte_for_byte(job: Job) -> None:
    promoted = promote(job)
    before = files(job)
    assert keep_current(job, md5_of(job.prompts_path), IDS, KEPT) == promoted
    assert files(job) == before


def test_a_promotion_for_an_older_dataset_gives_way_to_the_files_own_order(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    promote(job)
    write_prompts(job, "hallo")
    now = md5_of(job.prompts_path)
    assert current_order(job, now, IDS).method == "file"
    assert job.prompts in caplog.text
    assert not keep_current(job, now, IDS, Evidence()).promoted
    assert sent_ids(job) == IDS


# -- demoting ----------------------------------------------------------------------------------------------------------


def test_a_demotion_goes_back_to_the_files_order_and_says_what_was_taken_back(job: Job) -> None:
    promoted = promote(job)
    record = demote(job, IDS, "new model next week")
    assert sent_ids(job) == IDS
    assert current_order(job, md5_of(job.prompts_path), IDS).method == "file"
    assert record == read_promotion(job)
    assert not record.promoted
    demoted = record.demoted
    assert demoted is not None
    assert (demoted.order, demoted.verdict, demoted.trial) == (promoted.order, promoted.verdict, TRIAL)
    times = demoted.promoted_utc, demoted.demoted_utc
    assert (*times, demoted.reason) == (promoted.created_utc, record.created_utc, "new model next week")


def test_a_later_trial_that_promotes_nothing_still_holds_the_demotion(job: Job) -> None:
    promote(job)
    back = demote(job, IDS)
    kept = keep_current(job, md5_of(job.prompts_path), IDS, KEPT)
    assert (kept.promoted, kept.demoted) == (False, back.demoted)


def test_nothing_promoted_means_nothing_to_demote(job: Job) -> None:
    with pytest.raises(PromotionError, match="six-domains: no order is promoted"):
        demote(job, IDS)
    keep_current(job, md5_of(job.prompts_path), IDS, Evidence())
    before = files(job)
    with pytest.raises(PromotionError, match="no order is promoted"):
        demote(job, IDS)
    assert files(job) == before


# -- reading -----------------------------------------------------------------------------------------------------------


def test_a_job_that_was_never_measured_runs_in_the_files_order(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    assert read_promotion(job) is None
    assert current_order(job, md5_of(job.prompts_path), IDS).permutation.tolist() == list(range(12))
    assert caplog.text == ""


def test_a_crash_between_the_two_files_leaves_no_promotion_and_says_so(
    job: Job, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_current(job, md5_of(job.prompts_path), IDS, Evidence())

    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(promotion, "write_atomically", crash)
    with pytest.raises(KeyboardInterrupt):
        promote(job)
    monkeypatch.undo()
    with caplog.at_level(logging.WARNING):
        assert read_promotion(job) is None
        assert current_order(job, md5_of(job.prompts_path), IDS).method == "file"
    assert "order.parquet does not have the md5" in caplog.text
    assert promote(job) == read_promotion(job)


@pytest.mark.parametrize(("lost", "left"), [("order.parquet", "order.json"), ("order.json", "order.parquet")])
def test_half_of_a_pair_is_no_promotion_and_is_named(
    job: Job, caplog: pytest.LogCaptureFixture, lost: str, left: str
) -> None:
    promote(job)
    (job.data_dir / lost).unlink()
    assert read_promotion(job) is None
    assert f"only {left} exists" in caplog.text


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("{", "", r"the file: Invalid JSON"),
        ('"promoted"', '"promotd"', r"promoted: Field required"),
        ("promotion/1", "promotion/9", r"schema_version: Input should be 'orderproof/promotion/1'"),
    ],
)
def test_a_record_that_cannot_be_read_as_one_is_an_error_that_says_what_to_do(
    job: Job, old: str, new: str, complaint: str
) -> None:
    keep_current(job, md5_of(job.prompts_path), IDS, Evidence())
    path = job.data_dir / "order.json"
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(PromotionError, match=rf"order\.json .*\({complaint}.*dvc checkout"):
        read_promotion(job)


def test_a_record_whose_file_cannot_be_opened_is_an_error_too(job: Job) -> None:
    keep_current(job, md5_of(job.prompts_path), IDS, Evidence())
    (job.data_dir / "order.json").unlink()
    (job.data_dir / "order.json").mkdir()
    with pytest.raises(PromotionError, match=r"order\.json .*Is a directory"):
        read_promotion(job)


def test_a_record_goes_to_json_and_back_without_loss(job: Job) -> None:
    promotion = promote(job)
    assert Promotion.model_validate_json(promotion.model_dump_json()) == promotion
    with pytest.raises(ValueError, match="frozen"):
        promotion.promoted = False
