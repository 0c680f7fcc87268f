"""What an order by routes was made from lies with its trial, and comes to another clone with it."""

from __future__ import annotations

import errno
import logging
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ruamel.yaml import YAML

from orderproof.job.hashing import md5_of
from orderproof.job.model import fingerprint
from orderproof.job.spec import Job
from orderproof.orders.order import Order
from orderproof.runs import route_artifacts
from orderproof.runs.promotion import write_promotion
from orderproof.runs.promotion_record import Evidence
from orderproof.runs.route_artifacts import FILES, keep, restore_routes
from orderproof.signals.served_model import ROUTES_FILE
from tests.support.dvc_project import REPOSITORY, Project
from tests.support.routes_maker import make_routes
from tests.support.trial_maker import make_job, trial_folder

PREDICTED = Order(np.arange(8), "cluster", {"signal": "predicted"}, {}, "md5")
LEXICAL = Order(np.arange(8), "cluster", {"signal": "lexical"}, {}, "md5")


def capture(job: Job, folder: Path, said: str = "captured", **changes: Any) -> None:
    """Routes of the job's model; `changes` of their record."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        (folder / name).write_text(f"{said} {name}")
    make_routes(folder / ROUTES_FILE, 2, **{"model": fingerprint(job.model_path), "dataset_md5": said, **changes})


def held(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in FILES if (folder / name).exists()}


@pytest.fixture
def job(tmp_path: Path) -> Job:
    job = make_job(tmp_path)
    job.model_path.mkdir(parents=True)
    capture(job, job.data_dir)
    return job


def test_only_a_trial_of_an_order_by_routes_keeps_them(job: Job) -> None:
    keep(job, LEXICAL, trial_folder(job, "1"))
    keep(job, PREDICTED, trial_folder(job, "2"))
    assert not (trial_folder(job, "1") / "captured").exists()
    assert held(trial_folder(job, "2") / "captured") == held(job.data_dir)


def test_a_capture_without_costs_is_kept_as_it_is(job: Job) -> None:
    (job.data_dir / "step_costs.json").unlink()
    keep(job, PREDICTED, trial_folder(job, "2"))
    assert set(held(trial_folder(job, "2") / "captured")) == {"routes.parquet", "predictor.npz"}


def test_routes_that_lie_there_are_never_replaced(job: Job) -> None:
    before = held(job.data_dir)
    capture(job, trial_folder(job, "2") / "captured", "older")
    assert restore_routes(job) is None
    assert held(job.data_dir) == before


def test_missing_routes_come_from_the_promoted_trial_or_else_the_newest(job: Job) -> None:
    shutil.rmtree(job.data_dir)
    assert restore_routes(job) is None
    capture(job, trial_folder(job, "1") / "captured", "first")
    capture(job, trial_folder(job, "2") / "captured", "second")
    assert restore_routes(job) == trial_folder(job, "2") / "captured"
    assert held(job.data_dir) == held(trial_folder(job, "2") / "captured")
    shutil.rmtree(job.data_dir)
    ids = [f"p{k}" for k in range(8)]
    job.prompts_path.parent.mkdir(parents=True)
    job.prompts_path.touch()
    write_promotion(job, replace(PREDICTED, dataset_md5=md5_of(job.prompts_path)), ids, Evidence(trial="1"))
    assert restore_routes(job) == trial_folder(job, "1") / "captured"


def test_what_does_not_fit_stays_where_it_is(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    shutil.rmtree(job.data_dir)
    kept = job.paths.verb_dir("measure")
    capture(job, kept / "1" / "captured", "now")
    capture(job, kept / "2" / "captured", "before")
    capture(job, kept / "3" / "captured", "now", model="another")
    capture(job, kept / "4" / "captured", "now")
    (kept / "4" / "captured" / "routes.parquet").unlink()  # a copy that was cut off
    with caplog.at_level(logging.INFO):
        assert restore_routes(job, "never captured") is None
    assert not caplog.records
    assert restore_routes(job, "now") == kept / "1" / "captured"
    shutil.rmtree(job.data_dir)
    assert restore_routes(job) == kept / "2" / "captured", "the newest of this model, whatever its prompts"


def test_the_model_is_read_once_however_many_trials_kept_routes(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(job.data_dir)
    for trial in "123":
        capture(job, trial_folder(job, trial) / "captured", model="another")
    read: list[Path] = []
    monkeypatch.setattr(route_artifacts, "fingerprint", lambda folder: str(read.append(folder)))
    assert restore_routes(job) is None
    assert read == [job.model_path]


def test_a_disk_that_takes_no_copy_ends_nothing(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keep(job, PREDICTED, trial_folder(job, "1"))

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", full)
    keep(job, PREDICTED, trial_folder(job, "2"))
    assert not (trial_folder(job, "2") / "captured" / "routes.parquet").exists()
    (job.data_dir / "routes.parquet").unlink()
    assert restore_routes(job) is None
    lost, missed = (record.getMessage() for record in caplog.records)
    assert "a clone will lack them" in lost
    assert "could not be restored" in missed
    assert all("No space left on device" in said for said in (lost, missed))


@pytest.mark.long
def test_a_second_clone_gets_them_with_what_was_generated(project: Project, tmp_path: Path) -> None:
    pipeline = YAML().load(project.root / "dvc.yaml")
    generate: dict[str, Any] = YAML().load(REPOSITORY / "dvc.yaml")["stages"]["generate"]
    generate["do"]["cmd"] = f"{sys.executable} -c \"open('data/${{key}}/outputs.parquet', 'w').write('outputs')\""
    pipeline["stages"]["generate"] = generate
    YAML().dump(pipeline, project.root / "dvc.yaml")
    job = project.job()
    capture(job, job.data_dir)
    keep(job, PREDICTED, trial_folder(job, "20261129T144640Z-3f9a"))
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
    assert restore_routes(clone.job()) is not None
    assert held(clone.job().data_dir) == held(job.data_dir)
    assert clone.changed("measure@six-domains") == {}
