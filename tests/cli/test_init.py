"""`init`: the files of a project in an empty folder, where the commands work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ruamel.yaml import YAML

from orderproof.job.params import load_jobs
from tests.conftest import ROOT
from tests.support.command_line import RunCommand

SHIPPED = {
    "params.yaml",
    "dvc.yaml",
    "infra/prefect.yaml",
    *(path.relative_to(ROOT).as_posix() for folder in ("flows", "tasks") for path in (ROOT / folder).glob("*.py")),
}


def files_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_the_files_of_a_project_are_written(run: RunCommand, tmp_path: Path) -> None:
    answer = run("init", "--json").json
    assert {*answer["written"]} == SHIPPED == files_in(tmp_path)
    assert (answer["kept"], answer["folder"]) == ([], str(tmp_path))
    assert {"flows/measure.py", "flows/generate.py", "tasks/measure.py", "tasks/__init__.py"} <= SHIPPED
    for name in SHIPPED - {"params.yaml", "dvc.yaml"}:  # without the demo's parts
        assert (tmp_path / name).read_bytes() == (ROOT / name).read_bytes()


def test_a_folder_that_is_named_is_made(run: RunCommand, tmp_path: Path) -> None:
    run("init", "evals/mine")
    assert files_in(tmp_path / "evals" / "mine") == SHIPPED


def test_what_is_there_already_stays_as_it_is(run: RunCommand, tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("mine: true\n")
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows" / "measure.py").write_text("")
    answer = run("init", "--json").json
    assert sorted(answer["kept"]) == ["flows/measure.py", "params.yaml"]
    assert {*answer["written"]} == SHIPPED - {*answer["kept"]}
    assert (tmp_path / "params.yaml").read_text() == "mine: true\n"
    assert (tmp_path / "flows" / "measure.py").read_text() == ""
    assert run("init", "--json").json["written"] == []


def test_a_person_reads_what_was_written_and_what_comes_next(run: RunCommand) -> None:
    lines = run("init").out.splitlines()
    assert {line.removeprefix("wrote ") for line in lines if line.startswith("wrote ")} == SHIPPED
    assert lines[-1].startswith("next: ")
    kept = run("init").out.splitlines()
    assert sum(line.startswith("kept ") for line in kept) == len(SHIPPED)


def test_a_folder_that_cannot_be_written_is_refused(run: RunCommand, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    run("init", "taken").assert_refused(1, str(Path("taken", "params.yaml")))


def test_the_commands_work_there(run: RunCommand, tmp_path: Path) -> None:
    run("init")
    jobs = list(load_jobs(tmp_path / "params.yaml"))
    assert [status["job"] for status in run("status", "--json").json] == jobs
    checks = run("doctor", "--json").json
    assert [check["state"] for check in checks if check["name"] == "params.yaml"] == ["ok"]
    assert [check["state"] for check in checks if check["name"] == f"job {jobs[0]}"] == ["fail"] * 2, "no files yet"
    run("validate", jobs[0]).assert_refused(1, "is not a model's folder")


def test_the_deployed_flows_are_there_and_import_there(run: RunCommand, tmp_path: Path) -> None:
    run("init")
    deployments = YAML(typ="safe", pure=True).load(tmp_path / "infra" / "prefect.yaml")["deployments"]
    entrypoints = {deployment["entrypoint"] for deployment in deployments}
    checks = "".join(
        f"import {path.removesuffix('.py').replace('/', '.')} as flow\nassert flow.__file__.startswith(here)\n"
        f"assert flow.{name}.name\n"
        for path, name in (entrypoint.split(":") for entrypoint in sorted(entrypoints))
    )
    script = f"import os\nhere = os.getcwd() + os.sep\n{checks}"
    environment = {**os.environ, "PREFECT_HOME": str(tmp_path / ".prefect")}
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, check=True)


def test_every_stage_there_runs_the_command_alone(run: RunCommand, tmp_path: Path) -> None:
    run("init")
    read = YAML(typ="safe", pure=True).load
    stages = read(tmp_path / "dvc.yaml")["stages"]
    commands = [stage["do"]["cmd"] if "do" in stage else stage["cmd"] for stage in stages.values()]
    assert commands
    assert all(command.startswith("orderproof ") for command in commands)
    assert "demo" not in read(tmp_path / "params.yaml")
