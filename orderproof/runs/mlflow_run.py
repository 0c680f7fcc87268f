"""A run sent to MLflow: one MLflow run, with children where the verb has them.

Sending a run again completes what is there (tag `orderproof.run`) and doubles nothing. MLflow runs are written under
explicit ids, because MLflow's active runs belong to a thread.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orderproof.job.hashing import canonical_json
from orderproof.job.paths import Verb
from orderproof.job.spec import Job
from orderproof.runs.mlflow_client import TrackingError, connected
from orderproof.runs.run import Run
from orderproof.runs.run_store import run_folder

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput
    from mlflow.entities import Run as MlflowEntity

RUN_TAG, CHILD_TAG = "orderproof.run", "orderproof.child"
ORIGIN = {"prefect_run", "dvc_revision"}  # tags that keep their first value, however often a run is sent
LONGEST_PARAMETER_CHARS = 500  # MLflow cuts silently at 6,000 and shows far less


@dataclass(frozen=True)
class Child:
    """One child run: a timed part of a run that the comparison page can compare with its siblings."""

    key: str  # unique within the run
    name: str
    start_ms: int  # since the epoch
    end_ms: int
    tags: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    series: Mapping[str, Sequence[float]] = field(default_factory=dict)  # equal parts of it, at most 100


@dataclass(frozen=True)
class Tracking:
    """What a verb adds to what MLflow holds of each of its runs."""

    name: str = ""  # of the MLflow run; empty: verb, job and time
    tags: Mapping[str, str | None] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    series: Mapping[str, Sequence[float]] = field(default_factory=dict)
    children: Sequence[Child] = ()
    files: Sequence[Path] = ()  # beside run.json, the page and the pictures
    text_folder: Path | None = None  # generated text: sent only where the job allows it (`log_text`)


def send_run(job: Job, run: Run, tracking: Tracking) -> str:
    """Send a run to the tracker, or complete what an earlier call sent of it.

    Returns:
        The id of the MLflow run.

    Raises:
        TrackingError: the tracker is down or refuses. The record stays on disk.
    """
    folder = run_folder(job, run.verb, run.id)
    with connected(job, f"{run.verb} {run.id}", folder) as (client, experiment):
        known = _known_runs(client, experiment, run)
        dataset = _dataset_input(job, run)
        parent_id = _write(client, experiment, _parent(job, run, tracking), known.get(""), dataset)
        for child in tracking.children:
            owned = {"mlflow.parentRunId": parent_id, RUN_TAG: _tag(run), CHILD_TAG: child.key, **child.tags}
            written = Child(**{**vars(child), "tags": owned})
            child_id = _write(client, experiment, written, known.get(child.key), dataset)
            client.set_terminated(child_id, end_time=child.end_ms)
        _send_files(client, parent_id, job, folder, tracking)
        # Last: a run that still "runs" in MLflow was not sent completely.
        client.set_terminated(parent_id, end_time=epoch_ms(run.ended_utc))
        return parent_id


def begin_run(client: MlflowClient, experiment: str, verb: str, run_id: str, job: str, started: datetime) -> str:
    """Create the MLflow run of a run that is at work; `send_run` completes it. Returns its id."""
    name = _name(verb, job, started)
    begun = client.create_run(experiment, round(started.timestamp() * 1000), {RUN_TAG: f"{verb}/{run_id}"}, name)
    return str(begun.info.run_id)


@contextlib.contextmanager
def mark_failed_on_error(job: Job, verb: Verb, run_id: str) -> Iterator[None]:
    """End the MLflow run of a run that fails in the block, since no record will complete it."""
    try:
        yield
    except Exception:
        folder = run_folder(job, verb, run_id)
        with contextlib.suppress(TrackingError), connected(job, f"the end of {verb} {run_id}", folder) as connection:
            client, experiment = connection
            for entity in find_runs(client, experiment, verb, run_id):
                client.set_terminated(entity.info.run_id, "FAILED")
        raise


def find_runs(client: MlflowClient, experiment: str, verb: str, run_id: str) -> list[MlflowEntity]:
    """What the tracker holds of a run: one or nothing; children are left out."""
    query = f"tags.`{RUN_TAG}` = '{verb}/{run_id}'"
    held = client.search_runs([experiment], query, max_results=5000)
    return [entity for entity in held if CHILD_TAG not in entity.data.tags][:1]


def shortened(value: str, artifact: str) -> str:
    """A parameter's value, or where a long one can be read completely."""
    return value if len(value) <= LONGEST_PARAMETER_CHARS else f"long: see the artifact {artifact}"


def epoch_ms(utc: str) -> int:
    """ISO 8601 → milliseconds since the epoch, as MLflow has times."""
    return int(datetime.fromisoformat(utc).timestamp() * 1000)


def _parent(job: Job, run: Run, tracking: Tracking) -> Child:
    basis = run.basis
    tags = {
        RUN_TAG: _tag(run),
        "verb": run.verb,
        "answer": run.answer,
        "dataset_md5": basis.dataset_md5,
        "model": basis.model,
        "model_fingerprint": basis.model_fingerprint,
        "order_sha256": basis.order.sha256 if basis.order else None,
        "lossy": None if basis.lossy_k0 is None else f"k0 = {basis.lossy_k0}",
        "toy": "yes" if basis.toy else "no",
        "versions": ", ".join(f"{name} {version}" for name, version in sorted(basis.versions.items())),
        "prefect_run": run.prefect_run,
        "dvc_revision": run.dvc_revision,
        "mlflow.note.content": " ".join(text for text in (run.sentence, run.reason) if text),
        **tracking.tags,
    }
    params = {
        "order": basis.order.method if basis.order else None,
        "order.parameters": canonical_json(basis.order.parameters) if basis.order else None,
        "order.reason": basis.order_reason or None,
        "engine.args": canonical_json(basis.engine.get("args", {})),
        "sampling": canonical_json(basis.sampling),
        **tracking.params,
    }
    metrics = {name: value for figure in run.figures for name, value in figure.flat().items()}
    return Child(
        key="",
        name=tracking.name or _name(run.verb, run.job, datetime.fromisoformat(run.started_utc)),
        start_ms=epoch_ms(run.started_utc),
        end_ms=epoch_ms(run.ended_utc),
        tags={key: value for key, value in tags.items() if value is not None},
        params={key: shortened(str(value), "run.json") for key, value in params.items() if value is not None},
        metrics=metrics,
        series=tracking.series,
    )


def _name(verb: str, job: str, started: datetime) -> str:
    return f"{verb} · {job} · {started:%Y-%m-%d %H:%M}"


def _tag(run: Run) -> str:
    return f"{run.verb}/{run.id}"


def _write(
    client: MlflowClient, experiment: str, wanted: Child, known: MlflowEntity | None, dataset: DatasetInput | None
) -> str:
    """Create an MLflow run, or complete a known one; what it holds already is not sent again."""
    from mlflow.entities import Metric, Param, RunTag

    entity = known or client.create_run(experiment, wanted.start_ms, dict(wanted.tags), wanted.name)
    run_id, held = str(entity.info.run_id), entity.data
    if dataset and not (entity.inputs and entity.inputs.dataset_inputs):
        client.log_inputs(run_id, [dataset])
    now_ms = time.time_ns() // 10**6  # a figure that changed since (a price) must be the newest
    figures = {key: float(value) for key, value in wanted.metrics.items() if value is not None}
    metrics = [Metric(key, value, now_ms, 0) for key, value in figures.items() if held.metrics.get(key) != value]
    for key, series in wanted.series.items():
        if key not in held.metrics:  # a step is a percentage of the run, so that runs can be laid over each other
            metrics += [Metric(key, value, wanted.end_ms, 100 * i // len(series)) for i, value in enumerate(series)]
    params = [Param(key, value) for key, value in wanted.params.items() if key not in held.params]
    first = ORIGIN & held.tags.keys()
    tags = [
        RunTag(key, value) for key, value in wanted.tags.items() if held.tags.get(key) != value and key not in first
    ]
    if metrics or params or tags:
        client.log_batch(run_id, metrics, params, tags)
    return run_id


def _known_runs(client: MlflowClient, experiment: str, run: Run) -> dict[str, MlflowEntity]:
    """What an earlier call sent of this run: the parent under "", children under their keys."""
    held = client.search_runs([experiment], f"tags.`{RUN_TAG}` = '{_tag(run)}'", max_results=5000)
    return {str(entity.data.tags.get(CHILD_TAG, "")): entity for entity in held}


def _send_files(client: MlflowClient, run_id: str, job: Job, folder: Path, tracking: Tracking) -> None:
    """The record, its page and pictures; what was generated only where the job lets its text be shown."""
    common = [folder / "run.json", *sorted(folder.glob("*.html")), *sorted(folder.glob("*.png"))]
    for path in [*common, *tracking.files]:
        if path.exists():
            client.log_artifact(run_id, str(path))
    if job.reporting.log_text and tracking.text_folder and tracking.text_folder.exists():
        client.log_artifacts(run_id, str(tracking.text_folder), tracking.text_folder.name)


def _dataset_input(job: Job, run: Run) -> DatasetInput | None:
    """The job's prompts as MLflow's dataset; None where their hash is unknown."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    if run.basis.dataset_md5 is None:
        return None
    dataset = Dataset(
        name=run.basis.prompts,
        digest=run.basis.dataset_md5,  # 32 characters; MLflow keeps 36
        source_type="local",
        source=canonical_json({"uri": run.basis.prompts}),
        profile=canonical_json({"prompts": run.basis.prompts_total}),
    )
    return DatasetInput(dataset, [InputTag("mlflow.data.context", run.verb)])
