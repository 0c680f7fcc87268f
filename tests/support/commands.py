"""The shipped command and DVC, run as processes in a job's project."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from orderproof.generate.checkpoint_folder import FOLDER, RESULTS_FILE
from orderproof.job.spec import Job

COMMAND = [sys.executable, "-m", "orderproof.cli"]
FOREIGN = ("MLFLOW_", "PREFECT_", "DVC_STAGE")  # settings of the developer's own services


def environment(job: Job, **more: str) -> dict[str, str]:
    """Without anything of the developer's own services, and with the accelerator's lock in the project."""
    own = {key: value for key, value in os.environ.items() if not key.startswith(FOREIGN)}
    own["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{own.get('PATH', '')}"  # `orderproof` in dvc.yaml
    folder = job.root / ".orderproof"
    (folder / "tmp").mkdir(parents=True, exist_ok=True)
    return {
        **own, "PREFECT_HOME": str(folder / "prefect"), "TMPDIR": str(folder / "tmp"), "DVC_NO_ANALYTICS": "1", **more
    }  # fmt: skip


def shell(job: Job, *argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(argv, cwd=job.root, env=environment(job), capture_output=True, text=True)
    assert done.returncode == 0 or not check, f"{argv} failed:\n{done.stdout}{done.stderr}"
    return done


def orderproof(job: Job, *arguments: str) -> Any:
    """What a command answers with --json."""
    return json.loads(shell(job, *COMMAND, *arguments, "--json").stdout)


def dvc(job: Job, *arguments: str) -> str:
    return shell(job, sys.executable, "-m", "dvc", *arguments).stdout


def dvc_status(job: Job, *stages: str) -> Any:
    """What changed since DVC recorded some stages, by stage; empty: nothing did."""
    return json.loads(dvc(job, "status", "--json", *stages))


def start(job: Job, *arguments: str, log: Path, stdin: Any = None, **more: str) -> subprocess.Popen[bytes]:
    """Start a command in a process group of its own. `more`: environment variables."""
    with open(log, "ab") as sink:
        return subprocess.Popen(
            [*COMMAND, *arguments], cwd=job.root, env=environment(job, **more), stdin=stdin, stdout=sink, stderr=sink,
            start_new_session=True,
        )  # fmt: skip


def start_generating(job: Job, log: Path, **more: str) -> subprocess.Popen[bytes]:
    """Start `orderproof generate`, and wait until it keeps results."""
    results = job.data_dir / FOLDER / RESULTS_FILE
    run = start(job, "generate", job.name, log=log, **more)
    while not (results.exists() and results.stat().st_size):
        assert run.poll() is None, log.read_text()
        time.sleep(0.01)
    return run
