"""`orderproof capture` and `orderproof lossy` as a user runs them, in a project of their own, on real vLLM."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import Project

pytestmark = [pytest.mark.engine, pytest.mark.long]


def test_a_sample_is_captured_tabulated_and_kept_out_of_git(project: Project) -> None:
    run = project.json("capture", "six-domains", "--prompts", "48")
    table = run["details"]["table"]
    assert (run["figures"]["captured"], run["basis"]["prompts_total"], table["kind"]) == (48, 96, "label")
    assert all(row["mixed"] >= row["grouped"] for row in table["touched"] if row["grouped"])
    assert (project.root / "data" / "six-domains" / "routes.parquet").exists()
    assert (project.root / "reports" / "six-domains" / "capture" / run["id"] / "routing.png").exists()
    assert "routes.parquet" not in project.tool("git", "status", "--porcelain", "--untracked-files=all")


def test_a_dense_model_is_refused_before_an_engine_starts(project: Project) -> None:
    for command in ("capture", "lossy"):
        assert "is a dense model" in project.run(command, "dense", code=1)


def test_a_lossy_comparison_promotes_nothing(project: Project) -> None:
    kept = project.root / "data" / "six-domains"
    before = {path: path.read_bytes() for path in kept.glob("order.*")}
    compared = project.json("lossy", "six-domains", "--k0", "1")["details"]
    assert (compared["lossy"], compared["promotes"], compared["blocks"]) == (True, False, 5)
    assert all(arm["outputs"]["d_ab"] > 0.1 for arm in compared["arms"] if "lossy" in arm["arm"])
    assert {path: path.read_bytes() for path in kept.glob("order.*")} == before
