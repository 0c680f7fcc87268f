"""infra/prefect.yaml in the hands of a real Prefect server and worker: runs come when due, wait for each other, are
cancelled, crash and go on. The engine is the stand-in."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import psutil
import pyarrow.parquet as pq
import pytest
from prefect.client.schemas.filters import ArtifactFilter
from prefect.states import Cancelling

from orderproof.flows.accelerator import LEASE_S, LIMIT
from orderproof.tasks.batch.checkpoint import FOLDER, RESULTS_FILE
from orderproof.tasks.batch.delivery import OUTPUTS_FILE
from orderproof.tasks.batch.record import read_runs
from orderproof.tasks.jobs import Job, load_job
from tests.conftest import ROOT
from tests.e2e.batches import make_project
from tests.e2e.scheduling import (
    POOL,
    Deployments,
    Server,
    process_of,
    process_worker,
    processes_of,
    surroundings,
    wait_until,
)
from tests.infra.test_prefect_yaml import deployments_of
from tests.tasks.tiny_tokenizer import save_model

pytestmark = pytest.mark.timeout(600)
PROMPTS, STEP_MS = 600, 20  # 300 steps: some seconds in which things can happen
EVERY_NIGHT = 'cron: "0 1 * * *", timezone: UTC'
NIGHTLY = "run-batch/{}-nightly"
FIRST, SECOND = "six-domains", "one-domain"


@dataclass(frozen=True)
class Scheduled:
    """A project whose deployments a server holds and a worker runs."""

    root: Path
    deployments: Deployments
    worker: psutil.Process

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
    made = make_project(root, PROMPTS, step_ms=STEP_MS)
    save_model(made.model_path)
    params = json.loads((root / "params.yaml").read_text())
    job = params["jobs"].pop("it")
    job["engine"]["env"]["STANDIN_STEPS"] = str(root / "steps.log")
    params["jobs"] = dict.fromkeys((FIRST, SECOND, "dense"), job)
    params["generate"] = {}
    (root / "params.yaml").write_text(json.dumps(params))
    (root / "dvc.yaml").write_text((ROOT / "dvc.yaml").read_text().split("\nmetrics:")[0] + "\n")
    shutil.copy(ROOT / ".gitignore", root)
    (root / "infra").mkdir()
    deployments = (ROOT / "infra" / "prefect.yaml").read_text()
    (root / "infra" / "prefect.yaml").write_text(deployments.replace(EVERY_NIGHT, "interval: 15", 1))
    for argv in (
        ("git", "init", "-q"),
        ("git", "config", "user.email", "a@b"),
        ("git", "config", "user.name", "a"),
        (sys.executable, "-m", "dvc", "init", "-q"),
    ):
        subprocess.run(argv, cwd=root, env=surroundings(root), check=True)


@pytest.fixture(scope="module")
def project(prefect_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scheduled]:
    """Deployed as the README says."""
    folder = tmp_path_factory.mktemp("scheduled")
    root = folder / "project"
    make_projects(root)
    prefect_server.prefect(root, "work-pool", "create", POOL, "--type", "process", "--overwrite")
    prefect_server.deploy(root)
    with prefect_server.client() as client, process_worker(prefect_server, folder) as worker:
        yield Scheduled(root, Deployments(client), worker)


def ids(job: Job) -> list[str]:
    found: list[str] = pq.read_table(job.data_dir / OUTPUTS_FILE)["id"].to_pylist()
    return found


def artifacts(project: Scheduled, run: UUID) -> dict[str, str]:
    mine = ArtifactFilter.model_validate({"flow_run_id": {"any_": [str(run)]}})
    return {str(made.key): str(made.type) for made in project.deployments.client.read_artifacts(artifact_filter=mine)}


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
        (schedule,) = deployment.schedules
        hour = getattr(schedule.schedule, "cron", None)
        assert hour == entry["schedules"][0].get("cron")


def test_a_run_comes_by_its_schedule_and_leaves_outputs_and_artifacts(project: Scheduled) -> None:
    client, name = project.deployments.client, NIGHTLY.format(FIRST)
    wait_until(lambda: bool(project.come(name)), 60)
    nightly = client.read_deployment_by_name(name)
    client.update_deployment_schedule(nightly.id, nightly.schedules[0].id, active=False)
    run = project.come(name)[0]
    ended = project.deployments.wait(run, "COMPLETED", "FAILED", "CRASHED")
    assert ended.state is not None
    assert (ended.state.type.value, ended.auto_scheduled) == ("COMPLETED", True), ended.state.message
    assert ids(project.job(FIRST)) == [f"p{k}" for k in range(PROMPTS)]
    assert artifacts(project, run) == {f"progress-generate-{FIRST}": "progress", f"batch-{FIRST}": "markdown"}
    (told,) = read_runs(project.job(FIRST))
    assert (told.prefect_run, told.generated, told.failed) == (str(run), PROMPTS, 0)


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
    assert all(ids(project.job(job)) == [f"p{k}" for k in range(PROMPTS)] for job in (FIRST, SECOND))


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
    project.deployments.wait(project.deployments.run_now(NIGHTLY.format(SECOND)), "COMPLETED")
    assert read_runs(project.job(SECOND))[-1].resumed == kept
    assert ids(project.job(SECOND)) == [f"p{k}" for k in range(PROMPTS)]


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
    told = read_runs(project.job(FIRST))[-1]
    assert (told.resumed, told.generated) == (kept, PROMPTS - kept)
    assert ids(project.job(FIRST)) == [f"p{k}" for k in range(PROMPTS)]
