"""A whole project as a user has it (git, DVC, params.yaml, prompts, models), and the command run in it as a process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from ruamel.yaml import YAML

from tests.conftest import ROOT
from tests.support import scheduling
from tests.support.scheduling import Server

BLOCKS = 5
# Whether a busy machine spoils a pass is not what these tests ask, and it must not decide them.
PARAMS = {
    "defaults": {
        "engine": {
            "args": {
                "max_num_seqs": 8,
                "max_model_len": 256,
                "dtype": "bfloat16",
                "enforce_eager": True,
                "enable_prefix_caching": False,
            },
            "env": {"VLLM_CPU_KVCACHE_SPACE": "1"},
        },
        "sampling": {"temperature": 0, "max_tokens": 16, "ignore_eos": True},
        "measure": {"looks": [BLOCKS], "scorer": "contains"},
    },
    "jobs": {
        "six-domains": {"prompts": "data/prompts.jsonl", "model": "data/models/moe", "order": {"method": "label"}},
        "slow": {
            "prompts": "data/prompts.jsonl",
            "model": "data/models/moe",
            "order": {"method": "label"},
            "sampling": {"max_tokens": 128},
        },
        "dense": {"prompts": "data/prompts.jsonl", "model": "data/models/dense", "order": {"method": "label"}},
    },
    "reporting": {"defaults": {"price_per_hour": 2.0}, "six-domains": {"log_text": True}},
}


@dataclass(frozen=True)
class Project:
    """A project's folder and the environment in which its commands run."""

    root: Path
    env: dict[str, str]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "orderproof.cli", *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, cwd=self.root, env=self.env, stdout=pipe, stderr=pipe, text=True)

    def run(self, *arguments: str, code: int = 0) -> str:
        """Standard output of `orderproof …`, which must end with `code` and never with a traceback."""
        process = self.start(*arguments)
        out, err = process.communicate(timeout=580)
        assert process.returncode == code, err[-4000:]
        assert "Traceback" not in err, err[-4000:]
        return out if code == 0 else err

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--json"))

    def tool(self, *command: str) -> str:
        done = subprocess.run(command, cwd=self.root, env=self.env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def trials(self, job: str) -> list[Path]:
        return sorted(path.parent for path in (self.root / "reports" / job / "measure").glob("2*/manifest.json"))


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory, prompts_file: Path, models: dict[str, Path]) -> Iterator[Project]:
    root = tmp_path_factory.mktemp("project")
    env = {
        **os.environ,
        "PREFECT_HOME": str(root / ".orderproof" / "prefect"),
        "PREFECT_LOGGING_TO_API_ENABLED": "false",
        **{f"GIT_{who}_{what}": "orderproof" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    }
    env.pop("DVC_STAGE", None)
    project = Project(root, env)
    shutil.copytree(models["moe"], root / "data" / "models" / "moe")
    shutil.copytree(models["dense"], root / "data" / "models" / "dense")
    shutil.copy(prompts_file, root / "data" / "prompts.jsonl")
    shutil.copy(ROOT / ".gitignore", root)
    YAML(typ="safe", pure=True).dump(PARAMS, root / "params.yaml")
    _measure_stage_alone(root / "dvc.yaml")
    project.tool("git", "init", "--quiet")
    project.tool(sys.executable, "-m", "dvc", "init", "--quiet")
    project.tool("git", "add", "--all")
    project.tool("git", "commit", "--quiet", "--message=start")
    yield project
    stray = [p for p in psutil.process_iter(["cmdline"]) if str(root) in " ".join(p.info["cmdline"] or ())]
    for process in stray:
        process.kill()


def _measure_stage_alone(path: Path) -> None:
    """The project's own measure stage, without the makers of the demo's data."""
    yaml = YAML(typ="safe", pure=True)
    stages = yaml.load(ROOT / "dvc.yaml")["stages"]
    yaml.dump({"stages": {"measure": stages["measure"]}}, path)


@pytest.fixture(scope="session")
def measured(project: Project) -> Any:
    """The run of one whole measurement, shared by the tests that look at what it left."""
    return project.json("measure", "six-domains")


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One real server for all tests of deployments."""
    with scheduling.prefect_server(tmp_path_factory.mktemp("prefect")) as running:
        yield running


@pytest.fixture
def wait_until() -> Callable[[Callable[[], bool], float], None]:
    def wait(holds: Callable[[], bool], limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        while not holds():
            assert time.monotonic() < deadline, "it did not happen in time"
            time.sleep(0.05)

    return wait


def workers_of(process: psutil.Process) -> list[psutil.Process]:
    """The engine processes among a process's descendants."""
    return [p for p in process.children(recursive=True) if any("worker.py" in word for word in p.cmdline())]
