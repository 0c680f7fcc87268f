"""A Prefect server that goes away in the middle of a generation."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from orderproof.generate.checkpoint_folder import FOLDER, RESULTS_FILE
from orderproof.job.paths import OUTPUTS_FILE
from orderproof.runs.run_store import read_runs
from orderproof.runs.sent import sent_as
from tests.conftest import ROOT
from tests.support.batches import count, make_project
from tests.support.commands import environment
from tests.support.scheduling import prefect_server, wait_until

LONGEST_S, PROMPTS = 420, 1500
pytestmark = pytest.mark.timeout(900)


@pytest.mark.long
def test_outputs_and_their_record_outlive_a_server_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    job = make_project(tmp_path / "p", PROMPTS, step_ms=2)
    results, log = job.data_dir / FOLDER / RESULTS_FILE, tmp_path / "log"
    (tmp_path / "server").mkdir()
    with prefect_server(tmp_path / "server") as server:
        env = environment(job, PREFECT_API_URL=server.url, PREFECT_CLIENT_MAX_RETRIES="1")
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), env.get("PYTHONPATH"))))
        with open(log, "wb") as sink:
            argv = [sys.executable, "-m", "flows.generate", "it"]
            run = subprocess.Popen(argv, cwd=job.root, env=env, stdout=sink, stderr=sink)
        wait_until(lambda: results.exists() and results.stat().st_size > 0, 240, log.read_text)
        assert run.poll() is None
        server.process.kill()
    code = run.wait(LONGEST_S)
    assert code == 1, "a server never heard that the run ended, so whoever waits for it must be told"
    assert "orderproof: the Prefect server does not answer" in log.read_text()
    outputs = pq.read_table(job.data_dir / OUTPUTS_FILE)
    assert outputs["id"].to_pylist() == [f"p{k}" for k in range(PROMPTS)]
    (record,) = read_runs(job, "generate")
    assert count(record, "generated", "failed") == (PROMPTS, 0)
    assert sent_as(job, record), "MLflow does not have the run"
