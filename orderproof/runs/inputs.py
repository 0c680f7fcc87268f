"""What a run rests on, taken before anything is spent and compared again before anything is recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orderproof.job.hashing import md5_of
from orderproof.job.model import ModelFacts, read_model
from orderproof.job.spec import Job
from orderproof.runs import dvc


@dataclass(frozen=True)
class Inputs:
    """A job's inputs as they were when its run started."""

    files: Mapping[str, str]  # md5 by path; empty: the prompts were not there
    params: Mapping[str, Any]  # the DVC parameters of the job's stages
    model: ModelFacts

    def dataset_md5(self, job: Job) -> str:
        """Of the job's prompts; empty where they were not there."""
        return self.files.get(job.prompts, "")


def take_inputs(job: Job) -> Inputs:
    """Take the hashes that `refuse_changed` compares again.

    Raises:
        ModelError: the model's folder is missing or unreadable.
    """
    model = read_model(job.model_path, job.model, job.adapters)
    if not job.prompts_path.is_file():
        return Inputs({}, {}, model)  # validation names what is missing, and nothing is recorded then
    return Inputs({job.prompts: md5_of(job.prompts_path)}, dvc.stage_params(job.root, job.name), model)


def refuse_changed(job: Job, inputs: Inputs) -> None:
    """Are prompts, model and parameters still what they were?

    Raises:
        InputsChanged: one of them is not, so nothing is recorded.
    """
    if read_model(job.model_path, job.model, job.adapters).fingerprint != inputs.model.fingerprint:
        raise dvc.InputsChanged(f"{job.model} changed during the run: nothing was recorded. Run it again")
    dvc.compare_inputs(job.root, inputs.files, inputs.params)
