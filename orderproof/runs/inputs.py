"""What a run rests on, taken before anything is spent and compared again before anything is recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orderproof.job.hashing import md5_of
from orderproof.job.model import ModelFacts, read_model
from orderproof.job.spec import Job
from orderproof.prompts.prompt import PromptError
from orderproof.prompts.prompt_files import combined_md5, find_files
from orderproof.runs import dvc


@dataclass(frozen=True)
class Inputs:
    """A job's inputs as they were when its run started."""

    files: Mapping[str, str]  # md5 by path of the prompts that are here; empty: there were none
    params: Mapping[str, Any]  # the DVC parameters of the job's stages
    model: ModelFacts
    dataset: str = ""  # one hash of all prompts; empty: that of the only file

    def dataset_md5(self, job: Job) -> str:
        """Of the job's prompts; empty where they were not there."""
        return self.dataset or next(iter(self.files.values()), "")


def take_inputs(job: Job) -> Inputs:
    """Take the hashes that `refuse_changed` compares again.

    Raises:
        ModelError: the model's folder is missing or unreadable.
    """
    model = read_model(job.model_path, job.model, job.adapters)
    try:
        found = find_files(job)
    except PromptError:
        return Inputs({}, {}, model)  # validation names what is missing, and nothing is recorded then
    md5s = {file: md5_of(file) for file in found.files}
    here = {_from_root(job, file): md5 for file, md5 in md5s.items() if not job.has_remote_prompts}
    dataset = combined_md5([md5s[file] for file in found.files])
    return Inputs(here, dvc.stage_params(job.root, job.name), model, dataset)


def refuse_changed(job: Job, inputs: Inputs) -> None:
    """Are prompts, model and parameters still what they were?

    Raises:
        InputsChanged: one of them is not, so nothing is recorded.
    """
    if read_model(job.model_path, job.model, job.adapters).fingerprint != inputs.model.fingerprint:
        raise dvc.InputsChanged(f"{job.model} changed during the run: nothing was recorded. Run it again")
    refuse_other_prompts(job, inputs)
    dvc.compare_inputs(job.root, inputs.files, inputs.params)


def refuse_other_prompts(job: Job, inputs: Inputs) -> None:
    """Where prompts are not a single file here: are the same ones there? (Of a single file DVC compares the hash.)

    Raises:
        InputsChanged: they are not, or cannot be read any more.
    """
    if not inputs.dataset or list(inputs.files.values()) == [inputs.dataset]:
        return
    try:
        now = find_files(job).md5()
    except (PromptError, OSError) as error:
        raise dvc.InputsChanged(f"{job.prompts_name} can no longer be read ({error}). Nothing was recorded") from None
    if now != inputs.dataset:
        raise dvc.InputsChanged(f"{job.prompts_name} changed during the run: nothing was recorded. Run it again")


def _from_root(job: Job, file: Path) -> str:
    return str(file.relative_to(job.root) if file.is_relative_to(job.root) else file)
