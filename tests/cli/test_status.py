"""`status` and the commands that look at what there is: `log`, `doctor`, `ui`."""

from __future__ import annotations

from pathlib import Path

from orderproof.job.params import load_job
from orderproof.runs.run_store import write_run
from tests.support.command_line import RunCommand
from tests.support.run_maker import make_job_run

FIRST = "20261129T144640Z-3f9a"


def keep_verdict(project: Path) -> None:
    job = load_job(project / "params.yaml", "it")
    write_run(job, make_job_run(job, FIRST, "measure", answer="promote", sentence="it: promote"))


def test_the_status_of_all_jobs_is_a_line_each(run: RunCommand, project: Path) -> None:
    keep_verdict(project)
    result = run("status")
    assert result.code == 0
    names = [line.split()[0] for line in result.out.splitlines() if line.strip()]
    assert [name for name in names if name in ("it", "other")] == ["it", "other"]


def test_the_status_of_one_job_is_one_object(run: RunCommand, project: Path) -> None:
    keep_verdict(project)
    answer = run("status", "it", "--json").json
    assert (answer["schema_version"], answer["job"]) == ("orderproof/status/2", "it")
    assert (answer["runs"]["measure"]["id"], answer["runs"]["measure"]["answer"]) == (FIRST, "promote")


def test_the_status_of_all_jobs_is_one_document(run: RunCommand, project: Path) -> None:
    assert [status["job"] for status in run("status", "--json").json] == ["it", "other"]


def test_a_job_whose_runs_are_all_in_mlflow_has_nothing_to_send(run: RunCommand, project: Path) -> None:
    assert run("log", "it", "--json").json == {"job": "it", "sent": []}
    assert run("log", "it").out.count("\n") == 1


def test_a_tracker_that_is_down_fails_where_sending_is_all_that_was_asked(
    run: RunCommand, project: Path, no_tracker: None
) -> None:
    keep_verdict(project)
    result = run("log", "it")
    assert (result.code, result.out) == (1, "")
    assert f"measure {FIRST}" in result.err


def test_a_doctor_for_machines_is_one_document(run: RunCommand, project: Path) -> None:
    result = run("doctor", "--json")
    assert result.code == 1, "the jobs' prompts are missing"
    assert {"name", "state", "finding", "remedy"} == set(result.json[0])


def test_a_doctor_gives_one_line_a_check_and_what_to_do(run: RunCommand, project: Path) -> None:
    result = run("doctor")
    assert all(line.split()[0] in ("ok", "warn", "fail") for line in result.out.splitlines())
    assert any(line.startswith("fail  job other") and "→" in line for line in result.out.splitlines())


def test_a_doctor_without_a_project_still_looks_at_the_rest(run: RunCommand) -> None:
    result = run("doctor")
    assert result.code == 1
    assert "params.yaml does not exist" in result.out
    assert "ok    Python" in result.out


def test_pages_of_a_store_that_is_not_there_name_what_creates_it(run: RunCommand, project: Path) -> None:
    run("ui").assert_refused(1, "mlflow.db", "orderproof measure JOB")
