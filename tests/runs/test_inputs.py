"""What a run rests on is taken before it, and compared again before anything is recorded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from orderproof.job.spec import Job
from orderproof.runs.dvc import InputsChanged
from orderproof.runs.inputs import refuse_changed, take_inputs
from tests.support.measured_job import edit_model, edit_params, edit_prompts, make_measured_job


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return make_measured_job(tmp_path).job


def test_inputs_that_are_what_they_were_pass(job: Job) -> None:
    inputs = take_inputs(job)
    assert len(inputs.dataset_md5(job)) == 32
    refuse_changed(job, inputs)
    (job.root / "params.yaml").write_text("# a comment\n" + (job.root / "params.yaml").read_text())
    refuse_changed(job, inputs)


@pytest.mark.parametrize("edit", [edit_params, edit_prompts, edit_model])
def test_an_input_that_changed_is_refused(job: Job, edit: Callable[[Job], None]) -> None:
    inputs = take_inputs(job)
    edit(job)
    with pytest.raises(InputsChanged):
        refuse_changed(job, inputs)


def test_prompts_that_are_not_there_have_no_hash_and_refuse_nothing(job: Job) -> None:
    job.prompts_path.unlink()
    inputs = take_inputs(job)
    assert inputs.dataset_md5(job) == ""
    refuse_changed(job, inputs)
