"""A run in words, for a terminal and for Prefect's artifact."""

from __future__ import annotations

from pathlib import Path

from orderproof.job.spec import Job
from orderproof.runs.mlflow_client import where_to_see
from orderproof.runs.run import Run


def terminal_lines(job: Job, run: Run) -> list[str]:
    """The run for a person, the answer first and the next command last."""
    lines = [run.sentence, *([run.reason] if run.reason else []), *run.lines]
    lines += [f"{name}: {job.root / path}" for name, path in run.files.items() if name in ("page", "outputs")]
    if run.mlflow_run:
        lines.append(f"MLflow: {where_to_see(job, run.mlflow_run)}")
    lines += [f"note: {note}" for note in run.notes]
    return [*lines, *([f"next: {run.next_command}"] if run.next_command else [])]


def markdown(job: Job, run: Run) -> str:
    """The run for Prefect's pages: the sentence, a table of its figures, notes."""
    figures = [(name, value) for figure in run.figures for name, value in figure.flat().items() if value is not None]
    rows = "\n".join(f"| {name} | {value:.6g} |" for name, value in figures)
    items = [*run.lines, *run.notes]
    if run.mlflow_run:
        items.append(f"MLflow: {where_to_see(job, run.mlflow_run)}")
    listed = "".join(f"\n- {item}" for item in items)
    return f"# {run.sentence}\n\n{run.reason}\n\n| figure | value |\n|---|---|\n{rows}\n{listed}\n"


def page_uri(job: Job, run: Run) -> str | None:
    """Where a browser finds the run's page; None: it has none."""
    path = run.files.get("page")
    return Path(job.root, path).resolve().as_uri() if path else None
