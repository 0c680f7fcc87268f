"""A lossy routing from its measurement to a second clone, as a user runs it: real Prefect, DVC, MLflow and git. The
engine is the stand-in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from orderproof.generate.delivery import OUTPUTS_FILE
from orderproof.generate.provenance import read_provenance
from orderproof.job.spec import Job
from tests.e2e.test_generate import COMMAND, dvc, shell
from tests.e2e.test_reproduce import clone, push, put_under_version_control
from tests.lossy.test_acceptance import K0, edited, lossless_project

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job in version control, with a promoted order and a trial that was measured."""
    for name in ("DVC_STAGE", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    made = edited(lossless_project(tmp_path / "p"), measure={"scorer": "contains", "looks": [5]})
    put_under_version_control(made)
    orderproof(made, "measure", "it")
    return made


def orderproof(job: Job, *arguments: str) -> Any:
    return json.loads(shell(job, *COMMAND, *arguments, "--json").stdout)


def refusal(job: Job, *arguments: str) -> str:
    done = shell(job, *COMMAND, *arguments, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stderr


def clean(job: Job, *stages: str) -> bool:
    return json.loads(dvc(job, "status", "--json", *stages)) == {}


def test_a_lossy_routing_is_accepted_generated_pushed_and_reproduced(job: Job) -> None:
    accepted = edited(job, accept_lossy={"k0": K0})
    assert "`orderproof lossy it --k0 2` measures it" in refusal(accepted, "generate", "it")
    edited(job, accept_lossy=None)

    told = orderproof(job, "lossy", "it", "--k0", str(K0))
    assert (told["lossy"], told["promotes"], told["k0"]) == (True, False, K0)
    assert "accept_lossy: {k0: 2}" in (job.reports_dir / "lossy" / f"k0-{K0}.md").read_text().strip().splitlines()[-1]
    assert clean(job, "measure@it"), "the evidence is recorded beside the trials"
    assert orderproof(job, "generate", "it")["lossy_k0"] is None, "measured is not accepted"
    own = pq.read_table(job.data_dir / OUTPUTS_FILE)["token_ids"]

    edited(job, accept_lossy={"k0": K0})
    assert not clean(job, "generate@it"), "outputs of another routing are not those of this job"
    run = orderproof(job, "generate", "it")
    assert (run["lossy_k0"], run["order"]["method"], run["notes"]) == (K0, "label", [])
    assert run["mlflow_run"]
    assert pq.read_table(job.data_dir / OUTPUTS_FILE)["token_ids"] != own
    assert clean(job, "generate@it")
    trials = list(job.reports_dir.glob("2*/manifest.json"))
    dvc(job, "repro", "measure@it")
    assert clean(job, "measure@it", "generate@it")
    assert list(job.reports_dir.glob("2*/manifest.json")) == trials, "an acceptance measured the order again"

    push(job)
    there = clone(job)
    made = orderproof(there, "reproduce", "it")
    assert (made["answer"], made["changes"], made["lossy_k0"]) == ("reproduced", [], K0)
    held = read_provenance(there.data_dir / OUTPUTS_FILE)
    assert held is not None
    assert held.key["lossy"] == {"k0": K0}

    shell(job, *COMMAND, "demote", "it")
    assert clean(job, "measure@it"), "the demotion is recorded"
    edited(job, accept_lossy=None)
    assert orderproof(job, "generate", "it")["lossy_k0"] is None
    assert pq.read_table(job.data_dir / OUTPUTS_FILE)["token_ids"] == own
