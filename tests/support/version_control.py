"""A job in git and DVC, pushed, and cloned as if on another machine. The tools are real."""

from __future__ import annotations

import json

from ruamel.yaml import YAML

from orderproof.job.params import load_job
from orderproof.job.paths import OUTPUTS_FILE
from orderproof.job.spec import Job
from tests.support.batches import promote_label_order
from tests.support.commands import dvc, shell
from tests.support.dvc_project import REPOSITORY

AUTHOR = ("-c", "user.email=a@b", "-c", "user.name=a")
STAGES = ("measure", "generate", "reproduce")  # without the makers of the demo's data


def put_under_version_control(job: Job) -> None:
    """A repository whose remote for data is the folder beside it, with an order that was promoted."""
    promote_label_order(job)
    for verb in ("measure", "lossy"):  # outputs of the stage, empty or not
        job.paths.verb_dir(verb).mkdir(parents=True)
    stages = YAML(typ="safe", pure=True).load(REPOSITORY / "dvc.yaml")["stages"]
    (job.root / "dvc.yaml").write_text(json.dumps({"stages": {name: stages[name] for name in STAGES}}))
    (job.root / ".gitignore").write_text((REPOSITORY / ".gitignore").read_text())
    shell(job, "git", "init", "-q")
    dvc(job, "init", "-q")
    dvc(job, "remote", "add", "--default", "folder", str(job.root.parent / "remote"))
    dvc(job, "add", "-q", job.prompts, *([job.model] if job.model_path.is_relative_to(job.root) else []))
    dvc(job, "commit", "-q", "--force", f"measure@{job.name}")


def push(job: Job) -> None:
    """Commit everything and push the data."""
    shell(job, "git", "add", "--all")
    shell(job, "git", *AUTHOR, "commit", "-q", "-m", "a baseline")
    dvc(job, "push", "-q", "-a")


def clone(job: Job) -> Job:
    """The same project on another machine, as far as a folder can be one; with its outputs."""
    root = job.root.parent / "clone"
    shell(job, "git", "clone", "-q", str(job.root), str(root))
    there = load_job(root / "params.yaml", job.name)
    assert not (there.data_dir / OUTPUTS_FILE).exists()
    dvc(there, "pull", "-q", "--with-deps", f"generate@{job.name}")  # without a target DVC misses stages that never ran
    return there
