"""What stands in MLflow beside a job's trials: one run for each batch, each reproduction and each plan.

In: a run's record, and the folder of its files. Out: the id of its MLflow run. Sending it again completes what is there
and doubles nothing. Knows nothing of what the record is about.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orderproof.job.spec import Job
from orderproof.runs.mlflow_records import RunRecord
from orderproof.runs.trial_tracking import connected, dataset_input, write_run

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run


def send(
    job: Job,
    what: str,
    folder: Path,
    tag: str,
    record: RunRecord,
    dataset: tuple[str, int],
    files: Sequence[Path] | None = None,
) -> str:
    """Write a run with its files, or complete what an earlier call sent of it.

    Args:
        what: it is, in a message.
        folder: holds what is sent.
        dataset: md5 and number of prompts.
        files: sent with it, those that are there; None: <run>.json and <run>.png, where <run> is the value of the
            record's tag `tag`.

    Raises:
        TrackingError: the tracker is down or refuses.
    """
    run, (md5, prompts) = record.tags[tag], dataset
    with connected(job, f"{what} {run}", folder) as (client, experiment):
        known = runs_tagged(client, experiment, tag, run)
        used = dataset_input(job, md5, {"prompts": prompts})
        run_id = write_run(client, experiment, record, known[0] if known else None, used)
        for path in (folder / f"{run}.json", folder / f"{run}.png") if files is None else files:
            if path.exists():
                client.log_artifact(run_id, str(path))
        client.set_terminated(run_id, end_time=record.end_ms)
    return run_id


def runs_tagged(client: MlflowClient, experiment: str, tag: str, run: str) -> list[Run]:
    """What the tracker holds of a run: one or nothing."""
    return list(client.search_runs([experiment], f"tags.`{tag}` = '{run}'", max_results=1))
