"""infra/prefect.yaml on a real Prefect server: it deploys, on schedule, with parameters that its flows take."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from ruamel.yaml import YAML

from tests.conftest import ROOT


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment in which `prefect` talks to a server of our own, on loopback."""
    home, port = tmp_path_factory.mktemp("prefect"), free_port()
    url = f"http://127.0.0.1:{port}/api"
    env = {**os.environ, "PREFECT_HOME": str(home), "PREFECT_API_URL": url}
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with open(home / "server.log", "w") as log:
        started = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline:
            assert started.poll() is None, (home / "server.log").read_text()[-2000:]
            try:
                if httpx.get(f"{url}/health", timeout=2).status_code == 200:
                    break
            except httpx.HTTPError:
                time.sleep(0.5)
        yield env
    finally:
        started.terminate()
        started.wait(60)


def prefect(server: dict[str, str], *arguments: str) -> str:
    command = [sys.executable, "-m", "prefect", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=server, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_deployment_is_accepted_with_its_schedule_and_parameters(server: dict[str, str]) -> None:
    prefect(server, "work-pool", "create", "local", "--type", "process")
    prefect(server, "deploy", "--all", "--no-prompt", "--prefect-file", "infra/prefect.yaml")
    wanted = {entry["name"]: entry for entry in deployments(ROOT / "infra" / "prefect.yaml")}
    found = httpx.post(f"{server['PREFECT_API_URL']}/deployments/filter", json={}, timeout=30).json()
    assert {deployment["name"] for deployment in found} == set(wanted)
    for deployment in found:
        entry = wanted[deployment["name"]]
        assert deployment["parameters"] == entry["parameters"]
        assert [s["schedule"]["cron"] for s in deployment["schedules"]] == [s["cron"] for s in entry["schedules"]]
        assert set(entry["parameters"]) <= set(deployment["parameter_openapi_schema"]["properties"])


def test_every_sample_job_is_measured_every_week() -> None:
    jobs = YAML(typ="safe", pure=True).load(ROOT / "params.yaml")["jobs"]
    weekly = [d for d in deployments(ROOT / "infra" / "prefect.yaml") if d["entrypoint"].startswith("flows/measure.py")]
    assert {deployment["parameters"]["job"] for deployment in weekly} == set(jobs)


def deployments(path: Path) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = YAML(typ="safe", pure=True).load(path)["deployments"]
    return entries
