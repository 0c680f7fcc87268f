"""A Prefect server that goes away in the middle of a batch."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from orderproof.generate.delivery import OUTPUTS_FILE
from orderproof.generate.record import read_runs
from orderproof.job.spec import Job
from tests.e2e.test_generate import PROMPTS, job, start, surroundings

__all__ = ["job"]
LONGEST_S = 420
pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def server(job: Job, tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A real server with a home of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    home = tmp_path / "server"
    home.mkdir()
    argv = [sys.executable, "-m", "prefect", "server", "start", "--port", str(port), "--no-services"]
    with open(tmp_path / "server.log", "ab") as log:
        running = subprocess.Popen(argv, env=surroundings(job, PREFECT_HOME=str(home)), stdout=log, stderr=log)
    url, patience = f"http://127.0.0.1:{port}/api", time.monotonic() + 120
    while time.monotonic() < patience:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=2)
            break
        except OSError:
            time.sleep(0.2)
    yield url, running
    running.kill()
    running.wait()


@pytest.mark.long
def test_outputs_outlive_a_server_that_is_gone_and_the_run_says_that_its_end_is_unknown_there(
    job: Job, server: tuple[str, subprocess.Popen[bytes]]
) -> None:
    url, running = server
    run = start(job, PREFECT_API_URL=url, PREFECT_CLIENT_MAX_RETRIES="1")
    running.kill()
    code = run.wait(LONGEST_S)
    said = (job.root / "first.log").read_text()
    assert code == 1, "a server never heard that the run ended, so whoever waits for it must be told"
    assert "orderproof: the Prefect server is gone" in said
    outputs = pq.read_table(job.data_dir / OUTPUTS_FILE)
    assert outputs["id"].to_pylist() == [f"p{k}" for k in range(PROMPTS)]
    (told,) = read_runs(job)
    assert (told.generated, told.mlflow_run is not None) == (PROMPTS, True)
