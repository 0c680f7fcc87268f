"""A trial's passes replayed over captured routes; the trial is synthetic, and six prompts in turn are of six groups."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from orderproof.job.spec import Job
from orderproof.measure.pass_expert_counts import experts_per_step
from orderproof.measure.tracking import tracking_of
from orderproof.measure.trial_store import Trial
from orderproof.outputs.passes import CANDIDATE, CONTROL
from orderproof.routing.routes import RoutesRecord
from orderproof.routing.routes_writer import write_routes
from tests.support.run_maker import make_job_run
from tests.support.trial_maker import DATASET_MD5, LABELS, MAX_NUM_SEQS, make_job, make_trial, trial_folder

RECORD = RoutesRecord(model="5f0c2a9e71d4b836", dataset_md5=DATASET_MD5, layers=2, experts=64, top_k=4)
GROUP_EXPERTS = 8


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return make_job(tmp_path)


@pytest.fixture
def trial(job: Job) -> Trial:
    return make_trial(trial_folder(job, "20261129T144640Z-0001"), blocks=5)


def capture(job: Job, trial: Trial, keep: slice = slice(None), record: RoutesRecord = RECORD) -> None:
    """Every group of prompts has eight experts of its own."""
    candidate = next(timed for timed in trial.passes if timed.arm == CANDIDATE)
    sent = list(dict.fromkeys(trial.tokens(candidate.pass_id)["prompt_id"].to_pylist()))  # group after group
    random = np.random.default_rng(0)
    with write_routes(job.paths.routes, record) as writer:
        for place, prompt_id in list(enumerate(sent))[keep]:
            group = place * len(LABELS) // len(sent)
            own = np.argsort(random.random((30, 2, GROUP_EXPERTS)))[..., :4] + GROUP_EXPERTS * group
            writer.add(prompt_id, 15, own)


def means(trial: Trial, figures: dict[str, float]) -> dict[str, float]:
    arms = {timed.pass_id: timed.arm for timed in trial.passes if timed.block}
    return {arm: float(np.mean([figures[k] for k, a in arms.items() if a == arm])) for arm in (CONTROL, CANDIDATE)}


@pytest.mark.parametrize("keep", [slice(None), slice(0, None, 2)])
def test_the_arm_that_keeps_groups_together_reads_fewer_experts(job: Job, trial: Trial, keep: slice) -> None:
    capture(job, trial, keep)
    figures = dict(experts_per_step(job, trial))
    assert set(figures) == {timed.pass_id for timed in trial.passes}
    mean = means(trial, figures)
    assert mean[CANDIDATE] < 2.1 * GROUP_EXPERTS, "a batch of eight is of one group, or of two at a border"
    assert mean[CONTROL] > 1.5 * mean[CANDIDATE]
    assert len({figures[timed.pass_id] for timed in trial.passes if timed.arm == CANDIDATE}) == 1


def test_each_sample_of_a_prompt_takes_a_place_of_the_batch(job: Job) -> None:
    """With as many samples as places a step has one prompt, and so one group's experts."""
    trial = make_trial(trial_folder(job, "20261129T144640Z-0002"), blocks=5, samples=MAX_NUM_SEQS)
    capture(job, trial)
    assert max(experts_per_step(job, trial).values()) < 1.5 * GROUP_EXPERTS


def test_each_replica_has_its_share_of_the_order(job: Job, trial: Trial) -> None:
    capture(job, trial)
    engine = {**trial.manifest.engine, "replicas": 12}
    shared = make_trial(trial_folder(job, "20261129T144640Z-0002"), blocks=5, engine=engine)
    alone, each = (means(one, dict(experts_per_step(job, one))) for one in (trial, shared))
    assert each[CONTROL] < 0.8 * alone[CONTROL], "four prompts of any group run at once on each"


def test_the_figure_is_a_metric_of_each_pass(job: Job, trial: Trial) -> None:
    capture(job, trial)
    figures = experts_per_step(job, trial)
    children = tracking_of(job, make_job_run(job, trial.manifest.trial, "measure")).children
    assert {child.key: child.metrics["experts_per_step"] for child in children} == figures


def test_without_routes_there_is_no_figure(job: Job, trial: Trial) -> None:
    assert experts_per_step(job, trial) == {}
    children = tracking_of(job, make_job_run(job, trial.manifest.trial, "measure")).children
    assert {child.metrics["experts_per_step"] for child in children} == {None}


@pytest.mark.parametrize("change", [{"model": "another"}, {"dataset_md5": "another"}])
def test_routes_of_another_model_or_of_other_prompts_give_none(job: Job, trial: Trial, change: dict[str, str]) -> None:
    capture(job, trial, record=RECORD.model_copy(update=change))
    assert experts_per_step(job, trial) == {}


def test_routes_that_cannot_be_read_leave_the_figure_out_and_say_so(
    job: Job, trial: Trial, caplog: pytest.LogCaptureFixture
) -> None:
    job.paths.routes.parent.mkdir(parents=True)
    job.paths.routes.write_bytes(b"PAR1 cut off")
    assert experts_per_step(job, trial) == {}
    assert "cannot be read as routes" in caplog.text
