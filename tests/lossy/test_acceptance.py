"""Generating with a lossy routing: only where a person accepted it and evidence carries it. On the stand-in engine."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from orderproof.engines.protocol import EngineError
from orderproof.engines.routing_engine import RoutingEngine
from orderproof.engines.start import start_engine
from orderproof.generate.checkpoint import count_done
from orderproof.generate.checkpoint_folder import FOLDER, CheckpointError
from orderproof.generate.delivery import OUTPUTS_FILE
from orderproof.generate.provenance import read_provenance
from orderproof.generate.recording import report
from orderproof.job.hashing import md5_of
from orderproof.job.model import read_model
from orderproof.job.params import load_job
from orderproof.job.spec import Job
from orderproof.lossy.comparison import compare_lossy
from orderproof.lossy.order import order_to_compare
from orderproof.lossy.report import LOSSY, SORTED_LOSSY, evidence_path, read_report, write_page
from orderproof.lossy.routing import LossyError
from orderproof.orders.order import Order
from orderproof.prompts.prompt_file import read_prompts
from orderproof.prompts.stream import Stream
from orderproof.prompts.tokenization import tokenize
from orderproof.reproduce.recording import report as report_reproduction
from orderproof.runs import promotion
from orderproof.runs.promotion import demote
from orderproof.status.status import job_status
from orderproof.status.text import status_lines
from tests.e2e.test_batch_faults import run_and
from tests.generate.test_record import sent_runs
from tests.standin.vllm.v1.engine.llm_engine import DRIFTS_FROM, generated
from tests.support.batches import make_project, promote_label_order, recorded_batch, reproduce, run_batch
from tests.support.tiny_tokenizer import save_model

PROMPTS, K0 = 320, 2
MOE = {"num_experts": 16, "num_experts_per_tok": 4, "num_hidden_layers": 1}


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The evidence is really measured."""
    job = lossless_project(tmp_path_factory.mktemp("lossy") / "p")
    promote_label_order(job)
    write_page(job, _comparison(job))
    return job.root


def lossless_project(root: Path) -> Job:
    """A project whose lossy routing keeps every score: what a reference asks comes before what changes. Its file is
    shuffled."""
    job = make_project(root, PROMPTS, step_ms=1)
    save_model(job.model_path)
    config = json.loads((job.model_path / "config.json").read_text())
    (job.model_path / "config.json").write_text(json.dumps(config | MOE))
    rows = job.prompts_path.read_text().splitlines(keepends=True)
    job.prompts_path.write_text("".join(rows[k] for k in np.random.default_rng(0).permutation(PROMPTS)))
    _give_references(job, DRIFTS_FROM)
    return edited(job, order={"method": "label"}, measure={"scorer": "contains"})


def _give_references(job: Job, tokens: int) -> None:
    """What every second prompt generates, up to so many tokens, and what the others never do."""
    ids = tokenize(job, read_prompts(job.prompts_path))
    rows = [json.loads(line) for line in job.prompts_path.read_text().splitlines()]
    for k, row in enumerate(rows):
        right = " ".join(map(str, generated(ids.token_ids(k), 8, 64)[:tokens]))
        row["reference"] = "nothing of it" if k % 2 else right
    job.prompts_path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _comparison(job: Job) -> Any:
    model, prompts = read_model(job.model_path, job.model), tokenize(job, read_prompts(job.prompts_path))
    with RoutingEngine(job.engine, job.model_path, job.sampling, job.root / "engine.log") as engine:
        order = order_to_compare(job, prompts, md5_of(job.prompts_path))
        return compare_lossy(job, model, prompts, order, engine, K0, blocks=5)


def edited(job: Job, **changes: Any) -> Job:
    """The job after an edit of params.yaml; None takes a key out."""
    path = job.root / "params.yaml"
    params = json.loads(path.read_text())
    own = params["jobs"]["it"] | changes
    params["jobs"]["it"] = {key: value for key, value in own.items() if value is not None}
    path.write_text(json.dumps(params))
    return load_job(path, "it")


@pytest.fixture
def job(compared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """The job, with its lossy routing accepted."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    shutil.copytree(compared, tmp_path / "p")
    return edited(load_job(tmp_path / "p" / "params.yaml", "it"), accept_lossy={"k0": K0})


def tokens(job: Job) -> list[list[int]]:
    found: list[list[int]] = pq.read_table(job.data_dir / OUTPUTS_FILE)["token_ids"].to_pylist()
    return found


def own_tokens(job: Job) -> list[list[int]]:
    """What the model's own routing gives."""
    texts = [json.loads(line)["text"] for line in job.prompts_path.read_text().splitlines()]
    return [generated(list(text.encode()), 8, 64) for text in texts]


def refused(job: Job, match: str) -> None:
    """Before an engine starts, and with nothing on disk."""

    def never(job: Job) -> Any:
        raise AssertionError("an engine was started")

    with pytest.raises(LossyError, match=match) as told:
        run_batch(job, start=never)
    assert "LOSSY" in str(told.value) or "k0" in str(told.value)
    assert not (job.data_dir / "outputs.partial").exists()


def evidence(job: Job, change: Callable[[dict[str, Any]], None]) -> None:
    """Edit the file."""
    kept = json.loads(evidence_path(job, K0).read_text())
    change(kept)
    evidence_path(job, K0).write_text(json.dumps(kept))


def spoil_sorted(kept: dict[str, Any]) -> None:
    (arm,) = [arm for arm in kept["arms"] if arm["arm"] == SORTED_LOSSY]
    arm["outputs"]["scores"]["low"] = -0.5


def ids_of(job: Job) -> list[str]:
    return [json.loads(line)["id"] for line in job.prompts_path.read_text().splitlines()]


# -- accepted ----------------------------------------------------------------------------------------------------------


def test_an_accepted_lossy_routing_generates_and_everything_says_so(job: Job) -> None:
    _, _, run = recorded_batch(job)
    assert all(now[:DRIFTS_FROM] == own[:DRIFTS_FROM] for now, own in zip(tokens(job), own_tokens(job), strict=True))
    assert not any(now == own for now, own in zip(tokens(job), own_tokens(job), strict=True)), "another routing"
    assert (run.order.method, run.lossy_k0, run.as_json()["lossy_k0"]) == ("label", K0, K0)
    assert run.sentence().startswith("LOSSY (Opportunistic Expert Activation, k0 = 2): it:")
    held = read_provenance(job.data_dir / OUTPUTS_FILE)
    assert held is not None
    assert held.key["lossy"] == {"k0": K0}

    report(job, run)
    report_reproduction(job, reproduce(job), None)
    told_mlflow = [(sent.data.tags["lossy"], sent.data.params["routing"][:5]) for sent in sent_runs(job)]
    assert told_mlflow == [("k0 = 2", "LOSSY")] * 2
    told = job_status(job)
    assert (told["lossy_k0"], told["last_run"]["lossy_k0"]) == (K0, K0)
    assert "routing       LOSSY" in "\n".join(status_lines([told]))
    assert "req/s, LOSSY" in "\n".join(status_lines([told]))
    assert "LOSSY routing accepted" in "\n".join(status_lines([told, told]))


def test_without_the_key_the_models_own_routing_is_back(job: Job) -> None:
    run_batch(job)
    _, _, run = recorded_batch(edited(job, accept_lossy=None))
    assert tokens(job) == own_tokens(job)
    assert (run.lossy_k0, run.sentence()[:3]) == (None, "it:")
    held = read_provenance(job.data_dir / OUTPUTS_FILE)
    assert held is not None
    assert "lossy" not in held.key, "checkpoints and baselines of before fit"


def test_results_of_two_routings_are_never_mixed(job: Job) -> None:
    with pytest.raises(EngineError):
        run_and(job, lambda engine: os.killpg(engine.pid, signal.SIGKILL), after=20)
    with pytest.raises(CheckpointError, match=r"lossy.k0: 2 → absent"):
        run_batch(edited(job, accept_lossy=None))
    generated, _ = run_batch(edited(job, accept_lossy={"k0": K0}))
    assert generated.results < PROMPTS, "with the key back it goes on"


def test_a_reproduction_has_the_same_routing_or_says_that_it_changed(job: Job) -> None:
    run_batch(job)
    same = reproduce(job)
    assert (same.answer, same.changes, same.lossy_k0) == ("reproduced", (), K0)
    assert same.sentence().startswith("LOSSY")
    other = reproduce(edited(job, accept_lossy=None))
    assert (other.answer, other.lossy_k0) == ("outputs differ", None)
    assert "lossy.k0: 2 → absent" in other.changes


def test_where_no_order_is_promoted_the_shuffled_arm_carries_it(job: Job) -> None:
    evidence(job, spoil_sorted)
    refused(job, "not carried by its evidence. The arm 'sorted, lossy': .*NOT inside")
    demote(job, ids_of(job))
    _, _, run = recorded_batch(job)
    assert (run.order.method, run.lossy_k0) == ("file", K0)


def test_a_trial_never_has_another_routing(job: Job) -> None:
    """Which engine a measurement starts does not depend on the key."""
    assert isinstance(start_engine(job, job.lossy_k0), RoutingEngine)
    assert not isinstance(start_engine(job), RoutingEngine)


# -- refused -----------------------------------------------------------------------------------------------------------


def test_an_acceptance_without_evidence_is_refused_with_the_command(job: Job) -> None:
    evidence_path(job, K0).unlink()
    refused(job, r"has no evidence: .*lossy/k0-2.json is not there.*`orderproof lossy it --k0 2` measures it")


@pytest.mark.parametrize("content", ["{", '{"schema": 1, "lossy": true, "k0": 2}'])
def test_evidence_that_cannot_be_read_or_names_nothing_is_refused(job: Job, content: str) -> None:
    evidence_path(job, K0).write_text(content)
    refused(job, "not readable as a lossy comparison.*`orderproof lossy it --k0 2` measures it")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"accept_lossy": {"k0": 3}}, "k0-3.json is not there.*`orderproof lossy it --k0 3`"),
        ({"sampling": {"max_tokens": 7}}, "sampling.max_tokens: 8 → 7"),
        ({"measure": {"scorer": "exact"}}, 'scorer: "contains" → "exact"'),
        ({"measure": {}}, 'scorer: "contains" → absent'),
        ({"chat_template_args": {"mood": "x"}}, 'chat_template_args.mood: absent → "x"'),
    ],
)
def test_evidence_of_other_settings_is_refused_by_their_names(job: Job, changes: dict[str, Any], named: str) -> None:
    refused(edited(job, **changes), named)


def test_evidence_of_another_batch_size_is_refused(job: Job) -> None:
    engine = json.loads((job.root / "params.yaml").read_text())["jobs"]["it"]["engine"]
    engine["args"]["max_num_seqs"] = 8
    refused(edited(job, engine=engine), "engine.args.max_num_seqs: 16 → 8")


def test_evidence_of_another_model_is_refused(job: Job) -> None:
    (job.model_path / "weights.safetensors").write_bytes(b"others")
    refused(job, r'model: "\w+… → "\w+…')


def test_evidence_of_other_prompts_is_refused(job: Job) -> None:
    with open(job.prompts_path, "a") as sink:
        sink.write(json.dumps({"id": "late", "text": "one more", "label": "domain 1"}) + "\n")
    refused(job, "the promoted order is of another version of data/it/prompts.jsonl.*`orderproof measure it`")
    demote(job, ids_of(job))
    refused(job, "dataset_md5: ")


def test_evidence_of_another_order_is_refused_where_one_is_promoted(job: Job) -> None:
    def resort(kept: dict[str, Any]) -> None:
        kept["order"]["method"] = "length"

    evidence(job, resort)
    refused(job, 'order.method: "length" → "label"')
    demote(job, ids_of(job))
    assert recorded_batch(job)[2].lossy_k0 == K0, "a shuffled arm has no order of its own"


def test_unscored_evidence_is_refused_with_what_to_give(job: Job) -> None:
    def unscore(kept: dict[str, Any]) -> None:
        for arm in kept["arms"]:
            arm["outputs"]["scores"] = None

    evidence(job, unscore)
    refused(job, "not scored.*`reference`.*measure.scorer.*`orderproof lossy it --k0 2`")


def test_scores_that_were_lost_are_refused_with_their_figures(compared: Path, tmp_path: Path) -> None:
    """Really measured: references that ask for all tokens, which another routing changes."""
    shutil.copytree(compared, tmp_path / "p")
    job = load_job(tmp_path / "p" / "params.yaml", "it")
    _give_references(job, 8)
    promote_label_order(job)
    write_page(job, _comparison(job))
    kept = read_report(job, K0)
    assert kept is not None
    assert not kept.passed(SORTED_LOSSY)
    assert not kept.passed(LOSSY)
    refused(edited(job, accept_lossy={"k0": K0}), r"not carried by its evidence.*score -0.500 .*NOT inside its margin")


@pytest.mark.parametrize(
    ("figure", "value", "why"),
    [("prompts", 299, "fewer than 300"), ("control", 0.0, "all score 0"), ("control", 1.0, "all score 1")],
)
def test_scores_that_can_show_no_loss_are_refused(job: Job, figure: str, value: float, why: str) -> None:
    def blunt(kept: dict[str, Any]) -> None:
        for arm in kept["arms"]:
            arm["outputs"]["scores"][figure] = value

    evidence(job, blunt)
    refused(job, why)


def test_a_file_that_is_no_shuffle_needs_a_promoted_order(job: Job) -> None:
    evidence(job, lambda kept: kept.update(file_like_shuffle=False))
    assert recorded_batch(job)[2].order.method == "label"
    demote(job, ids_of(job))
    refused(job, "the file's own order is not like a shuffle.*`orderproof measure it`")


def test_a_promoted_order_of_the_files_method_is_not_taken_for_the_shuffled_arm(job: Job) -> None:
    order = Order(np.arange(PROMPTS), "file", {}, {}, md5_of(job.prompts_path))
    promotion._write(job, order, ids_of(job), promoted=True, trial="20261129T144640Z-3f9a", mlflow_run=None)
    refused(job, 'order.method: "label" → "file"')
    evidence(job, lambda kept: kept.update(order=order.record().model_dump()))
    evidence(job, spoil_sorted)
    refused(job, "The arm 'sorted, lossy'")


def test_a_comparison_is_of_the_promoted_order_whatever_params_yaml_asks_since(job: Job) -> None:
    asked_since, md5 = edited(job, order={"method": "length"}), md5_of(job.prompts_path)
    prompts = tokenize(job, read_prompts(job.prompts_path))
    kept = read_report(job, K0)
    assert kept is not None
    assert order_to_compare(asked_since, prompts, md5).record() == kept.order, "what `generate` asks for"
    with pytest.raises(LossyError, match="of another version"):
        order_to_compare(asked_since, prompts, "another")
    demote(job, ids_of(job))
    assert order_to_compare(asked_since, prompts, md5).method == "length"


def test_an_engine_of_other_versions_is_refused_before_anything_is_sent(job: Job) -> None:
    evidence(job, lambda kept: kept["engine"]["versions"].update(vllm="0.1"))
    with pytest.raises(LossyError, match=r'LOSSY.*versions.vllm: "0.1" → '):
        run_batch(job)
    assert count_done(job.data_dir / FOLDER) == (0, PROMPTS)


def test_another_k0_leaves_the_evidence_of_the_accepted_one(job: Job) -> None:
    kept = read_report(job, K0)
    assert kept is not None
    page = write_page(job, kept.model_copy(update={"k0": 3}))
    assert page == job.reports_dir / "lossy" / "k0-3.md"
    assert read_report(job, K0) == kept
    shutil.copy(evidence_path(job, 3), evidence_path(job, K0))
    refused(job, "k0-2.json is a lossy comparison of k0 = 3")


def test_replicas_are_refused(job: Job) -> None:
    engine = json.loads((job.root / "params.yaml").read_text())["jobs"]["it"]["engine"]
    refused(edited(job, engine=engine | {"replicas": 2}), "runs on one engine, and engine.replicas is 2")


def test_a_stream_is_refused(job: Job) -> None:
    with pytest.raises(LossyError, match="says nothing of prompts that come as a stream"):
        recorded_batch(job, stream=Stream(str(job.prompts_path)))


def test_a_window_promoted_for_other_prompts_is_refused(job: Job) -> None:
    promote_label_order(job, window=32)
    with open(job.prompts_path, "a") as sink:
        sink.write(json.dumps({"id": "late", "text": "one more", "label": "domain 1"}) + "\n")
    refused(job, "another version of data/it/prompts.jsonl.*`orderproof measure it`")


def test_a_dense_model_and_a_k0_that_changes_nothing_are_refused(job: Job) -> None:
    refused(edited(job, accept_lossy={"k0": 4}), "k0 = 4 makes no sense")
    (job.model_path / "config.json").write_text('{"model_type": "qwen3"}')
    with pytest.raises(LossyError, match="is a dense model"):
        run_batch(job)
