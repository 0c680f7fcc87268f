"""A job as a DVC stage: what makes it run again, and how a run from outside is recorded. DVC and git are real."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from orderproof.job.spec import UNMEASURED_KEYS
from orderproof.runs.dvc import (
    DvcError,
    InputsChanged,
    lock_problem,
    record_again,
    record_in_dvc,
    stage_of,
    stage_params,
)

SIX, ONE = stage_of("six-domains"), stage_of("one-domain")


def entries(project: Any) -> dict[str, Any]:
    stages: dict[str, Any] = YAML(typ="safe").load(project.root / "dvc.lock")["stages"]
    return stages


# -- the stage in dvc.yaml ---------------------------------------------------------------------------------------------


def test_a_stage_runs_the_documented_command_and_keeps_every_output_during_it() -> None:
    stage = YAML(typ="safe").load(Path(__file__).parents[2] / "dvc.yaml")["stages"]["measure"]["do"]
    assert stage["cmd"] == "orderproof measure ${key} --only-if-changed"
    assert [options for out in stage["outs"] for options in out.values()] == [{"persist": True}] * 4


def test_an_unchanged_job_is_not_measured_again(project: Any) -> None:
    assert project.changed() == {}
    project.dvc("repro")
    assert project.runs() == ["six-domains False", "one-domain False"]


def test_git_holds_the_pointers_and_none_of_the_data(project: Any) -> None:
    tracked = [path for path in project.git("ls-files").splitlines() if path.startswith(("data/", "reports/", "dvc."))]
    assert tracked == [
        "data/models/.gitignore",
        "data/models/demo-moe.dvc",
        "data/one-domain/prompts.jsonl.dvc",
        "data/six-domains/prompts.jsonl.dvc",
        "dvc.lock",
        "dvc.yaml",
    ]
    assert project.git("status", "--porcelain") == ""


def test_reporting_comments_key_order_and_other_jobs_leave_a_job_clean(project: Any) -> None:
    project.edit("params.yaml", "price_per_hour: 0", "price_per_hour: 2.5, publish: commit")
    project.edit("params.yaml", 'temperature: 0.0, stop: ["\\n", "${x}"]', 'stop: ["\\n", "${x}"], temperature: 0.0')
    project.edit("params.yaml", "# which jobs there are", "# all the jobs")
    project.edit("params.yaml", "  one-domain:", "  another:\n    prompts: none.jsonl\n    model: none\n  one-domain:")
    project.edit("params.yaml", "one-domain/prompts.jsonl\n", "one-domain/prompts.jsonl\n    sampling: {seed: 1}\n")
    assert set(project.changed()) == {ONE, stage_of("another")}


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("params.yaml", "looks: [5, 10]", "looks: [5, 9]"),
        ("params.yaml", "max_model_len: 512", "max_model_len: 513"),
        ("data/six-domains/prompts.jsonl", "prompt 3", "prompt three"),
        ("data/models/demo-moe/config.json", "{}", "{ }"),
    ],
)
def test_what_a_measurement_rests_on_makes_its_job_run_again(project: Any, path: str, old: str, new: str) -> None:
    project.edit(path, old, new)
    assert SIX in project.changed(SIX)


def test_a_new_measurement_finds_the_earlier_order_and_evidence_in_place(project: Any) -> None:
    unrecorded = project.root / "reports/six-domains/measure/20270101T000000Z-0000/manifest.json"
    unrecorded.parent.mkdir()
    unrecorded.write_text("{}")
    project.edit("params.yaml", "max_model_len: 512", "max_model_len: 513")
    project.dvc("repro", SIX)
    assert project.runs()[2:] == ["six-domains True"]
    assert unrecorded.exists()


def test_going_back_to_earlier_parameters_measures_and_does_not_bring_back_an_older_outcome(project: Any) -> None:
    project.edit("params.yaml", "max_model_len: 512", "max_model_len: 513")
    project.measure_from_outside()
    record_in_dvc(project.root, SIX, project.inputs())
    project.edit("params.yaml", "max_model_len: 513", "max_model_len: 512")
    project.dvc("repro", SIX)
    assert project.runs()[2:] == ["six-domains True"] * 2


def test_a_stage_whose_dataset_is_edited_during_the_pass_fails_and_nothing_is_recorded(project: Any) -> None:
    project.edit("params.yaml", "max_model_len: 512", "max_model_len: 513")
    before, order = project.lock(), (project.root / "data/six-domains/order.json").read_bytes()
    done = project.dvc("repro", SIX, check=False, EDIT_DURING_THE_PASS="1")
    assert done.returncode != 0
    assert "prompts.jsonl changed" in done.stderr
    assert project.lock() == before
    assert (project.root / "data/six-domains/order.json").read_bytes() == order


# -- recording from outside --------------------------------------------------------------------------------------------


def test_a_measurement_from_outside_is_recorded_and_repro_does_nothing_more(project: Any) -> None:
    project.edit("params.yaml", "max_model_len: 512", "max_model_len: 513")
    params, other = stage_params(project.root, "six-domains"), entries(project)[ONE]
    project.measure_from_outside()
    assert record_in_dvc(project.root, SIX, project.inputs(), params).recorded
    assert project.changed() == {}
    project.dvc("repro")
    assert project.runs()[2:] == ["six-domains True"]
    assert entries(project)[ONE] == other


def test_a_dataset_edited_during_the_pass_is_caught_and_nothing_is_recorded(project: Any) -> None:
    inputs, lock = project.inputs(), project.lock()
    project.measure_from_outside()
    project.edit("data/six-domains/prompts.jsonl", "prompt 3", "prompt three")
    with pytest.raises(InputsChanged, match=r"prompts\.jsonl changed .*\(md5 \w{32}, now \w{32}\)"):
        record_in_dvc(project.root, SIX, inputs)
    assert project.lock() == lock


def test_a_dataset_removed_during_the_pass_is_caught(project: Any) -> None:
    inputs = project.inputs()
    (project.root / "data/six-domains/prompts.jsonl").unlink()
    with pytest.raises(InputsChanged, match=r"prompts\.jsonl .*\(No such file"):
        record_in_dvc(project.root, SIX, inputs)


@pytest.mark.parametrize("locked_before", [True, False])
def test_what_dvc_recorded_of_a_changed_model_is_taken_back(project: Any, locked_before: bool) -> None:
    hashes = {item["path"]: item["md5"] for item in entries(project)[SIX]["deps"]}
    if not locked_before:
        (project.root / "dvc.lock").unlink()
    before = project.lock() if locked_before else None
    project.edit("data/models/demo-moe/config.json", "{}", '{"hidden_size": 1}')
    with pytest.raises(InputsChanged, match="data/models/demo-moe changed"):
        record_in_dvc(project.root, SIX, hashes)
    assert (project.lock() if (project.root / "dvc.lock").exists() else None) == before


def test_parameters_edited_during_the_pass_are_caught_and_nothing_is_recorded(project: Any) -> None:
    params, lock = stage_params(project.root, "six-domains"), project.lock()
    project.edit("params.yaml", "max_model_len: 512", "max_model_len: 513")
    with pytest.raises(InputsChanged, match=r"`jobs\.six-domains` in params\.yaml changed"):
        record_in_dvc(project.root, SIX, project.inputs(), params)
    assert project.lock() == lock


def test_a_stage_that_does_not_depend_on_the_dataset_cannot_record_it(project: Any) -> None:
    lock = project.lock()
    with pytest.raises(DvcError, match=r"one-domain/prompts\.jsonl is not a dependency .* of measure@six-domains"):
        record_in_dvc(project.root, SIX, project.inputs("one-domain"))
    assert project.lock() == lock


def test_inside_a_stage_inputs_are_compared_and_recording_is_left_to_dvc(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DVC_STAGE", SIX)
    inputs, lock = project.inputs(), project.lock()
    project.edit("data/six-domains/order.json", "{", "{ ")
    recorded = record_in_dvc(project.root, SIX, inputs)
    assert not recorded.recorded
    assert f"DVC itself records {SIX}" in recorded.why
    project.edit("data/six-domains/prompts.jsonl", "prompt 3", "prompt three")
    with pytest.raises(InputsChanged, match="changed since"):
        record_in_dvc(project.root, SIX, inputs)
    assert project.lock() == lock


def test_missing_outputs_fail_in_dvcs_words(project: Any) -> None:
    lock = project.lock()
    (project.root / "data/six-domains/order.json").unlink()
    with pytest.raises(DvcError, match=r"`dvc commit` failed: ERROR: .*'data/six-domains/order\.json' does not exist$"):
        record_in_dvc(project.root, SIX, project.inputs())
    assert project.lock() == lock


# -- recording again ---------------------------------------------------------------------------------------------------


def test_outputs_changed_after_their_measurement_are_recorded_again(project: Any) -> None:
    project.edit("data/six-domains/order.json", "{", "{ ")
    assert record_again(project.root, SIX).recorded
    assert project.changed() == {}


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("params.yaml", "looks: [5, 10]", "looks: [5, 9]"),
        ("data/six-domains/prompts.jsonl", "prompt 3", "prompt three"),
        ("data/models/demo-moe/config.json", "{}", "{ }"),
    ],
)
def test_recording_again_never_passes_other_inputs_off_as_measured(project: Any, path: str, old: str, new: str) -> None:
    lock = project.lock()
    project.edit("data/six-domains/order.json", "{", "{ ")
    project.edit(path, old, new)
    recorded = record_again(project.root, SIX)
    assert not recorded.recorded
    assert "changed since" in recorded.why
    assert project.lock() == lock


@pytest.mark.parametrize(("then", "now"), [("", "accept_lossy: {k0: 2}"), ("accept_lossy: {k0: 2}", "")])
def test_a_key_that_is_never_measured_may_come_and_go(project: Any, then: str, now: str) -> None:
    first = "    sampling: {temperature: 0.0"
    project.edit("params.yaml", first, f"    {then}\n{first}")
    project.dvc("commit", "--force", SIX)
    project.edit("params.yaml", f"    {then}\n{first}", f"    {now}\n{first}")
    project.edit("data/six-domains/order.json", "{", "{ ")
    assert not record_again(project.root, SIX).recorded
    assert record_again(project.root, SIX, UNMEASURED_KEYS).recorded
    assert project.changed() == {}
    project.edit("params.yaml", "looks: [5, 10]", "looks: [5, 9]")
    assert not record_again(project.root, SIX, UNMEASURED_KEYS).recorded


def test_what_was_never_recorded_is_not_recorded_again(project: Any) -> None:
    (project.root / "dvc.lock").unlink()
    assert record_again(project.root, SIX).why == f"{project.root}/dvc.lock has no entry for {SIX} yet"
    assert not (project.root / "dvc.lock").exists()


# -- nowhere to record -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("measured_project")  # for its environment
def test_a_folder_without_dvc_is_not_recorded_and_says_why(tmp_path: Path) -> None:
    recorded = record_in_dvc(tmp_path, SIX, {})
    assert not recorded.recorded
    assert f"{tmp_path} is not in a DVC repository" in recorded.why
    assert not (tmp_path / "dvc.lock").exists()


def test_a_job_without_a_stage_is_not_recorded_and_says_why(project: Any) -> None:
    lock = project.lock()
    recorded = record_in_dvc(project.root, stage_of("elsewhere"), {})
    assert (recorded.recorded, recorded.why) == (False, f"{project.root}/dvc.yaml has no stage measure@elsewhere")
    (project.root / "dvc.yaml").unlink()
    assert not record_in_dvc(project.root, SIX, {}).recorded
    assert project.lock() == lock


def test_a_dvc_yaml_that_dvc_cannot_read_is_an_error_and_not_a_missing_stage(project: Any) -> None:
    (project.root / "dvc.yaml").write_text("stages: {")
    with pytest.raises(DvcError, match=r"`dvc commit` failed: .*dvc\.yaml' is invalid"):
        record_in_dvc(project.root, SIX, {})


def test_a_python_without_dvc_is_an_error_in_its_own_words(project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", shutil.which("python3", path="/usr/bin:/bin") or "/nowhere/python3")
    with pytest.raises(DvcError, match=r"No module named dvc|cannot be run"):
        record_in_dvc(project.root, SIX, {})


def test_conflict_markers_in_the_lock_are_named_with_the_way_out(project: Any) -> None:
    assert lock_problem(project.root) is None
    lock = project.root / "dvc.lock"
    lock.write_text(lock.read_text() + "<<<<<<< HEAD\n=======\n>>>>>>> theirs\n")
    assert "git checkout --ours dvc.lock" in str(lock_problem(project.root))
    with pytest.raises(DvcError, match="conflict markers"):
        record_again(project.root, SIX)


def test_an_experiment_in_a_temporary_copy_is_recorded_there_and_applied_here(project: Any) -> None:
    before = entries(project)[SIX]["params"]
    project.edit("params.yaml", "max_model_len: 512", "max_model_len: 513")
    project.dvc("exp", "run", "--temp", "--name", "other", SIX)
    assert entries(project)[SIX]["params"] == before
    project.dvc("exp", "apply", "other", check=False)  # DVC names the outputs of stages that were never run
    assert entries(project)[SIX]["params"]["params.yaml"]["jobs.six-domains"]["engine"]["args"]["max_model_len"] == 513
