"""The served model, as far as a signal or an order needs it: folders, files and limits. Opens no file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from orderproof.job.spec import Job

ROUTES_FILE = "routes.parquet"
COSTS_FILE = "step_costs.json"  # of the same capture
TEXT_SIGNALS = ("embedding", "lexical")  # need nothing of the served model


@dataclass(frozen=True)
class ServedModel:
    """The model that will answer the prompts. None: not known, and a signal that needs it raises a SignalError."""

    model: Path | None = None  # folder of the checkpoint
    tokenizer: Path | None = None  # folder; None: the model's
    routes: Path | None = None  # file of captured routes; the predictor that is fitted on them lies beside it
    batch: int | None = None  # sequences that run at once; each sample of a prompt is a sequence
    samples: int = 1  # of a prompt whose own sampling does not say how many
    batched_tokens: int | None = None  # that a step computes at most

    @classmethod
    def of_job(cls, job: Job) -> ServedModel:
        """The model that a job names."""
        return cls(
            job.model_path,
            job.tokenizer_path,
            job.data_dir / ROUTES_FILE,
            job.engine.max_num_seqs,
            job.sampling.get("n") or 1,
            job.engine.max_num_batched_tokens,
        )


UNKNOWN_MODEL = ServedModel()
