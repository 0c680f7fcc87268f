"""Only a verdict's own order is promoted, and only on the evidence of its own trial."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orderproof.job.hashing import md5_of
from orderproof.job.spec import Job
from orderproof.measure.promote import promote_or_keep
from orderproof.measure.trial_records import TOKENS_SCHEMA, Manifest, Pass, SliceDesign, WarmUp
from orderproof.measure.trial_store import Trial, record_block, register
from orderproof.measure.verdict import Rule, Verdict
from orderproof.orders.order import Order
from orderproof.outputs.passes import CANDIDATE, CONTROL
from orderproof.runs.promotion import ORDER_FILE, PromotionError, demote, read_promotion
from orderproof.runs.promotion_record import Promotion, engine_fingerprint
from tests.support.measured_job import plan_of
from tests.support.trial_maker import trial_folder

IDS = [f"p{i}" for i in range(12)]
SORTED = np.array([0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11])
SAMPLE = [0, 1, 3, 4, 8, 11]
PROMOTE = Verdict(
    verdict="promote", reason="surely faster", exit_code=0, blocks=5, gain=0.183, gain_low=0.15, gain_high=0.21
)
KEEP = Verdict(verdict="keep", reason="surely below the minimum effect", exit_code=10, blocks=5, gain=0.002)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    job = Job.model_validate(
        {
            "name": "six-domains",
            "root": tmp_path,
            "prompts": "data/six-domains/prompts.jsonl",
            "model": "data/models/demo-moe",
            "engine": {"args": {"max_num_seqs": 4}},
        }
    )
    write_prompts(job)
    job.model_path.mkdir(parents=True)
    (job.model_path / "config.json").write_text("{}")
    return job


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
        "slices": SliceDesign(
            kind="clean",
            seats=4,
            sizes=(len(sent),),
            labels=(None,),
            washout=0,
            salted=False,
            warm_up=WarmUp(requests=1, seconds=1.0, prefill_cost=0.1),
        ),
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
    trial = register(trial_folder(job, manifest.trial), manifest)
    for block in range(1, blocks + 1):
        passes = [_pass(manifest, block, arm, len(sent)) for arm in (CONTROL, CANDIDATE)]
        trial = record_block(trial, passes, dict.fromkeys((CONTROL, CANDIDATE), _tokens([IDS[i] for i in sent])))
    return trial


def _pass(manifest: Manifest, block: int, arm: str, requests: int) -> Pass:
    numbers = {name: 1 for name, field in Pass.model_fields.items() if field.is_required()}
    names = {"pass_id": f"b{block:02d}-{arm}", "arm": arm, "order_sha256": "0", "started_utc": "0"}
    places = {"block": block, "run": 0, "requests": requests, "manifest_sha256": manifest.sha256}
    return Pass.model_validate({**numbers, **names, **places})


def _tokens(ids: list[str]) -> pa.Table:
    columns = {
        "prompt_id": ids,
        "sample": [0] * len(ids),
        "position": range(len(ids)),
        "finish_reason": ["stop"] * len(ids),
    }
    return pa.table({name: columns.get(name, [None] * len(ids)) for name in TOKENS_SCHEMA.names}, schema=TOKENS_SCHEMA)


def decided(
    job: Job,
    trial: Trial,
    verdict: Verdict = PROMOTE,
    order: Order | None = None,
    ids: list[str] = IDS,
    mlflow_run: str | None = None,
) -> tuple[Promotion, list[str]]:
    return promote_or_keep(plan_of(job, order or clustered(job), list(ids)), ids, trial, verdict, mlflow_run)


def order_files(job: Job) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in job.data_dir.glob("order.*")}


# -- what is promoted --------------------------------------------------------------------------------------------------


def test_a_promotion_rests_on_its_trial(job: Job) -> None:
    trial = measured(job, clustered(job))
    promotion, notes = decided(job, trial, mlflow_run="run-1")
    assert (promotion.promoted, notes) == (True, [])
    assert promotion == read_promotion(job)
    assert promotion.order == clustered(job).record()
    assert promotion.verdict is not None
    assert (promotion.verdict.verdict, promotion.verdict.gain, promotion.verdict.blocks) == ("promote", 0.183, 5)
    assert (promotion.trial, promotion.manifest_sha256) == (trial.manifest.trial, trial.manifest.sha256)
    assert (promotion.model, promotion.mode, promotion.mlflow_run) == ("f00d", "eager", "run-1")
    assert promotion.engine == engine_fingerprint({"max_num_seqs": 4}, {"A": "1"}, 1)


def test_a_sample_of_the_prompts_promotes_the_order_of_the_whole_file(job: Job) -> None:
    decided(job, measured(job, clustered(job), sample=SAMPLE))
    assert pq.read_table(job.data_dir / ORDER_FILE)["prompt_id"].to_pylist() == [IDS[i] for i in SORTED]


def test_a_demotion_leaves_the_evidence_as_it_is(job: Job) -> None:
    trial = measured(job, clustered(job))
    decided(job, trial)
    evidence = {path: path.read_bytes() for path in sorted(trial.folder.rglob("*")) if path.is_file()}
    demote(job, IDS)
    assert {path: path.read_bytes() for path in sorted(trial.folder.rglob("*")) if path.is_file()} == evidence


# -- what is not -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verdict", ["keep", "inconclusive", "refused", "invalid"])
def test_no_other_verdict_promotes(job: Job, verdict: str) -> None:
    promotion, _ = decided(job, measured(job, clustered(job)), PROMOTE.model_copy(update={"verdict": verdict}))
    assert (promotion.promoted, promotion.order.method) == (False, "file")
    assert pq.read_table(job.data_dir / ORDER_FILE)["prompt_id"].to_pylist() == IDS


@pytest.mark.parametrize("verdict", [PROMOTE, KEEP])
def test_an_aa_test_never_decides_an_order_whatever_its_verdict(job: Job, verdict: Verdict) -> None:
    with pytest.raises(PromotionError, match="A/A test"):
        decided(job, measured(job, clustered(job), aa=True), verdict)
    assert order_files(job) == {}


@pytest.mark.parametrize("verdict", [PROMOTE, KEEP])
def test_a_trial_of_another_job_decides_nothing(job: Job, verdict: Verdict) -> None:
    with pytest.raises(PromotionError, match="'dense', not of 'six-domains'"):
        decided(job, measured(job, clustered(job), job="dense"), verdict)
    assert order_files(job) == {}


@pytest.mark.parametrize("sample", [None, SAMPLE])
def test_an_order_that_was_not_the_timed_one_is_not_promoted(job: Job, sample: list[int] | None) -> None:
    trial = measured(job, clustered(job), sample)
    with pytest.raises(PromotionError, match=r"the cluster order is not the one that trial .* timed"):
        decided(job, trial, order=clustered(job, [3, 0, *SORTED[2:]]))
    assert order_files(job) == {}


def test_an_order_of_other_parameters_is_not_promoted(job: Job) -> None:
    trial = measured(job, clustered(job))
    other = replace(clustered(job), parameters={"clusters": 4}, seeds={"kmeans": 1})
    with pytest.raises(PromotionError, match="another parameters, seeds than trial"):
        decided(job, trial, order=other)
    assert order_files(job) == {}


def test_an_order_that_leaves_a_prompt_out_is_not_promoted(job: Job) -> None:
    with pytest.raises(PromotionError, match="an order of 12 for 11 prompts"):
        decided(job, measured(job, clustered(job)), ids=IDS[:-1])
    assert order_files(job) == {}


def test_a_trial_without_a_valid_block_promotes_nothing(job: Job) -> None:
    with pytest.raises(PromotionError, match="has no valid block"):
        decided(job, measured(job, clustered(job), blocks=0))
    assert order_files(job) == {}


@pytest.mark.parametrize("verdict", [PROMOTE, KEEP])
@pytest.mark.parametrize("edit", ["changed", "removed"])
def test_prompts_that_changed_since_the_plan_are_detected_and_nothing_is_written(
    job: Job, edit: str, verdict: Verdict
) -> None:
    order = clustered(job)
    trial = measured(job, order)
    if edit == "changed":
        write_prompts(job, "hallo")
    else:
        job.prompts_path.unlink()
    with pytest.raises(PromotionError, match=r"prompts\.jsonl"):
        decided(job, trial, verdict, order=order)
    assert order_files(job) == {}


def test_a_demoted_promotion_is_not_promoted_again_by_its_trial(job: Job) -> None:
    trial = measured(job, clustered(job))
    decided(job, trial)
    record = demote(job, IDS)
    files = order_files(job)
    promotion, notes = decided(job, trial)
    assert (promotion, len(notes)) == (record, 1)
    assert order_files(job) == files
