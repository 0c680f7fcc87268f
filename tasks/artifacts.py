"""What Prefect's pages show of a run: its figures and its page. An artifact that Prefect does not take is left out."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from prefect.artifacts import create_link_artifact, create_markdown_artifact
from prefect.runtime import flow_run

from orderproof.job.spec import Job
from orderproof.runs.run import Run
from orderproof.runs.text import markdown, page_uri

logger = logging.getLogger("orderproof.artifacts")


def prefect_run() -> str | None:
    """The Prefect flow run that this code is part of."""
    return str(flow_run.id) if flow_run.id else None


def artifact_key(kind: str, job: str) -> str:
    """Prefect's keys have a-z, 0-9 and dashes only."""
    return f"{kind}-{job.replace('_', '-').replace('.', '-')}".lower()


@contextlib.contextmanager
def best_effort(what: str, level: int = logging.WARNING) -> Iterator[None]:
    """Around an artifact: whatever Prefect answers, the work goes on without it."""
    try:
        yield
    except Exception as error:
        logger.log(level, "Prefect did not take %s: %s: %s", what, type(error).__name__, error)


def publish_run(job: Job, run: Run) -> Run:
    """The run's sentence, figures and notes as an artifact, and the link to its page. Returns the run."""
    with best_effort("the run's figures"):
        create_markdown_artifact(markdown(job, run), key=artifact_key(run.verb, job.name), description=run.sentence)
    if uri := page_uri(job, run):
        with best_effort("the link to the page"):
            key = artifact_key(f"{run.verb}-page", job.name)
            create_link_artifact(uri, key=key, link_text="page with pictures", description=run.sentence)
    return run
