"""The schedules cover every job, and the pinned server is one that keeps them."""

from __future__ import annotations

from ruamel.yaml import YAML

from tests.conftest import ROOT
from tests.support.scheduling import deployments_of

NIGHTLY, WEEKLY = "flows/generate.py:generate_outputs", "flows/measure.py:measure_order"


def test_every_job_of_params_yaml_runs_every_night_and_is_measured_every_week() -> None:
    jobs = YAML(typ="safe", pure=True).load(ROOT / "params.yaml")["jobs"]
    entries = deployments_of(ROOT / "infra" / "prefect.yaml")
    for flow, how_often in ((NIGHTLY, "nightly"), (WEEKLY, "weekly")):
        of_this = [entry for entry in entries if entry["entrypoint"] == flow]
        assert [entry["parameters"]["job"] for entry in of_this] == list(jobs)
        assert [entry["name"] for entry in of_this] == [f"{job}-{how_often}" for job in jobs]
        assert all(entry["schedules"][0]["active"] for entry in of_this)


def test_the_pinned_sqlalchemy_is_one_with_which_prefect_schedules() -> None:
    pinned = dict(
        line.split("==") for line in (ROOT / "infra" / "locks" / "cpu.txt").read_text().split() if "==" in line
    )
    assert pinned["sqlalchemy"].startswith("2.0."), "with 2.1 the scheduler of Prefect 3.7.7 inserts no run"
