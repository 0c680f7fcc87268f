"""What the flow of a trial adds to its parts: where routes are missing they come back, and a trial keeps its own."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows import measure
from orderproof.measure.trial import no_progress
from orderproof.prompts.prompt_file import read_prompts
from orderproof.prompts.tokenization import tokenize
from tests.support.captured_job import calibrated, make_job
from tests.support.fake_engine import FakeEngine

BY_ROUTES = {"method": "cluster", "signal": "predicted", "clusters": 2}


@pytest.mark.parametrize(("order", "kept"), [(BY_ROUTES, True), ({"method": "label"}, False)])
def test_a_trial_keeps_what_its_order_was_made_from_and_the_next_one_finds_it(
    tmp_path: Path, order: dict[str, Any], kept: bool
) -> None:
    job = make_job(tmp_path, captured=64, order=order)
    calibrated(job)
    prompts = tokenize(job, read_prompts(job.prompts_path))
    plan = measure.make_plan.fn(job, prompts, False)
    begun = measure.begin.fn(plan, FakeEngine(), SimpleNamespace(progress=no_progress))  # type: ignore[arg-type]
    names = ("routes.parquet", "predictor.npz", "step_costs.json")
    made = {name: (job.data_dir / name).read_bytes() for name in names}
    assert (begun.folder / "captured").exists() == kept
    if kept:
        for name in names:
            (job.data_dir / name).unlink()
        assert measure.make_plan.fn(job, prompts, False).chosen.sha256 == plan.chosen.sha256
        assert {name: (job.data_dir / name).read_bytes() for name in names} == made
