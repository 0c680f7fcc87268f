"""Where the files of a job are: what a run leaves in data/<job>, its evidence in reports/<job>/<verb>/<id>."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Verb = Literal["measure", "aa", "generate", "reproduce", "capture", "plan", "lossy"]  # what leaves a run's record

ORDER_FILE, ORDER_RECORD_FILE = "order.parquet", "order.json"
OUTPUTS_FILE, OUTPUTS_BATCH_FILE = "outputs.parquet", "outputs.jsonl"
STREAMED_FILE = "streamed.jsonl"
REPRODUCED_FILE = "reproduced.parquet"
ROUTES_FILE, PREDICTOR_FILE, STEP_COSTS_FILE = "routes.parquet", "predictor.npz", "step_costs.json"


STATE_FOLDER = ".orderproof"
EXPERIMENTS = (".dvc", "tmp", "exps")


def state_dir(root: Path) -> Path:
    """Where a project keeps what may be deleted: .orderproof in its folder, or in that of which it is DVC's copy."""
    return (project_of_copy(root) or root) / STATE_FOLDER


def project_of_copy(root: Path) -> Path | None:
    """The project of which `dvc exp run --temp` or `--queue` made this copy, soon to be deleted; None: it is none."""
    place = root.resolve()
    for folder in place.parents:
        if folder.parts[-3:] == EXPERIMENTS:
            project, inside = folder.parents[2], place.relative_to(folder).parts
            below = project.joinpath(*inside[2 if inside[0] == "standalone" else 1 :])
            return below if below.is_dir() else project
    return None


@dataclass(frozen=True)
class JobPaths:
    """The paths of one job under the folder of its params.yaml. None of them needs to exist."""

    root: Path
    job: str

    @property
    def data_dir(self) -> Path:
        """data/<job>: the chosen order, the outputs, the captured routes."""
        return self.root / "data" / self.job

    @property
    def order(self) -> Path:
        """The chosen order: `position`, `prompt_id`."""
        return self.data_dir / ORDER_FILE

    @property
    def order_record(self) -> Path:
        """Provenance of the chosen order, and the trial that promoted it."""
        return self.data_dir / ORDER_RECORD_FILE

    @property
    def outputs(self) -> Path:
        """One row per prompt and sample, in the order of the prompts file."""
        return self.data_dir / OUTPUTS_FILE

    @property
    def outputs_batch(self) -> Path:
        """The same outputs as lines of OpenAI's batch format, where the prompts came in it."""
        return self.data_dir / OUTPUTS_BATCH_FILE

    @property
    def checkpoint(self) -> Path:
        """Folder of a generation that has not ended yet."""
        return self.data_dir / "outputs.partial"

    @property
    def streamed_prompts(self) -> Path:
        """The prompts of `outputs`, where they came from a stream."""
        return self.data_dir / STREAMED_FILE

    @property
    def reproduced(self) -> Path:
        """Outputs of the last reproduction, like `outputs`."""
        return self.data_dir / REPRODUCED_FILE

    @property
    def reproduction_checkpoint(self) -> Path:
        """Folder of a reproduction that has not ended yet."""
        return self.data_dir / "reproduced.partial"

    @property
    def generation_lock(self) -> Path:
        """Held by the run that generates."""
        return self.data_dir / ".outputs.lock"

    @property
    def reproduction_lock(self) -> Path:
        """Held by the run that reproduces."""
        return self.data_dir / ".reproduced.lock"

    @property
    def routes(self) -> Path:
        """Captured routes: which experts each token chose."""
        return self.data_dir / ROUTES_FILE

    @property
    def predictor(self) -> Path:
        """Weights that predict routes from embeddings, fitted on `routes`."""
        return self.data_dir / PREDICTOR_FILE

    @property
    def step_costs(self) -> Path:
        """What an engine step costs, measured by the same capture as `routes`."""
        return self.data_dir / STEP_COSTS_FILE

    @property
    def reports_dir(self) -> Path:
        """reports/<job>: the records and evidence of all runs."""
        return self.root / "reports" / self.job

    @property
    def validation_dir(self) -> Path:
        """The newest findings about prompts and outputs."""
        return self.reports_dir / "validation"

    def verb_dir(self, verb: Verb) -> Path:
        """The runs of one verb, a folder each; their names sort by time."""
        return self.reports_dir / verb

    def run_dir(self, verb: Verb, run: str) -> Path:
        """The record and evidence of one run."""
        return self.verb_dir(verb) / run

    def engine_log(self, verb: Verb) -> Path:
        """What the engine wrote in the last run of a verb; may be deleted."""
        return self.root / ".orderproof" / "logs" / f"{self.job}-{verb}.log"
