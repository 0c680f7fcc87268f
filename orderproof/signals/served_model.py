"""The served model, as far as a signal or an order may need it.

In: folders and files. Out: a frozen value that says where they are. Opens nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from orderproof.job.spec import Job

ROUTES_FILE = "routes.parquet"
COSTS_FILE = "step_costs.json"  # of the same capture
OF_TEXT_ALONE = ("embedding", "lexical")  # signals that need nothing of the served model


@dataclass(frozen=True)
class Served:
    """What will answer the prompts. None: not known here, so that a signal which needs it says so."""

    model: Path | None = None  # folder of the checkpoint
    tokenizer: Path | None = None  # folder; None: the model's
    routes: Path | None = None  # file of captured routes; the predictor fitted on them lies beside it
    batch: int | None = None  # sequences that run at once: each sample of a prompt is one
    samples: int = 1  # of a prompt that does not say itself how many
    batched_tokens: int | None = None  # that a step computes at most

    @classmethod
    def by(cls, job: Job) -> Served:
        """The model that a job names."""
        return cls(
            job.model_path,
            job.tokenizer_path,
            job.data_dir / ROUTES_FILE,
            job.engine.max_num_seqs,
            job.sampling.get("n") or 1,
            job.engine.max_num_batched_tokens,
        )


UNKNOWN = Served()
