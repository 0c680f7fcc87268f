"""A lossy routing from its measurement to a second clone, as a user runs it: real DVC, MLflow and git. The engine is
the stand-in."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from orderproof.generate.provenance import read_provenance
from orderproof.job.paths import OUTPUTS_FILE
from orderproof.job.spec import Job
from orderproof.runs.run_store import read_runs
from tests.support.batches import edit_job
from tests.support.commands import COMMAND, dvc, orderproof, shell
from tests.support.html_reader import Reader
from tests.support.lossy_project import K0, make_lossy_project
from tests.support.version_control import clone, push, put_under_version_control

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A job in version control, with a promoted order and a trial that was measured."""
    job = edit_job(make_lossy_project(tmp_path / "p"), measure={"scorer": "contains", "looks": [5]})
    put_under_version_control(job)
    assert orderproof(job, "measure", "it")["answer"] in ("promote", "keep", "inconclusive")
    return job


def refusal(job: Job, *arguments: str) -> str:
    done = shell(job, *COMMAND, *arguments, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stderr


def clean(job: Job, *stages: str) -> bool:
    changed: dict[str, object] = json.loads(dvc(job, "status", "--json", *stages))
    return not changed


def test_a_lossy_routing_is_accepted_generated_pushed_and_reproduced(job: Job) -> None:
    accepted = edit_job(job, accept_lossy={"k0": K0})
    assert "`orderproof lossy it --k0 2`" in refusal(accepted, "generate", "it")
    edit_job(job, accept_lossy=None)

    comparison = orderproof(job, "lossy", "it", "--k0", str(K0))
    details = comparison["details"]
    assert (details["lossy"], details["promotes"], details["k0"]) == (True, False, K0)
    assert (comparison["sentence"][:5], comparison["notes"]) == ("LOSSY", [])
    assert comparison["mlflow_run"]
    assert "accept_lossy: {k0: 2}" in Reader((job.root / comparison["files"]["page"]).read_text()).text
    assert clean(job, "measure@it"), "the evidence is recorded beside the trials"
    own_run = orderproof(job, "generate", "it")
    assert own_run["basis"]["lossy_k0"] is None, "measured is not accepted"
    own = pq.read_table(job.data_dir / OUTPUTS_FILE)["token_ids"]

    edit_job(job, accept_lossy={"k0": K0})
    assert not clean(job, "generate@it"), "outputs of another routing are not those of this job"
    run = orderproof(job, "generate", "it")
    assert (run["basis"]["lossy_k0"], run["basis"]["order"]["method"], run["notes"]) == (K0, "label", [])
    assert run["mlflow_run"]
    assert pq.read_table(job.data_dir / OUTPUTS_FILE)["token_ids"] != own
    assert clean(job, "generate@it")
    trials = read_runs(job, "measure")
    dvc(job, "repro", "measure@it")
    assert clean(job, "measure@it", "generate@it")
    assert read_runs(job, "measure") == trials, "an acceptance measured the order again"

    push(job)
    there = clone(job)
    reproduction = orderproof(there, "reproduce", "it")
    assert (reproduction["answer"], reproduction["details"]["changes"]) == ("reproduced", [])
    assert reproduction["basis"]["lossy_k0"] == K0
    provenance = read_provenance(there.data_dir / OUTPUTS_FILE)
    assert provenance is not None
    assert provenance.key["lossy"] == {"k0": K0}

    demotion = orderproof(job, "demote", "it")
    assert ["accept_lossy" in note for note in demotion["notes"]] == [True], "the lossy routing stays accepted"
    assert clean(job, "measure@it"), "the demotion is recorded"
    edit_job(job, accept_lossy=None)
    assert orderproof(job, "generate", "it")["basis"]["lossy_k0"] is None
    assert pq.read_table(job.data_dir / OUTPUTS_FILE)["token_ids"] == own
