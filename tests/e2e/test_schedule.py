"""infra/prefect.yaml in the hands of a real Prefect server and worker: runs come when due, wait for each other, are
cancelled, crash and go on. The engine is the stand-in."""

from __future__ import annotations

import datetime
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import numpy as np
import psutil
import pytest
from prefect.client.schemas.filters import ArtifactFilter, LogFilter
from prefect.client.schemas.schedules import IntervalSchedule
from prefect.states import Cancelling
from ruamel.yaml import YAML

from orderproof.generate.checkpoint_folder import FOLDER, RESULTS_FILE
from orderproof.job.params import load_job
from orderproof.job.spec import Job
from orderproof.runs.promotion import read_promotion
from orderproof.runs.run_store import read_runs
from tasks.accelerator import LEASE_S, LIMIT
from tests.conftest import ROOT
from tests.support.batches import LABELS, count, generated_places, make_project, output_ids, write_prompts
from tests.support.scheduling import (
    POOL,
    Deployments,
    Server,
    deployments_of,
    process_of,
    process_worker,
    processes_of,
    surroundings,
    wait_until,
)

pytestmark = pytest.mark.timeout(600)
PROMPTS, STEP_MS = 600, 20  # 300 steps: some seconds in which things can happen
NIGHTLY, WEEKLY = "generate-outputs/{}-nightly", "measure-order/{}-weekly"
FIRST, SECOND, CLONED = "six-domains", "one-domain", "cloned"
FEW = 400  # prompts of the job that is measured
DVC = (sys.executable, "-m", "dvc")


@dataclass(frozen=True)
class Scheduled:
    """A project whose deployments a server holds and a worker runs."""

    root: Path
    deployments: Deployments
    tmp: Path  # where the worker keeps what it keeps for the time of a run

    def job(self, name: str) -> Job:
        return load_job(self.root / "params.yaml", name)

    def kept(self, name: str) -> int:
        """Results in a job's checkpoint."""
        results = self.job(name).data_dir / FOLDER / RESULTS_FILE
        return results.read_bytes().count(b"\n") if results.exists() else 0

    def come(self, name: str) -> list[UUID]:
        """Runs of a deployment whose hour has come, the first one first."""
        runs = [run for run in self.deployments.runs(name) if run.state and not run.state.is_scheduled()]
        return [run.id for run in sorted(runs, key=lambda run: str(run.expected_start_time))]


def make_projects(root: Path) -> None:
    """The sample jobs of infra/prefect.yaml under git and DVC, all on the stand-in; nothing is measured yet."""
    make_project(root, PROMPTS, step_ms=STEP_MS)
    params = json.loads((root / "params.yaml").read_text())
    job = params["jobs"].pop("it")
    job["engine"]["env"]["STANDIN_STEPS"] = str(root / "steps.log")
    params["jobs"] = dict.fromkeys((FIRST, SECOND, "dense"), job)
    params["generate"] = {}
    (root / "params.yaml").write_text(json.dumps(params))
    (root / "infra").mkdir()
    shutil.copy(ROOT / "infra" / "prefect.yaml", root / "infra")
    under_git_and_dvc(root)


def under_git_and_dvc(root: Path) -> None:
    """The project's own flows and stages, without the makers of the demo's data."""
    yaml = YAML(typ="safe", pure=True)
    stages = yaml.load(ROOT / "dvc.yaml")["stages"]
    yaml.dump({"stages": {name: stages[name] for name in ("measure", "generate")}}, root / "dvc.yaml")
    shutil.copy(ROOT / ".gitignore", root)
    for folder in ("flows", "tasks"):  # as `orderproof init` writes them: deployments name the flows by path
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    run(root, "git", "init", "--quiet")
    for key in ("user.name", "user.email"):
        run(root, "git", "config", key, "author")
    run(root, *DVC, "init", "--quiet")


@pytest.fixture(scope="module")
def project(prefect_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scheduled]:
    """Deployed as the README says."""
    folder = tmp_path_factory.mktemp("scheduled")
    root = folder / "project"
    make_projects(root)
    prefect_server.prefect(root, "work-pool", "create", POOL, "--type", "process", "--overwrite")
    prefect_server.deploy(root)
    with prefect_server.client() as client, process_worker(prefect_server, folder):
        yield Scheduled(root, Deployments(client), folder / "tmp")


def artifacts(project: Scheduled, run: UUID) -> dict[str, str]:
    mine = ArtifactFilter.model_validate({"flow_run_id": {"any_": [str(run)]}})
    return {str(made.key): str(made.type) for made in project.deployments.client.read_artifacts(artifact_filter=mine)}


def logged(project: Scheduled, run: UUID) -> list[str]:
    """The lines on a run's page, those of its tasks among them."""
    of_run = LogFilter.model_validate({"flow_run_id": {"any_": [str(run)]}})
    return [line.message for line in project.deployments.client.read_logs(of_run)]


def free_slots(project: Scheduled) -> int:
    limit = project.deployments.client.read_global_concurrency_limit_by_name(LIMIT)
    return limit.limit - limit.active_slots


def begun(project: Scheduled, name: str, job: str) -> UUID:
    """A run of a job that has generated a part of it."""
    run = project.deployments.run_now(name)
    wait_until(lambda: 0 < project.kept(job) < PROMPTS, 120, lambda: f"{run} is {project.deployments.state(run)}")
    return run


def test_every_deployment_is_accepted_with_its_schedule_and_parameters(project: Scheduled) -> None:
    wanted = {entry["name"]: entry for entry in deployments_of(project.root / "infra" / "prefect.yaml")}
    found = project.deployments.client.read_deployments()
    assert {deployment.name for deployment in found} == set(wanted)
    for deployment in found:
        entry = wanted[deployment.name]
        assert deployment.parameters == entry["parameters"]
        assert set(entry["parameters"]) <= set(deployment.parameter_openapi_schema["properties"])
        assert [getattr(one.schedule, "cron", None) for one in deployment.schedules] == [
            one["cron"] for one in entry["schedules"]
        ]


@pytest.mark.long
def test_a_run_comes_by_its_schedule_and_leaves_outputs_and_artifacts(project: Scheduled) -> None:
    client, name = project.deployments.client, NIGHTLY.format(FIRST)
    nightly = client.read_deployment_by_name(name)
    often = IntervalSchedule(interval=datetime.timedelta(seconds=20))
    client.update_deployment_schedule(nightly.id, nightly.schedules[0].id, schedule=often)
    wait_until(lambda: bool(project.come(name)), 120)
    client.update_deployment_schedule(nightly.id, nightly.schedules[0].id, active=False)
    run = project.come(name)[0]
    ended = project.deployments.wait(run, "COMPLETED", "FAILED", "CRASHED")
    assert ended.state is not None
    assert (ended.state.type.value, ended.auto_scheduled) == ("COMPLETED", True), ended.state.message
    assert output_ids(project.job(FIRST)) == [f"p{k}" for k in range(PROMPTS)]
    assert artifacts(project, run) == {
        f"progress-prompts-{FIRST}": "progress", f"generate-{FIRST}": "markdown", f"generate-page-{FIRST}": "markdown",
    }  # fmt: skip
    (record,) = read_runs(project.job(FIRST), "generate")
    assert (record.prefect_run, count(record, "generated", "failed")) == (str(run), (PROMPTS, 0))


@pytest.mark.long
def test_of_two_jobs_at_one_hour_one_waits_for_the_others_accelerator(project: Scheduled) -> None:
    (project.root / "steps.log").unlink(missing_ok=True)
    runs = [project.deployments.run_now(NIGHTLY.format(job)) for job in (FIRST, SECOND)]
    for run in runs:
        project.deployments.wait(run, "COMPLETED")
    spans: dict[str, list[float]] = {}
    for line in (project.root / "steps.log").read_text().splitlines():
        engine, at = line.split()
        spans.setdefault(engine, []).append(float(at))
    first, second = sorted((min(times), max(times)) for times in spans.values())
    assert first[1] < second[0], "two engines ran at once"
    assert all(output_ids(project.job(job)) == [f"p{k}" for k in range(PROMPTS)] for job in (FIRST, SECOND))


@pytest.mark.long
def test_a_cancelled_run_leaves_no_process_and_a_free_slot_and_what_it_had_done(project: Scheduled) -> None:
    run = begun(project, NIGHTLY.format(SECOND), SECOND)
    family = processes_of(run)
    assert any("worker.py" in " ".join(one.cmdline()) for one in family), "there is no engine to leave behind"
    project.deployments.client.set_flow_run_state(run, Cancelling())
    project.deployments.wait(run, "CANCELLED")
    assert psutil.wait_procs(family, 20)[1] == []
    assert processes_of(run) == []
    wait_until(lambda: free_slots(project) == 1, 10)
    kept = project.kept(SECOND)
    assert 0 < kept < PROMPTS
    again = project.deployments.run_now(NIGHTLY.format(SECOND))
    project.deployments.wait(again, "COMPLETED")
    assert any(f"{kept} prompts were finished by an earlier run" in line for line in logged(project, again))
    assert count(read_runs(project.job(SECOND), "generate")[-1], "resumed") == (kept,)
    assert output_ids(project.job(SECOND)) == [f"p{k}" for k in range(PROMPTS)]


@pytest.mark.long
def test_a_run_that_crashed_is_marked_and_the_next_one_goes_on_when_the_lease_is_over(project: Scheduled) -> None:
    run = begun(project, NIGHTLY.format(FIRST), FIRST)
    flow, family = process_of(run), processes_of(run)
    assert flow is not None
    flow.kill()
    assert psutil.wait_procs(family, 20)[1] == [], "a killed flow left its engine behind"
    project.deployments.wait(run, "CRASHED")
    kept = project.kept(FIRST)
    project.deployments.wait(project.deployments.run_now(NIGHTLY.format(FIRST)), "COMPLETED", limit_s=4 * LEASE_S)
    assert free_slots(project) == 1
    record = read_runs(project.job(FIRST), "generate")[-1]
    assert count(record, "resumed", "generated") == (kept, PROMPTS - kept)
    assert output_ids(project.job(FIRST)) == [f"p{k}" for k in range(PROMPTS)]


@pytest.mark.long
def test_what_a_worker_without_a_folder_finds_reaches_the_remotes(
    project: Scheduled, prefect_server: Server, tmp_path: Path
) -> None:
    author = tmp_path / "author"
    make_published_project(author, tmp_path)
    prefect_server.deploy(author)
    for name in (WEEKLY.format(CLONED), NIGHTLY.format(CLONED)):
        project.deployments.wait(project.deployments.run_now(name), "COMPLETED")
        wait_until(lambda: not list(project.tmp.glob("*prefect")), 20, lambda: "the clone is still there")

    run(tmp_path, "git", "clone", "--quiet", (tmp_path / "remote.git").as_uri(), "fresh")
    fresh = tmp_path / "fresh"
    run(fresh, *DVC, "pull", "--quiet")
    job = load_job(fresh / "params.yaml", CLONED)
    promotion = read_promotion(job)
    assert promotion is not None
    assert (promotion.promoted, promotion.order.method) == (True, "label")
    evidence = job.paths.run_dir("measure", str(promotion.trial)) / "passes.jsonl"
    assert evidence.exists(), "the promotion came without its evidence"
    assert output_ids(job) == [f"p{k}" for k in range(FEW)]
    sent = generated_places(load_job(author / "params.yaml", CLONED))[-FEW:]
    assert np.count_nonzero(np.diff(sent % LABELS)) < FEW / 4, "the job did not run in the promoted order"
    said = run(fresh, "git", "log", "--format=%s").splitlines()
    assert said[0].startswith(f"{CLONED}: {FEW} outputs in the file's order")
    assert said[1].startswith(f"{CLONED}: promote")
    assert run(fresh, *DVC, "status", "--json", f"measure@{CLONED}", f"generate@{CLONED}").strip() == "{}"


def make_published_project(root: Path, remotes: Path) -> None:
    """A job whose order pays, its data and its deployments, all in remotes."""
    made = make_project(root, FEW)
    write_prompts(made, [f"prompt {k} {k * 3 % LABELS}" for k in range(FEW)])  # the stand-in sees kinds by their end
    config = json.loads((made.model_path / "config.json").read_text())
    config |= {"num_experts": 64, "num_experts_per_tok": 4, "num_hidden_layers": 2}
    (made.model_path / "config.json").write_text(json.dumps(config))
    params = json.loads((root / "params.yaml").read_text())
    job = params["jobs"].pop("it")
    job["engine"]["env"] |= {"STANDIN_STEP_MS": "1", "STANDIN_KIND_MS": "2"}
    job["order"], job["sampling"]["temperature"] = {"method": "label"}, 0
    params["jobs"], params["generate"], params["reporting"] = {CLONED: job}, {}, {CLONED: {"publish": "push"}}
    params["defaults"]["measure"] |= {"looks": [5]}
    (root / "params.yaml").write_text(json.dumps(params))
    under_git_and_dvc(root)
    (root / "infra").mkdir()
    deploy_from_clones(root / "infra" / "prefect.yaml", (remotes / "remote.git").as_uri())
    run(root, *DVC, "add", "--quiet", job["prompts"], job["model"])
    run(root, *DVC, "remote", "add", "--quiet", "--default", "store", str(remotes / "store"))
    run(root, "git", "add", "--all")
    run(root, "git", "commit", "--quiet", "--message=start")
    run(root, "git", "init", "--quiet", "--bare", str(remotes / "remote.git"))
    run(root, "git", "remote", "add", "origin", (remotes / "remote.git").as_uri())
    run(root, "git", "push", "--quiet", "--set-upstream", "origin", "HEAD")
    run(root, *DVC, "push", "--quiet")


def deploy_from_clones(path: Path, repository: str) -> None:
    """infra/prefect.yaml with one job, whose deployments pull as the file's `fresh-clone` says."""
    yaml = YAML(typ="safe", pure=True)
    held = yaml.load((ROOT / "infra" / "prefect.yaml").read_text().replace(FIRST, CLONED))
    pull = held["definitions"]["fresh-clone"]
    pull[0]["prefect.deployments.steps.git_clone"]["repository"] = repository
    mine = [entry for entry in held["deployments"] if entry["parameters"]["job"] == CLONED]
    held["deployments"] = [{**entry, "pull": pull} for entry in mine]
    yaml.dump(held, path)


def run(folder: Path, *argv: str) -> str:
    done = subprocess.run(argv, cwd=folder, env=surroundings(folder), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
