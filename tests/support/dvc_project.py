"""A prepared project under real git and real DVC, copied for each test that asks for one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from orderproof.job.hashing import md5_of
from orderproof.job.params import load_job
from orderproof.job.spec import Job

REPOSITORY = Path(__file__).parents[2]

PARAMS = """\
# which jobs there are
defaults:
  measure: {looks: [5, 10]}
  engine: {args: {max_num_seqs: 16}}
jobs:
  six-domains:
    prompts: data/six-domains/prompts.jsonl
    model: data/models/demo-moe
    engine: {args: {max_model_len: 512}, env: {A: "1"}}
    sampling: {temperature: 0.0, stop: ["\\n", "${x}"], logit_bias: {"1": 2.5}}
  one-domain:
    prompts: data/one-domain/prompts.jsonl
    model: data/models/demo-moe
reporting:
  defaults: {price_per_hour: 0}
"""

# Takes the place of `orderproof measure`: same inputs and outputs, no engine. It logs what it found at the start.
MEASURE = """\
import json, os, sys
from pathlib import Path
from orderproof.job.hashing import md5_of
from orderproof.job.params import load_job
from orderproof.runs.promotion import PromotionError, keep_current
from orderproof.runs.promotion_record import Evidence

job = load_job(Path("params.yaml"), sys.argv[1])
with open("runs.log", "a") as log:
    log.write(f"{job.name} {(job.data_dir / 'order.json').exists()}\\n")
before = md5_of(job.prompts_path)
ids = [json.loads(line)["id"] for line in job.prompts_path.read_text().splitlines()]
if os.environ.get("EDIT_DURING_THE_PASS"):
    with open(job.prompts_path, "a") as prompts:
        prompts.write('{"id": "late", "text": "x"}\\n')
run = len(Path("runs.log").read_text().splitlines())  # no two measurements are alike
earlier = len(list(job.paths.verb_dir("measure").glob("*")))
folder = job.paths.run_dir("measure", f"20261129T14{earlier:04d}Z-3f9a")
folder.mkdir(parents=True)
(folder / "run.json").write_text(json.dumps({"answer": "keep", "gain": 0.001 * run}))
job.paths.verb_dir("lossy").mkdir(parents=True, exist_ok=True)
try:
    keep_current(job, before, ids, Evidence())
except PromotionError as error:
    sys.exit(str(error))
"""


@dataclass(frozen=True)
class Project:
    """A checkout with two jobs, both measured through `dvc repro` and committed."""

    root: Path

    def run(self, *argv: str, check: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(argv, cwd=self.root, env={**os.environ, **env}, capture_output=True, text=True)
        assert done.returncode == 0 or not check, f"{argv} failed:\n{done.stdout}{done.stderr}"
        return done

    def dvc(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, "-m", "dvc", *arguments, **options)

    def git(self, *arguments: str) -> str:
        return self.run("git", *arguments).stdout

    def changed(self, *targets: str) -> dict[str, Any]:
        """What `dvc status` finds changed; {} is clean."""
        found: dict[str, Any] = json.loads(self.dvc("status", "--json", *targets).stdout)
        return found

    def runs(self) -> list[str]:
        """One "<job> <was there an order?>" per run of the stage's command."""
        return (self.root / "runs.log").read_text().splitlines()

    def job(self, name: str = "six-domains") -> Job:
        return load_job(self.root / "params.yaml", name)

    def inputs(self, name: str = "six-domains") -> dict[str, str]:
        path = f"data/{name}/prompts.jsonl"
        return {path: md5_of(self.root / path)}

    def lock(self) -> bytes:
        return (self.root / "dvc.lock").read_bytes()

    def edit(self, path: str, old: str, new: str) -> None:
        text = (self.root / path).read_text()
        assert old in text
        (self.root / path).write_text(text.replace(old, new))

    def measure_from_outside(self, name: str = "six-domains") -> None:
        """What a flow does: the same work, without DVC knowing."""
        self.run(sys.executable, "measure.py", name)


@pytest.fixture(scope="session")
def measured_project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """Made once; copied by `project`."""
    base = tmp_path_factory.mktemp("dvc")
    with pytest.MonkeyPatch.context() as patch:
        for role in ("AUTHOR", "COMMITTER"):
            patch.setenv(f"GIT_{role}_NAME", "A User")
            patch.setenv(f"GIT_{role}_EMAIL", "user@example.org")
        patch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
        patch.setenv("GIT_CONFIG_NOSYSTEM", "1")
        patch.setenv("DVC_NO_ANALYTICS", "1")
        patch.setenv("DVC_SITE_CACHE_DIR", str(base / "site"))
        patch.delenv("DVC_STAGE", raising=False)
        project = Project(base / "project")
        _lay_out(project.root)
        project.git("init", "--quiet", "--initial-branch=main")
        project.dvc("init", "--quiet")
        project.dvc("add", "--quiet", *(f"data/{name}/prompts.jsonl" for name in ("six-domains", "one-domain")))
        project.dvc("add", "--quiet", "data/models/demo-moe")
        project.dvc("repro", "--quiet")
        project.git("add", "--all")
        project.git("commit", "--quiet", "--message=measured")
        yield project


@pytest.fixture
def project(measured_project: Project, tmp_path: Path) -> Project:
    """A copy of the measured project that a test may spoil."""
    shutil.copytree(measured_project.root, tmp_path / "project", symlinks=True)
    return Project(tmp_path / "project")


def _lay_out(root: Path) -> None:
    for name in ("six-domains", "one-domain"):
        folder = root / "data" / name
        folder.mkdir(parents=True)
        lines = (json.dumps({"id": f"{name}-{i}", "text": f"prompt {i}"}) for i in range(8))
        (folder / "prompts.jsonl").write_text("".join(f"{line}\n" for line in lines))
    (root / "data/models/demo-moe").mkdir(parents=True)
    (root / "data/models/demo-moe/config.json").write_text("{}")
    (root / "params.yaml").write_text(PARAMS)
    (root / "measure.py").write_text(MEASURE)
    shutil.copy(REPOSITORY / ".gitignore", root / ".gitignore")
    with open(root / ".gitignore", "a") as ignore:
        ignore.write("/runs.log\n")
    YAML().dump(_pipeline(), root / "dvc.yaml")


def _pipeline() -> dict[str, Any]:
    """The project's own measure stage and metrics, with a command that needs no engine."""
    pipeline = YAML().load(REPOSITORY / "dvc.yaml")
    measure = pipeline["stages"]["measure"]
    measure["do"]["cmd"] = f"{sys.executable} measure.py ${{key}}"
    return {"stages": {"measure": measure}, "metrics": pipeline["metrics"]}
