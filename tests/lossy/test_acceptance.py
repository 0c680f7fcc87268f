"""Generating with a lossy routing: only where a person accepted it and evidence carries it. On the stand-in engine."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orderproof.engines.protocol import EngineError
from orderproof.engines.routing_engine import RoutingEngine
from orderproof.engines.start import start_engine
from orderproof.generate import steps as generate_steps
from orderproof.generate.checkpoint import count_done
from orderproof.generate.checkpoint_folder import FOLDER, CheckpointError
from orderproof.generate.provenance import read_provenance
from orderproof.job.hashing import md5_of
from orderproof.job.params import load_job
from orderproof.job.paths import OUTPUTS_FILE
from orderproof.job.spec import Job
from orderproof.lossy.order import order_to_compare
from orderproof.lossy.report import LOSSY, SORTED_LOSSY, LossyReport, find_report
from orderproof.lossy.routing import LossyError
from orderproof.orders.order import Order
from orderproof.prompts.prompt_file import read_prompts
from orderproof.prompts.stream import Stream
from orderproof.prompts.tokenization import tokenize
from orderproof.reproduce import steps as reproduce_steps
from orderproof.runs.promotion import demote, write_promotion
from orderproof.runs.promotion_record import Evidence
from orderproof.runs.run_store import read_run, write_run
from orderproof.status.status import read_status
from tests.standin.vllm.v1.engine.llm_engine import DRIFTS_FROM
from tests.support.batches import (
    GENERATE,
    REPRODUCE,
    TRIAL,
    edit_job,
    generate,
    generate_and,
    outputs,
    promote_label_order,
    reproduce,
)
from tests.support.lossy_project import (
    K0,
    PROMPTS,
    compare,
    give_references,
    make_lossy_project,
    own_tokens,
    report_of,
)
from tests.support.tracker import sent_runs

LATER = "20991129T144640Z-3f9a"


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The evidence is really measured."""
    job = make_lossy_project(tmp_path_factory.mktemp("lossy") / "p")
    promote_label_order(job)
    compare(job)
    return job.root


@pytest.fixture
def job(compared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """The job, with its lossy routing accepted."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    shutil.copytree(compared, tmp_path / "p")
    return edit_job(load_job(tmp_path / "p" / "params.yaml", "it"), accept_lossy={"k0": K0})


def tokens(job: Job) -> list[list[int]]:
    return [row["token_ids"] for row in outputs(job)]


def refuse(job: Job, match: str) -> None:
    """`generate` refuses before an engine starts, and leaves nothing on disk."""

    def never() -> AbstractContextManager[None]:
        raise AssertionError("an engine was started")

    with pytest.raises(LossyError, match=match) as raised:
        generate(job, run_with=replace(GENERATE, accelerator=never))
    assert "LOSSY" in str(raised.value) or "k0" in str(raised.value)
    assert not (job.data_dir / FOLDER).exists()


def evidence(job: Job) -> tuple[LossyReport, Path]:
    """The comparison on disk, and its file."""
    found = find_report(job, K0)
    assert found is not None
    return found


def edit_evidence(job: Job, change: Callable[[dict[str, Any]], None]) -> None:
    """Edit the comparison in its file."""
    _, path = evidence(job)
    record = json.loads(path.read_text())
    change(record["details"])
    path.write_text(json.dumps(record))


def compare_again(job: Job, **changes: Any) -> Path:
    """A later comparison with the same findings but for `changes`. Returns its folder."""
    run = read_run(evidence(job)[1])
    return write_run(job, run.model_copy(update={"id": LATER, "details": {**run.details, **changes}}))


def spoil_sorted(comparison: dict[str, Any]) -> None:
    (arm,) = [arm for arm in comparison["arms"] if arm["arm"] == SORTED_LOSSY]
    arm["outputs"]["scores"]["low"] = -0.5


def ids_of(job: Job) -> list[str]:
    return [json.loads(line)["id"] for line in job.prompts_path.read_text().splitlines()]


# -- accepted ----------------------------------------------------------------------------------------------------------


def test_an_accepted_lossy_routing_generates_and_everything_says_so(job: Job) -> None:
    run = generate(job, run_with=replace(GENERATE, report=generate_steps.report))
    assert all(now[:DRIFTS_FROM] == own[:DRIFTS_FROM] for now, own in zip(tokens(job), own_tokens(job), strict=True))
    assert not any(now == own for now, own in zip(tokens(job), own_tokens(job), strict=True)), "another routing"
    assert run.basis.order is not None
    assert (run.basis.order.method, run.basis.lossy_k0) == ("label", K0)
    assert run.as_json()["basis"]["lossy_k0"] == K0
    assert run.sentence.startswith("LOSSY")
    provenance = read_provenance(job.data_dir / OUTPUTS_FILE)
    assert provenance is not None
    assert provenance.key["lossy"] == {"k0": K0}

    reproduce(job, run_with=replace(REPRODUCE, report=reproduce_steps.report))
    sent = [(run.data.tags["lossy"], run.data.params["routing"][:5]) for run in sent_runs(job)]
    assert sent == [("k0 = 2", "LOSSY")] * 2
    status = read_status(job)
    assert status.lossy_k0 == K0
    assert [status.runs[verb].sentence[:5] for verb in ("generate", "reproduce")] == ["LOSSY"] * 2


def test_without_the_key_the_models_own_routing_is_back(job: Job) -> None:
    generate(job)
    run = generate(edit_job(job, accept_lossy=None))
    assert tokens(job) == own_tokens(job)
    assert (run.basis.lossy_k0, run.sentence[:3]) == (None, "it:")
    provenance = read_provenance(job.data_dir / OUTPUTS_FILE)
    assert provenance is not None
    assert "lossy" not in provenance.key, "checkpoints and baselines of the model's own routing fit"


def test_results_of_two_routings_are_never_mixed(job: Job) -> None:
    with pytest.raises(EngineError):
        generate_and(job, lambda engine: os.killpg(engine.pid, signal.SIGKILL), after=20)
    with pytest.raises(CheckpointError, match=r"lossy.k0: 2 → absent"):
        generate(edit_job(job, accept_lossy=None))
    resumed = generate(edit_job(job, accept_lossy={"k0": K0}))
    assert (resumed.figure("generated") or 0) < PROMPTS, "with the key back it continues"


def test_a_reproduction_has_the_same_routing_or_says_that_it_changed(job: Job) -> None:
    generate(job)
    same = reproduce(job)
    assert (same.answer, same.details["changes"], same.basis.lossy_k0) == ("reproduced", [], K0)
    assert same.sentence.startswith("LOSSY")
    other = reproduce(edit_job(job, accept_lossy=None))
    assert (other.answer, other.basis.lossy_k0) == ("outputs differ", None)
    assert "lossy.k0: 2 → absent" in other.as_json()["details"]["changes"]


def test_where_no_order_is_promoted_the_shuffled_arm_carries_it(job: Job) -> None:
    edit_evidence(job, spoil_sorted)
    refuse(job, "not supported by its evidence. The arm 'sorted, lossy': .*NOT inside")
    demote(job, ids_of(job))
    run = generate(job)
    assert run.basis.order is not None
    assert (run.basis.order.method, run.basis.lossy_k0) == ("file", K0)


def test_a_trial_never_has_another_routing(job: Job) -> None:
    """Which engine a measurement starts does not depend on the key."""
    assert isinstance(start_engine(job, job.lossy_k0), RoutingEngine)
    assert not isinstance(start_engine(job), RoutingEngine)


# -- refused -----------------------------------------------------------------------------------------------------------


def test_an_acceptance_without_evidence_is_refused_with_the_command(job: Job) -> None:
    shutil.rmtree(job.paths.verb_dir("lossy"))
    refuse(job, r"has no evidence .*reports/it/lossy.*`orderproof lossy it --k0 2`")


@pytest.mark.parametrize("content", ["{", '{"schema": 1, "lossy": true, "k0": 2}'])
def test_a_record_that_cannot_be_read_is_refused_with_its_path_and_the_command(job: Job, content: str) -> None:
    _, path = evidence(job)
    path.write_text(content)
    refuse(job, f"{path}.*`orderproof lossy it --k0 2`")


def test_a_run_without_a_comparison_is_refused_with_the_command(job: Job) -> None:
    _, path = evidence(job)
    edit_evidence(job, dict.clear)
    refuse(job, f"{path.parent.name}.*`orderproof lossy it --k0 2`")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"accept_lossy": {"k0": 3}}, "has no evidence.*`orderproof lossy it --k0 3`"),
        ({"sampling": {"max_tokens": 7}}, "sampling.max_tokens: 8 → 7"),
        ({"measure": {"scorer": "exact"}}, 'scorer: "contains" → "exact"'),
        ({"measure": {}}, 'scorer: "contains" → absent'),
        ({"chat_template_args": {"mood": "x"}}, 'chat_template_args.mood: absent → "x"'),
    ],
)
def test_evidence_of_other_settings_is_refused_by_their_names(job: Job, changes: dict[str, Any], named: str) -> None:
    refuse(edit_job(job, **changes), named)


def test_evidence_of_another_batch_size_is_refused(job: Job) -> None:
    engine = json.loads((job.root / "params.yaml").read_text())["jobs"]["it"]["engine"]
    engine["args"]["max_num_seqs"] = 8
    refuse(edit_job(job, engine=engine), "engine.args.max_num_seqs: 16 → 8")


def test_evidence_of_another_model_is_refused(job: Job) -> None:
    (job.model_path / "weights.safetensors").write_bytes(b"others")
    refuse(job, r'model: "\w+… → "\w+…')


def test_evidence_of_other_prompts_is_refused(job: Job) -> None:
    with open(job.prompts_path, "a") as sink:
        sink.write(json.dumps({"id": "late", "text": "one more", "label": "domain 1"}) + "\n")
    refuse(job, "the promoted order is for another version of data/it/prompts.jsonl.*`orderproof measure it`")
    demote(job, ids_of(job))
    refuse(job, "dataset_md5: ")


def test_evidence_of_another_order_is_refused_where_one_is_promoted(job: Job) -> None:
    def resort(comparison: dict[str, Any]) -> None:
        comparison["order"]["method"] = "length"

    edit_evidence(job, resort)
    refuse(job, 'order.method: "length" → "label"')
    demote(job, ids_of(job))
    assert generate(job).basis.lossy_k0 == K0, "a shuffled arm has no order of its own"


def test_unscored_evidence_is_refused_with_what_to_give(job: Job) -> None:
    def unscore(comparison: dict[str, Any]) -> None:
        for arm in comparison["arms"]:
            arm["outputs"]["scores"] = None

    edit_evidence(job, unscore)
    refuse(job, "not scored.*`reference`.*measure.scorer.*`orderproof lossy it --k0 2`")


def test_scores_that_were_lost_are_refused_with_their_figures(compared: Path, tmp_path: Path) -> None:
    """Really measured: references that ask for all tokens, which another routing changes."""
    shutil.copytree(compared, tmp_path / "p")
    job = load_job(tmp_path / "p" / "params.yaml", "it")
    give_references(job, 8)
    promote_label_order(job)
    shutil.rmtree(job.paths.verb_dir("lossy"))
    lost = report_of(compare(job))
    assert not lost.passed(SORTED_LOSSY)
    assert not lost.passed(LOSSY)
    refuse(edit_job(job, accept_lossy={"k0": K0}), r"not supported by its evidence.*score -0.500 .*NOT inside")


@pytest.mark.parametrize(
    ("figure", "value", "why"),
    [("prompts", 299, "fewer than 300"), ("control", 0.0, "every score is 0"), ("control", 1.0, "every score is 1")],
)
def test_scores_that_can_show_no_loss_are_refused(job: Job, figure: str, value: float, why: str) -> None:
    def blunt(comparison: dict[str, Any]) -> None:
        for arm in comparison["arms"]:
            arm["outputs"]["scores"][figure] = value

    edit_evidence(job, blunt)
    refuse(job, why)


def test_a_file_that_is_no_shuffle_needs_a_promoted_order(job: Job) -> None:
    edit_evidence(job, lambda comparison: comparison.update(file_like_shuffle=False))
    order = generate(job).basis.order
    assert order is not None
    assert order.method == "label"
    demote(job, ids_of(job))
    refuse(job, "order of the file is not like a shuffle.*`orderproof measure it`")


def test_a_promoted_order_of_the_files_method_is_not_taken_for_the_shuffled_arm(job: Job) -> None:
    order = Order(np.arange(PROMPTS), "file", {}, {}, md5_of(job.prompts_path))
    write_promotion(job, order, ids_of(job), Evidence(trial=TRIAL))
    refuse(job, 'order.method: "label" → "file"')
    edit_evidence(job, lambda comparison: comparison.update(order=order.record().model_dump()))
    edit_evidence(job, spoil_sorted)
    refuse(job, "The arm 'sorted, lossy'")


def test_a_comparison_is_of_the_promoted_order_whatever_params_yaml_asks_since(job: Job) -> None:
    asked_since, md5 = edit_job(job, order={"method": "length"}), md5_of(job.prompts_path)
    prompts = tokenize(job, read_prompts(job.prompts_path))
    report, _ = evidence(job)
    assert order_to_compare(asked_since, prompts, md5).record() == report.order, "what `generate` asks for"
    with pytest.raises(LossyError, match="another version"):
        order_to_compare(asked_since, prompts, "another")
    demote(job, ids_of(job))
    assert order_to_compare(asked_since, prompts, md5).method == "length"


def test_an_engine_of_other_versions_is_refused_before_anything_is_sent(job: Job) -> None:
    edit_evidence(job, lambda comparison: comparison["engine"]["versions"].update(vllm="0.1"))
    with pytest.raises(LossyError, match=r'LOSSY.*versions.vllm: "0.1" → '):
        generate(job)
    assert count_done(job.data_dir / FOLDER) == (0, PROMPTS)


def test_a_later_comparison_of_another_k0_leaves_the_evidence_of_the_accepted_one(job: Job) -> None:
    report, path = evidence(job)
    compare_again(job, k0=3)
    assert evidence(job) == (report, path)
    assert generate(job).basis.lossy_k0 == K0


def test_the_newest_comparison_decides(job: Job) -> None:
    later = compare_again(job)
    edit_evidence(job, spoil_sorted)
    refuse(job, "not supported by its evidence")
    shutil.rmtree(later)
    assert generate(job).basis.lossy_k0 == K0


def test_replicas_are_refused(job: Job) -> None:
    engine = json.loads((job.root / "params.yaml").read_text())["jobs"]["it"]["engine"]
    refuse(edit_job(job, engine=engine | {"replicas": 2}), "engine.replicas is 2")


def test_a_stream_is_refused(job: Job) -> None:
    with pytest.raises(LossyError, match="stream"):
        generate(job, stream=Stream(str(job.prompts_path)))


def test_a_window_promoted_for_other_prompts_is_refused(job: Job) -> None:
    promote_label_order(job, window=32)
    with open(job.prompts_path, "a") as sink:
        sink.write(json.dumps({"id": "late", "text": "one more", "label": "domain 1"}) + "\n")
    refuse(job, "another version of data/it/prompts.jsonl.*`orderproof measure it`")


def test_a_dense_model_and_a_k0_that_changes_nothing_are_refused(job: Job) -> None:
    refuse(edit_job(job, accept_lossy={"k0": 4}), "k0 = 4 ")
    (job.model_path / "config.json").write_text('{"model_type": "qwen3"}')
    with pytest.raises(LossyError, match="is a dense model"):
        generate(job)
