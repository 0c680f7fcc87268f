"""Only a verdict's own order is promoted, with all that it rests on, and it is read back or told to be broken."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orderproof.job.hashing import md5_of
from orderproof.job.spec import Job
from orderproof.measure.trial_store import TOKENS_SCHEMA, Manifest, Pass, Trial, record, register
from orderproof.measure.verdict import Rule, Verdict
from orderproof.orders.order import Order
from orderproof.outputs.passes import CANDIDATE, CONTROL
from orderproof.runs import promotion
from orderproof.runs.promotion import PromotionError, current_order, demote, keep_current, promote, read_promotion
from orderproof.runs.promotion_record import Promotion

IDS = [f"p{i}" for i in range(12)]
SORTED = np.array([0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11])
PROMOTE = Verdict(
    verdict="promote", reason="surely faster", exit_code=0, blocks=5, gain=0.183, gain_low=0.15, gain_high=0.21
)
KEEP = Verdict(verdict="keep", reason="surely below the minimum effect", exit_code=10, blocks=5, gain=0.002)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    made = Job.model_validate(
        {
            "name": "six-domains",
            "root": tmp_path,
            "prompts": "data/six-domains/prompts.jsonl",
            "model": "data/models/demo-moe",
            "engine": {"args": {"max_num_seqs": 4}},
        }
    )
    write_prompts(made)
    return made


def write_prompts(job: Job, first_text: str = "hello") -> None:
    job.data_dir.mkdir(parents=True, exist_ok=True)
    rows = [{"id": prompt_id, "text": first_text if i == 0 else f"text {i}"} for i, prompt_id in enumerate(IDS)]
    job.prompts_path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def clustered(job: Job, permutation: Any = SORTED) -> Order:
    return Order(np.array(permutation), "cluster", {"clusters": 3}, {"kmeans": 0}, md5_of(job.prompts_path))


def measured(job: Job, /, order: Order, sample: list[int] | None = None, blocks: int = 1, **changes: Any) -> Trial:
    """A trial of `order`, or of the part of it over the sampled prompts."""
    indices = range(len(IDS)) if sample is None else sample
    sent = [int(index) for index in order.permutation if index in indices]
    part = replace(order, permutation=np.array([sorted(indices).index(index) for index in sent]))
    fields: dict[str, Any] = {
        "trial": "20261129T144640Z-3f9a",
        "job": job.name,
        "question": "q",
        "rule": Rule(),
        "arms": (CONTROL, CANDIDATE),
        "control_why": "shuffle-like",
        "control": None,
        "candidate": part.record(),
        "coin_seed": 0,
        "shuffle_seeds": tuple(range(10)),
        "validity": {"repeats": 2},
        "dataset_md5": order.dataset_md5,
        "prompts_total": len(IDS),
        "prompts_measured": len(sent),
        "measured_sha256": "0",
        "prompt_tokens": 100,
        "model": {"fingerprint": "f00d", "moe": None},
        "engine": {"args": {"max_num_seqs": 4}, "env": {"A": "1"}, "command": [], "mode": "eager"},
        "sampling": {},
        "versions": {},
        "machine": {},
        "created_utc": "2026-11-29T14:46:40+00:00",
    }
    manifest = Manifest(**{**fields, **changes})
    trial = register(job.reports_dir / manifest.trial, manifest)
    for block in range(1, blocks + 1):
        for turn, arm in enumerate((CONTROL, CANDIDATE)):
            trial = record(trial, _pass(manifest, block, turn, arm, len(sent)), _tokens([IDS[i] for i in sent]))
    return trial


def _pass(manifest: Manifest, block: int, turn: int, arm: str, requests: int) -> Pass:
    numbers = {name: 1 for name, field in Pass.model_fields.items() if field.is_required()}
    names = {"pass_id": f"b{block:02d}-{arm}", "arm": arm, "order_sha256": "0", "started_utc": "0"}
    places = {"block": block, "attempt": 0, "turn": turn, "requests": requests, "manifest_sha256": manifest.sha256}
    return Pass.model_validate({**numbers, **names, **places})


def _tokens(ids: list[str]) -> pa.Table:
    columns = {"prompt_id": ids, "position": range(len(ids)), "finish_reason": ["stop"] * len(ids)}
    return pa.table({name: columns.get(name, [None] * len(ids)) for name in TOKENS_SCHEMA.names}, schema=TOKENS_SCHEMA)


def files(job: Job) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in job.data_dir.glob("order.*")}


def rows(job: Job) -> list[tuple[int, str]]:
    table = pq.read_table(job.data_dir / "order.parquet")
    return [(row["position"], row["prompt_id"]) for row in table.to_pylist()]


# -- promoting ---------------------------------------------------------------------------------------------------------


def test_a_promotion_pins_the_order_with_all_that_it_rests_on(job: Job) -> None:
    order = clustered(job)
    trial = measured(job, order)
    made = promote(job, trial, PROMOTE, order, IDS, mlflow_run="run-1")
    assert rows(job) == [(k, IDS[i]) for k, i in enumerate(SORTED)]
    assert made == read_promotion(job)
    assert made.promoted
    assert made.order == order.record()
    assert made.verdict is not None
    assert (made.verdict.verdict, made.verdict.gain, made.verdict.blocks) == ("promote", 0.183, 5)
    assert (made.trial, made.manifest_sha256) == (trial.manifest.trial, trial.manifest.sha256)
    assert (made.model, made.mode, made.mlflow_run, made.prompts) == ("f00d", "eager", "run-1", 12)
    assert made.engine == hashlib.sha256(b'{"args":{"max_num_seqs":4},"env":{"A":"1"}}').hexdigest()
    assert (
        made.headline == "six-domains: promote the cluster order; promote, gain +18.3% (+15.0% to +21.0%) in 5 blocks"
    )


def test_the_promoted_order_is_the_current_one(job: Job) -> None:
    order = clustered(job)
    promote(job, measured(job, order), PROMOTE, order, IDS)
    current = current_order(job, order.dataset_md5, IDS)
    assert current.permutation.tolist() == SORTED.tolist()
    assert current.record() == order.record()


def test_a_sample_of_the_prompts_promotes_the_order_of_the_whole_file(job: Job) -> None:
    order = clustered(job)
    promote(job, measured(job, order, sample=[0, 1, 3, 4, 8, 11]), PROMOTE, order, IDS)
    assert [prompt_id for _, prompt_id in rows(job)] == [IDS[i] for i in SORTED]


@pytest.mark.parametrize("verdict", ["keep", "inconclusive", "refused", "invalid"])
def test_no_other_verdict_promotes(job: Job, verdict: str) -> None:
    order = clustered(job)
    other = PROMOTE.model_copy(update={"verdict": verdict})
    with pytest.raises(PromotionError, match=f"the verdict is '{verdict}' \\(surely faster\\)"):
        promote(job, measured(job, order), other, order, IDS)
    assert files(job) == {}


def test_a_placebo_is_never_promoted_whatever_its_verdict(job: Job) -> None:
    order = clustered(job)
    placebo = measured(job, order, placebo=True)
    with pytest.raises(PromotionError, match="is a placebo"):
        promote(job, placebo, PROMOTE, order, IDS)
    with pytest.raises(PromotionError, match="is a placebo"):
        keep_current(job, order.dataset_md5, IDS, placebo, KEEP)
    assert files(job) == {}


def test_a_trial_of_another_job_promotes_nothing(job: Job) -> None:
    order = clustered(job)
    with pytest.raises(PromotionError, match="is of the job 'dense', not of 'six-domains'"):
        promote(job, measured(job, order, job="dense"), PROMOTE, order, IDS)


@pytest.mark.parametrize("sample", [None, [0, 1, 3, 4, 8, 11]])
def test_an_order_that_was_not_the_timed_one_is_not_promoted(job: Job, sample: list[int] | None) -> None:
    trial = measured(job, clustered(job), sample)
    swapped = clustered(job, [3, 0, *SORTED[2:]])
    with pytest.raises(PromotionError, match=r"the cluster order is not the one that trial .* timed"):
        promote(job, trial, PROMOTE, swapped, IDS)
    assert files(job) == {}


def test_an_order_of_another_making_is_not_promoted(job: Job) -> None:
    order = clustered(job)
    trial = measured(job, order)
    with pytest.raises(PromotionError, match="another parameters, seeds than trial"):
        promote(job, trial, PROMOTE, replace(order, parameters={"clusters": 4}, seeds={"kmeans": 1}), IDS)


def test_an_order_that_leaves_a_prompt_out_is_not_promoted(job: Job) -> None:
    order = clustered(job)
    with pytest.raises(PromotionError, match="an order of 12 for 11 prompts"):
        promote(job, measured(job, order), PROMOTE, order, IDS[:-1])


def test_a_trial_without_a_valid_block_promotes_nothing(job: Job) -> None:
    order = clustered(job)
    with pytest.raises(PromotionError, match="has no valid block"):
        promote(job, measured(job, order, blocks=0), PROMOTE, order, IDS)


@pytest.mark.parametrize("edit", ["changed", "removed"])
def test_a_dataset_that_changed_since_the_plan_is_caught_and_nothing_is_written(job: Job, edit: str) -> None:
    order = clustered(job)
    trial = measured(job, order)
    if edit == "changed":
        write_prompts(job, "hallo")
        expected = r"prompts\.jsonl is not the file that was measured \(md5 \w{32} then, \w{32} now\)"
    else:
        job.prompts_path.unlink()
        expected = r"prompts\.jsonl cannot be read \(No such file or directory\)"
    with pytest.raises(PromotionError, match=expected):
        promote(job, trial, PROMOTE, order, IDS)
    with pytest.raises(PromotionError, match=expected):
        keep_current(job, order.dataset_md5, IDS, trial, KEEP)
    assert files(job) == {}


# -- keeping -----------------------------------------------------------------------------------------------------------


def test_without_a_promotion_the_files_hold_the_files_own_order(job: Job) -> None:
    order = clustered(job)
    kept = keep_current(job, order.dataset_md5, IDS, measured(job, order), KEEP)
    assert [prompt_id for _, prompt_id in rows(job)] == IDS
    assert (kept.promoted, kept.order.method) == (False, "file")
    assert kept.headline == "six-domains: keep the file order; keep, gain +0.2% in 5 blocks"
    assert read_promotion(job) == kept


def test_a_job_refused_before_any_trial_has_its_order_too(job: Job) -> None:
    refused = Verdict(verdict="refused", reason="a dense model", exit_code=12, blocks=0)
    kept = keep_current(job, md5_of(job.prompts_path), IDS, verdict=refused)
    assert (kept.trial, kept.model, kept.mode) == (None, None, None)
    assert kept.headline == "six-domains: keep the file order; refused"


def test_an_earlier_promotion_that_fits_stays_byte_for_byte(job: Job) -> None:
    order = clustered(job)
    trial = measured(job, order)
    promoted = promote(job, trial, PROMOTE, order, IDS)
    before = files(job)
    assert keep_current(job, order.dataset_md5, IDS, trial, KEEP) == promoted
    assert files(job) == before


def test_a_promotion_for_an_older_dataset_gives_way_to_the_files_own_order(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    order = clustered(job)
    promote(job, measured(job, order), PROMOTE, order, IDS)
    write_prompts(job, "hallo")
    now = md5_of(job.prompts_path)
    assert current_order(job, now, IDS).method == "file"
    assert "the promoted order is of another version of data/six-domains/prompts.jsonl" in caplog.text
    assert not keep_current(job, now, IDS).promoted
    assert [prompt_id for _, prompt_id in rows(job)] == IDS


# -- demoting ----------------------------------------------------------------------------------------------------------


def test_a_demotion_goes_back_to_the_files_order_and_keeps_the_evidence(job: Job) -> None:
    order = clustered(job)
    trial = measured(job, order)
    promoted = promote(job, trial, PROMOTE, order, IDS)
    evidence = {path: path.read_bytes() for path in sorted(trial.folder.rglob("*")) if path.is_file()}
    back = demote(job, IDS, "new model next week")
    assert [prompt_id for _, prompt_id in rows(job)] == IDS
    assert current_order(job, order.dataset_md5, IDS).method == "file"
    assert back == read_promotion(job)
    assert not back.promoted
    taken = back.demoted
    assert taken is not None
    assert (taken.order, taken.verdict, taken.trial) == (promoted.order, promoted.verdict, trial.manifest.trial)
    assert (taken.promoted_utc, taken.demoted_utc, taken.reason) == (
        promoted.created_utc,
        back.created_utc,
        "new model next week",
    )
    assert {path: path.read_bytes() for path in sorted(trial.folder.rglob("*")) if path.is_file()} == evidence


def test_a_later_trial_that_promotes_nothing_still_tells_of_the_demotion(job: Job) -> None:
    order = clustered(job)
    trial = measured(job, order)
    promote(job, trial, PROMOTE, order, IDS)
    back = demote(job, IDS)
    kept = keep_current(job, order.dataset_md5, IDS, trial, KEEP)
    assert (kept.promoted, kept.demoted) == (False, back.demoted)


def test_nothing_promoted_means_nothing_to_demote(job: Job) -> None:
    with pytest.raises(PromotionError, match="six-domains: no order is promoted"):
        demote(job, IDS)
    keep_current(job, md5_of(job.prompts_path), IDS)
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
    keep_current(job, md5_of(job.prompts_path), IDS)
    order = clustered(job)
    trial = measured(job, order)

    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(promotion, "write_atomically", crash)
    with pytest.raises(KeyboardInterrupt):
        promote(job, trial, PROMOTE, order, IDS)
    monkeypatch.undo()
    with caplog.at_level(logging.WARNING):
        assert read_promotion(job) is None
        assert current_order(job, order.dataset_md5, IDS).method == "file"
    assert "order.parquet is not the one that order.json tells of" in caplog.text
    assert promote(job, trial, PROMOTE, order, IDS) == read_promotion(job)


@pytest.mark.parametrize(("lost", "left"), [("order.parquet", "order.json"), ("order.json", "order.parquet")])
def test_half_of_a_pair_is_no_promotion_and_is_named(
    job: Job, caplog: pytest.LogCaptureFixture, lost: str, left: str
) -> None:
    order = clustered(job)
    promote(job, measured(job, order), PROMOTE, order, IDS)
    (job.data_dir / lost).unlink()
    assert read_promotion(job) is None
    assert f"only {left} is there" in caplog.text


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("{", "", r"the file: Invalid JSON"),
        ('"promoted"', '"promotd"', r"promoted: Field required"),
        ("promotion/1", "promotion/9", r"schema_version: Input should be 'orderproof/promotion/1'"),
    ],
)
def test_a_record_that_cannot_be_understood_is_an_error_that_says_what_to_do(
    job: Job, old: str, new: str, complaint: str
) -> None:
    keep_current(job, md5_of(job.prompts_path), IDS)
    path = job.data_dir / "order.json"
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(PromotionError, match=rf"order\.json is not the record of an order \({complaint}.*dvc checkout"):
        read_promotion(job)


def test_a_record_that_cannot_be_read_is_an_error_too(job: Job) -> None:
    keep_current(job, md5_of(job.prompts_path), IDS)
    (job.data_dir / "order.json").unlink()
    (job.data_dir / "order.json").mkdir()
    with pytest.raises(PromotionError, match=r"order\.json cannot be read: Is a directory"):
        read_promotion(job)


def test_a_record_goes_to_json_and_back_without_loss(job: Job) -> None:
    order = clustered(job)
    made = promote(job, measured(job, order), PROMOTE, order, IDS)
    assert Promotion.model_validate_json(made.model_dump_json()) == made
    with pytest.raises(ValueError, match="frozen"):
        made.promoted = False
