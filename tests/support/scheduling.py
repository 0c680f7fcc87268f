"""A Prefect server and a process worker of our own, as processes on loopback, and a project whose jobs they run."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import psutil
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import FlowRun
from ruamel.yaml import YAML

POOL = "local"
BIN = Path(sys.executable).parent


def deployments_of(path: Path) -> list[dict[str, Any]]:
    """What a prefect.yaml deploys."""
    entries: list[dict[str, Any]] = YAML(typ="safe", pure=True).load(path)["deployments"]
    return entries


@dataclass(frozen=True)
class Server:
    """Where a server answers, and the environment in which `prefect` talks to it."""

    url: str
    env: dict[str, str]
    process: subprocess.Popen[bytes]

    def client(self) -> SyncPrefectClient:
        return SyncPrefectClient(api=self.url)

    def prefect(self, folder: Path, *arguments: str) -> str:
        command = [sys.executable, "-m", "prefect", *arguments]
        done = subprocess.run(command, cwd=folder, env=self.env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def deploy(self, folder: Path, prefect_file: str = "infra/prefect.yaml") -> None:
        self.prefect(folder, "deploy", "--all", "--no-prompt", "--prefect-file", prefect_file)


def surroundings(home: Path, **more: str) -> dict[str, str]:
    """The environment without anything of the developer's own services."""
    foreign = ("MLFLOW_", "PREFECT_", "DVC_STAGE")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
    kept["PATH"] = f"{BIN}{os.pathsep}{kept.get('PATH', '')}"
    return {**kept, "PREFECT_HOME": str(home), "DVC_NO_ANALYTICS": "1", "DO_NOT_TRACK": "1", **more}


@contextmanager
def prefect_server(home: Path) -> Iterator[Server]:
    """A server with a home of its own, its services included."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}/api"
    env = surroundings(
        home, PREFECT_SERVER_ANALYTICS_ENABLED="false", PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS="2"
    )
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with open(home / "server.log", "w") as log:
        started = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    try:
        _wait_for_health(url, started, home / "server.log")
        yield Server(url, {**env, "PREFECT_API_URL": url}, started)
    finally:
        started.terminate()
        started.wait(60)


def _wait_for_health(url: str, started: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 240
    while True:
        assert started.poll() is None, log.read_text()[-2000:]
        try:
            if httpx.get(f"{url}/health", timeout=2).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        assert time.monotonic() < deadline, log.read_text()[-2000:]
        time.sleep(0.2)


@contextmanager
def process_worker(server: Server, folder: Path) -> Iterator[psutil.Process]:
    """A worker that asks for work every second; its log is worker.log. It starts away from the project, and what it
    keeps for the time of a run it keeps in tmp."""
    home = folder / "worker"
    for path in (home, folder / "tmp"):
        path.mkdir(parents=True, exist_ok=True)
    who = {f"GIT_{role}_{what}": "worker" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    own = {"PREFECT_HOME": str(home), "TMPDIR": str(folder / "tmp"), "PREFECT_WORKER_QUERY_SECONDS": "1"}
    env = {**server.env, **who, **own}
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", POOL, "--type", "process"]
    with open(folder / "worker.log", "a") as log:
        started = subprocess.Popen(command, cwd=home, env=env, stdout=log, stderr=log)
    try:
        yield psutil.Process(started.pid)
    finally:
        family = psutil.Process(started.pid).children(recursive=True) if started.poll() is None else []
        started.terminate()
        try:
            started.wait(60)
        except subprocess.TimeoutExpired:  # it waits for a run that a test left at work
            started.kill()
        for stray in psutil.wait_procs(family, 10)[1]:
            stray.kill()


@dataclass(frozen=True)
class Deployments:
    """What a test does with deployments that a server holds, and what it sees of their runs."""

    client: SyncPrefectClient

    def run_now(self, name: str) -> UUID:
        """As the page's button `Quick run` does. `name`: flow/deployment."""
        deployment = self.client.read_deployment_by_name(name)
        return self.client.create_flow_run_from_deployment(deployment.id).id

    def runs(self, name: str) -> list[FlowRun]:
        deployment = self.client.read_deployment_by_name(name)
        mine = FlowRunFilter.model_validate({"deployment_id": {"any_": [str(deployment.id)]}})
        return self.client.read_flow_runs(flow_run_filter=mine)

    def state(self, run: UUID) -> str:
        state = self.client.read_flow_run(run).state
        return state.type.value if state else "NONE"

    def wait(self, run: UUID, *states: str, limit_s: float = 180) -> FlowRun:
        wait_until(lambda: self.state(run) in states, limit_s, lambda: f"{run} is {self.state(run)}, not {states}")
        return self.client.read_flow_run(run)


def wait_until(
    holds: Callable[[], bool], limit_s: float, otherwise: Callable[[], str] = lambda: "it did not happen in time"
) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, otherwise()
        time.sleep(0.1)


def process_of(run: UUID) -> psutil.Process | None:
    """The process in which a worker runs a flow, found by the run's id in its environment."""
    for process in psutil.process_iter():
        try:
            if process.environ().get("PREFECT__FLOW_RUN_ID") == str(run) and "prefect" in " ".join(process.cmdline()):
                return process
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return None


def processes_of(run: UUID) -> list[psutil.Process]:
    """All processes that stem from a run, however they got away from their parents."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("PREFECT__FLOW_RUN_ID") == str(run):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found
