"""The served model, as far as a signal or an order needs it: folders, files and limits. It reads no file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from orderproof.job.spec import Job

ROUTES_FILE = "routes.parquet"
PREDICTOR_FILE = "predictor.npz"  # fitted on these routes
COSTS_FILE = "step_costs.json"  # of the same capture
TEXT_SIGNALS = ("embedding", "lexical")  # need nothing of the served model


@dataclass(frozen=True)
class ServedModel:
    """The model that will answer the prompts. None: not known, and a signal that needs it raises a SignalError."""

    model: Path | None = None  # folder of the checkpoint
    tokenizer: Path | None = None  # folder; None: the model's
    routes: Path | None = None  # file of captured routes; the predictor lies beside it
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

    def capture_version(self) -> tuple[tuple[int, int, int] | None, ...]:
        """Changes when the captured routes or their predictor are replaced, for the keys of caches."""
        if self.routes is None:
            return ()
        return _version(self.routes), _version(predictor_path(self.routes))


def predictor_path(routes: Path) -> Path:
    """Beside the routes on which it is fitted."""
    return routes.with_name(PREDICTOR_FILE)


def _version(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


UNKNOWN_MODEL = ServedModel()
