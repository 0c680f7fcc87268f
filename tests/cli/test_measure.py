"""`measure` and the commands around its verdict: `decide`, `demote`, `validate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orderproof.job.params import load_job
from orderproof.measure import story
from orderproof.measure.evaluate import judge
from orderproof.measure.trial_store import Trial, write_verdict
from orderproof.runs.promotion import read_promotion
from orderproof.runs.run import Run
from orderproof.runs.run_store import newest_run
from tests.support.batches import make_project, promote_label_order
from tests.support.command_line import RunCommand, modules_of_command
from tests.support.run_maker import make_job_run
from tests.support.trial_maker import make_trial, trial_folder

FIRST, SECOND = "20261129T144640Z-3f9a", "20261130T144640Z-77aa"


def make_model(project: Path, **config: Any) -> None:
    (project / "m").mkdir()
    (project / "m" / "config.json").write_text(json.dumps(config))


def make_prompts(project: Path) -> None:
    (project / "data" / "it").mkdir(parents=True)
    rows = (json.dumps({"id": f"p{k}", "text": "x"}) + "\n" for k in range(3))
    (project / "data" / "it" / "prompts.jsonl").write_text("".join(rows))


def judged(project: Path, name: str = FIRST, *, aa: bool = False, **fields: Any) -> Trial:
    """A trial of the job with its verdict on record."""
    job = load_job(project / "params.yaml", "it")
    trial = make_trial(trial_folder(job, name, "aa" if aa else "measure"), aa=aa, **fields)
    verdict = judge(trial)
    assert verdict is not None
    write_verdict(trial, verdict)
    return trial


# -- measure -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def dense(project: Path) -> Path:
    """A project whose job has a dense model."""
    make_model(project, architectures=["Qwen3ForCausalLM"], num_hidden_layers=2)
    make_prompts(project)
    return project


@pytest.mark.usefixtures("no_tracker")
def test_a_dense_model_is_refused_without_anything_heavy(dense: Path) -> None:
    """MLflow is imported because the refusal is sent there; nothing else takes long."""
    result, modules = modules_of_command(
        dense,
        "measure",
        "it",
        "--json",
        "--exit-code",
    )
    assert (result.code, result.json["answer"]) == (12, "refused")
    heavy = {
        "great_expectations", "prefect", "torch", "sklearn", "matplotlib", "transformers", "sentence_transformers",
        "vllm", "ray", "dvc",
    }  # fmt: skip
    assert "mlflow" in modules
    assert not heavy & modules


@pytest.mark.usefixtures("no_tracker")
def test_a_refusal_is_an_answer_with_its_reason_and_a_record(run: RunCommand, dense: Path) -> None:
    result = run("measure", "it")
    assert result.code == 0, "without --exit-code a refusal is no failure"
    first, reason, *_ = result.out.splitlines()
    assert first == "it: refused"
    assert "dense" in reason
    kept = newest_run(load_job(dense / "params.yaml", "it"), "measure")
    assert kept is not None
    assert (kept.answer, kept.exit_code) == ("refused", 12)


@pytest.mark.usefixtures("no_tracker")
def test_a_refusal_for_machines_has_the_shape_of_every_run(run: RunCommand, dense: Path) -> None:
    answer = run("measure", "it", "--json").json
    assert (answer["schema"], answer["job"], answer["verb"]) == ("orderproof/run/1", "it", "measure")
    assert (answer["answer"], answer["exit_code"], answer["figures"]["gain"]) == ("refused", 12, None)
    assert answer["details"]["verdict"]["verdict"] == "refused"
    assert (dense / answer["files"]["page"]).exists()
    assert answer["mlflow_run"] is None
    assert any("orderproof log it" in note for note in answer["notes"])


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ((), {"aa": False, "only_if_changed": False}),
        (("--aa",), {"aa": True, "only_if_changed": False}),
        (("--only-if-changed",), {"aa": False, "only_if_changed": True}),
    ],
)
def test_options_reach_the_measurement(
    run: RunCommand, dense: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], asked: dict[str, bool]
) -> None:
    calls: list[dict[str, bool]] = []

    def measure(job: Any, **how: bool) -> Run:
        calls.append(how)
        return make_job_run(job, verb="measure", answer="keep", exit_code=10)

    monkeypatch.setattr(story, "measure", measure)
    assert run("measure", "it", *options).code == 0
    assert run("measure", "it", *options, "--exit-code").code == 10
    assert calls == [asked, asked]


# -- decide ------------------------------------------------------------------------------------------------------------


def test_a_job_without_a_trial_has_nothing_to_decide(run: RunCommand, project: Path) -> None:
    run("decide", "it").assert_refused(1, str(Path("reports", "it", "measure")), "measure the job first")


def test_a_verdict_is_recomputed_bit_for_bit(run: RunCommand, project: Path) -> None:
    trial = judged(project)
    result = run("decide", "it")
    assert result.code == 0
    first, *_ = result.out.splitlines()
    assert first.startswith("it: promote, gain +")
    assert "toy model" in first
    assert str(trial.folder) in result.out
    assert "bit for bit" in result.out


def test_a_verdict_that_was_tampered_with_fails(run: RunCommand, project: Path) -> None:
    recorded = judged(project).folder / "verdict.json"
    text = recorded.read_text()
    recorded.write_text(text.replace('"gain":', '"gain" :', 1))
    assert recorded.read_text() != text
    result = run("decide", "it")
    assert result.code == 1
    assert "NOT the verdict on record" in result.out
    assert run("decide", "it", "--exit-code").code == 1


def test_a_verdict_that_is_missing_is_not_the_one_on_record(run: RunCommand, project: Path) -> None:
    (judged(project).folder / "verdict.json").unlink()
    assert run("decide", "it", "--json").json["same_as_recorded"] is False


def test_a_plan_that_was_edited_afterwards_is_refused(run: RunCommand, project: Path) -> None:
    manifest = judged(project).folder / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(text.replace('"margin": 0.01', '"margin": 0.0').replace('"margin":0.01', '"margin":0.0'))
    assert manifest.read_text() != text
    run("decide", "it").assert_refused(1, "manifest.json was changed")


def test_a_pass_without_its_tokens_is_refused(run: RunCommand, project: Path) -> None:
    (judged(project).folder / "tokens" / "b01-candidate.parquet").unlink()
    run("decide", "it").assert_refused(1, "b01-candidate.parquet is missing")


@pytest.mark.parametrize("content", [b"", b"PAR1 torn"])
def test_tokens_that_are_not_whole_are_refused(run: RunCommand, project: Path, content: bytes) -> None:
    (judged(project).folder / "tokens" / "b01-candidate.parquet").write_bytes(content)
    run("decide", "it").assert_refused(1, "b01-candidate.parquet cannot be read")


def test_tokens_of_other_prompts_are_refused(run: RunCommand, project: Path) -> None:
    trial = judged(project)
    path = trial.folder / "tokens" / "b02-candidate.parquet"
    table = trial.tokens("b02-candidate")
    strange = pa.array([f"strange-{name}" for name in table["prompt_id"].to_pylist()])
    pq.write_table(table.set_column(0, "prompt_id", strange), path)
    run("decide", "it").assert_refused(1, "b02-candidate", "strange-p")


def test_a_trial_that_did_not_end_has_no_verdict(run: RunCommand, project: Path) -> None:
    make_trial(trial_folder(load_job(project / "params.yaml", "it"), FIRST), blocks=3)
    run("decide", "it").assert_refused(1, "3 blocks", "5, 10")


def test_the_newest_trial_is_decided_unless_another_is_named(run: RunCommand, project: Path) -> None:
    judged(project, FIRST)
    judged(project, SECOND, seed=1)
    assert run("decide", "it", "--json").json["trial"] == SECOND
    assert run("decide", "it", "--json", "--trial", FIRST).json["trial"] == FIRST


@pytest.mark.parametrize("name", ["20270101T000000Z-0000", "..", "../measure/" + FIRST])
def test_a_trial_that_is_not_there_is_refused_with_those_that_are(run: RunCommand, project: Path, name: str) -> None:
    judged(project)
    run("decide", "it", "--trial", name).assert_refused(1, repr(name), FIRST)


def test_aa_tests_are_found_with_their_option_alone(run: RunCommand, project: Path) -> None:
    judged(project, aa=True)
    run("decide", "it").assert_refused(1, "no trial")
    answer = run("decide", "it", "--aa", "--json").json
    assert (answer["trial"], answer["same_as_recorded"]) == (FIRST, True)
    assert "A/A" in answer["sentence"]


@pytest.mark.parametrize(("gain", "answer", "code"), [(0.06, "promote", 0), (-0.05, "keep", 10)])
def test_the_exit_code_is_the_verdicts_own_only_when_asked(
    run: RunCommand, project: Path, gain: float, answer: str, code: int
) -> None:
    judged(project, gain=gain)
    assert run("decide", "it", "--json").json["answer"] == answer
    assert run("decide", "it").code == 0
    assert run("decide", "it", "--exit-code").code == code


def test_a_decision_for_machines_is_one_object_of_a_stable_shape(run: RunCommand, project: Path) -> None:
    trial = judged(project)
    answer = run("decide", "it", "--json").json
    assert set(answer) == {
        "schema", "job", "trial", "folder", "answer", "exit_code", "sentence", "reason", "differences",
        "same_as_recorded", "verdict",
    }  # fmt: skip
    assert (answer["schema"], answer["job"], answer["trial"]) == ("orderproof/decision/1", "it", FIRST)
    assert (answer["same_as_recorded"], answer["folder"]) == (True, str(trial.folder))
    verdict = answer["verdict"]
    assert (verdict["verdict"], verdict["blocks"]) == (answer["answer"], 5)
    assert verdict["gain_low"] < verdict["gain"] < verdict["gain_high"]


# -- demote and validate -----------------------------------------------------------------------------------------------


def test_nothing_promoted_is_nothing_to_demote(run: RunCommand, project: Path) -> None:
    make_prompts(project)
    run("demote", "it").assert_refused(1, "nothing to demote")


def test_a_demotion_is_answered_with_the_files_own_order(run: RunCommand, tmp_path: Path) -> None:
    promote_label_order(make_project(tmp_path / "p", 12))
    params = tmp_path / "p" / "params.yaml"
    answer = run("demote", "it", "--params", params, "--reason", "a new model", "--json").json
    assert (answer["job"], answer["promoted"], answer["order"]) == ("it", False, "file")
    promotion = read_promotion(load_job(params, "it"))
    assert promotion is not None
    assert promotion.demoted is not None
    assert promotion.demoted.reason == "a new model"
    run("demote", "it", "--params", params).assert_refused(1, "nothing to demote")


def test_valid_prompts_are_counted_with_their_tokens(run: RunCommand, tmp_path: Path) -> None:
    job = make_project(tmp_path / "p", 12)
    answer = run("validate", "it", "--no-engine", "--params", job.root / "params.yaml", "--json").json
    assert (answer["valid"], answer["prompts"]) == (True, 12)
    assert answer["prompt_tokens"] >= sum(len(f"prompt {k}") for k in range(12))
    assert (Path(answer["folder"]) / "validation.json").exists()


def test_prompts_that_are_not_valid_are_named_by_their_lines(run: RunCommand, tmp_path: Path) -> None:
    job = make_project(tmp_path / "p", 3)
    with open(job.prompts_path, "a") as sink:
        sink.write('{"id": "p0", "text": "again"}\n')
    result = run("validate", "it", "--no-engine", "--params", job.root / "params.yaml")
    assert (result.code, result.out) == (1, "")
    assert "p0" in result.err
    assert str(job.prompts_path) in result.err
