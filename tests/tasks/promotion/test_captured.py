"""What an order by routes was made from lies with its trial, and comes to another clone with it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ruamel.yaml import YAML

from orderproof.tasks import promotion
from orderproof.tasks.jobs import Job
from orderproof.tasks.orders import Order
from orderproof.tasks.promotion.captured import FILES, bring_back, keep
from tests.tasks.conftest import REPOSITORY, Project
from tests.tasks.trial_maker import make_job

PREDICTED = Order(np.arange(8), "cluster", {"signal": "predicted"}, {}, "md5")
LEXICAL = Order(np.arange(8), "cluster", {"signal": "lexical"}, {}, "md5")


def capture(folder: Path, said: str = "captured") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        (folder / name).write_text(f"{said} {name}")


def held(folder: Path) -> dict[str, str]:
    return {name: (folder / name).read_text() for name in FILES if (folder / name).exists()}


@pytest.fixture
def job(tmp_path: Path) -> Job:
    job = make_job(tmp_path)
    capture(job.data_dir)
    return job


def test_only_a_trial_of_an_order_by_routes_keeps_them(job: Job) -> None:
    keep(job, LEXICAL, job.reports_dir / "1")
    keep(job, PREDICTED, job.reports_dir / "2")
    assert not (job.reports_dir / "1" / "captured").exists()
    assert held(job.reports_dir / "2" / "captured") == held(job.data_dir)


def test_a_capture_without_costs_is_kept_as_it_is(job: Job) -> None:
    (job.data_dir / "step_costs.json").unlink()
    keep(job, PREDICTED, job.reports_dir / "2")
    assert set(held(job.reports_dir / "2" / "captured")) == {"routes.parquet", "predictor.npz"}


def test_routes_that_lie_there_are_never_replaced(job: Job) -> None:
    capture(job.reports_dir / "2" / "captured", "older")
    assert bring_back(job) is None
    assert held(job.data_dir)["routes.parquet"] == "captured routes.parquet"


def test_missing_routes_come_from_the_promoted_trial_or_else_the_newest(job: Job) -> None:
    shutil.rmtree(job.data_dir)
    assert bring_back(job) is None
    capture(job.reports_dir / "1" / "captured", "first")
    capture(job.reports_dir / "2" / "captured", "second")
    assert bring_back(job) == job.reports_dir / "2" / "captured"
    assert set(held(job.data_dir).values()) == {f"second {name}" for name in FILES}
    shutil.rmtree(job.data_dir)
    ids = [f"p{k}" for k in range(8)]
    promotion._write(job, PREDICTED, ids, promoted=True, trial="1", mlflow_run=None)
    assert bring_back(job) == job.reports_dir / "1" / "captured"


@pytest.mark.long
def test_a_second_clone_gets_them_with_what_was_generated(project: Project, tmp_path: Path) -> None:
    pipeline = YAML().load(project.root / "dvc.yaml")
    generate: dict[str, Any] = YAML().load(REPOSITORY / "dvc.yaml")["stages"]["generate"]
    generate["do"]["cmd"] = f"{sys.executable} -c \"open('data/${{key}}/outputs.parquet', 'w').write('outputs')\""
    pipeline["stages"]["generate"] = generate
    YAML().dump(pipeline, project.root / "dvc.yaml")
    job = project.job()
    capture(job.data_dir)
    keep(job, PREDICTED, job.reports_dir / "20261129T144640Z-3f9a")
    project.dvc("commit", "--force", "measure@six-domains")
    project.dvc("repro", "generate@six-domains")
    project.dvc("remote", "add", "--default", "store", str(tmp_path / "store"))
    project.dvc("push", "--with-deps", "generate@six-domains")
    project.git("add", "--all")
    project.git("commit", "--quiet", "--message=generated")
    assert "captured" not in project.git("ls-files")
    project.git("clone", "--quiet", str(project.root), str(tmp_path / "clone"))
    clone = Project(tmp_path / "clone")
    clone.dvc("pull", "--with-deps", "generate@six-domains")
    assert not held(clone.job().data_dir)
    assert bring_back(clone.job()) is not None
    assert held(clone.job().data_dir) == held(job.data_dir)
    assert clone.changed("measure@six-domains") == {}
