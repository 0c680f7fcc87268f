"""The flow of a lossy comparison, before its engine starts."""

from __future__ import annotations

from pathlib import Path

from flows.lossy import choose_order
from orderproof.job.hashing import md5_of
from orderproof.prompts.prompt_file import read_prompts
from orderproof.prompts.tokenization import tokenize
from orderproof.runs.route_artifacts import FOLDER
from orderproof.signals.served_model import ROUTES_FILE
from tests.support.captured_job import make_job


def test_an_order_by_routes_is_made_on_a_clone_that_has_them_with_its_trial_alone(tmp_path: Path) -> None:
    job = make_job(tmp_path, captured=40, order={"method": "cluster", "signal": "observed", "clusters": 2})
    kept = job.reports_dir / "20261129T144640Z-3f9a" / FOLDER
    kept.mkdir(parents=True)
    for name in (ROUTES_FILE, "predictor.npz"):
        (job.data_dir / name).rename(kept / name)
    prompts = tokenize(job, read_prompts(job.prompts_path))
    assert choose_order.fn(job, prompts, md5_of(job.prompts_path)).method == "cluster"
