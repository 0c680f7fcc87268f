"""Keeps a run, whatever its verb: record, pictures and page in its folder, then MLflow, then DVC and git.

The evidence is on disk before any of this begins, so each step may fail on its own: a failure becomes a note that says
what to do.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from orderproof.job.errors import OrderproofError
from orderproof.job.files import write_atomically
from orderproof.job.hashing import md5_of
from orderproof.job.paths import project_of_copy
from orderproof.job.spec import UNMEASURED_KEYS, Job
from orderproof.runs import dvc, ledger, publish
from orderproof.runs.inputs import Inputs, refuse_other_prompts
from orderproof.runs.ledger_picture import LEDGER_PICTURE, draw_ledger
from orderproof.runs.mlflow_run import Tracking, send_run
from orderproof.runs.page import run_page
from orderproof.runs.promotion import ORDER_FILE
from orderproof.runs.run import Run
from orderproof.runs.run_store import RECORD_FILE, read_run, run_folder, write_run
from orderproof.runs.sent import mark_sent, sent_as

PAGE_FILE = "page.html"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Presentation:
    """What a verb adds to its runs' records."""

    draw: Callable[[Path], None] | None = None  # writes pictures, *.png, into the run's folder
    page: Callable[[Run, Path], str] = run_page  # the run's page as HTML, from its record and its folder
    tracking: Callable[[Run], Tracking] = lambda _: Tracking()


def with_origin(job: Job, run: Run, prefect_run: str | None) -> Run:
    """The run with where it came from: the Prefect run and the commit that the project is at.

    A run that is on record already keeps what its record says: reusing its verdict changes nothing.
    """
    path = run_folder(job, run.verb, run.id) / RECORD_FILE
    origin = {"prefect_run": prefect_run, "dvc_revision": git_revision(job.root)}
    if path.exists():
        first = read_run(path)
        origin = {"prefect_run": first.prefect_run, "dvc_revision": first.dvc_revision}
    return run.model_copy(update=origin)


def keep(job: Job, run: Run, presentation: Presentation) -> Run:
    """Write a run's record, its pictures and page, and send it to MLflow. Doing it again changes nothing.

    Returns:
        The run, with notes on what did not work.

    Raises:
        RunError: the record cannot be written.
    """
    folder = write_run(job, run)
    notes: list[str] = []
    if presentation.draw:
        with collect_warnings(notes, "pictures are missing"):
            presentation.draw(folder)
    with collect_warnings(notes, "the page is missing"):
        write_atomically(folder / PAGE_FILE, presentation.page(run, folder))
        run = run.with_files(page=str((folder / PAGE_FILE).relative_to(job.root)))
        write_run(job, run)
    with collect_warnings(notes, "the ledger lacks this run"):
        ledger.add(job, run)
        if ledger.shows_something_new(run):
            draw_ledger(job, folder.parents[1] / LEDGER_PICTURE)
    with collect_warnings(notes, f"MLflow does not have all runs yet: `orderproof log {job.name}`"):
        run = send(job, run, presentation)
    return run.with_notes(*notes)


def send(job: Job, run: Run, presentation: Presentation) -> Run:
    """Send a run to MLflow, and mark it as sent.

    Raises:
        TrackingError: the tracker is down or refuses.
    """
    held = sent_as(job, run) or send_run(job, run, presentation.tracking(run))
    mark_sent(job, run, held)
    return run.model_copy(update={"mlflow_run": held})


def record(job: Job, run: Run, inputs: Inputs, outputs: Mapping[str, str] | None = None) -> Run:
    """Record a run's outputs in DVC, and publish them as far as the job asks for it.

    Args:
        inputs: what they rest on, as it was when the run started.
        outputs: md5 by path of further files that they rest on.

    Returns:
        The run, with notes on what did not work. Inputs that changed during the run are never recorded.
    """
    stage, order = dvc.stage_of(job.name, run.verb), job.data_dir / ORDER_FILE
    rests_on = {**inputs.files, **(outputs or {})}
    if run.verb != "measure" and order.exists():
        rests_on[str(order.relative_to(job.root))] = md5_of(order)
    try:
        refuse_other_prompts(job, inputs)
        recorded = dvc.record_in_dvc(job.root, stage, rests_on, inputs.params)
    except dvc.InputsChanged as error:
        return run.with_notes(f"not recorded in DVC: {error}")
    except dvc.DvcError as error:
        return run.with_notes(f"not recorded in DVC: {error}. When that is fixed: `dvc commit --force {stage}`")
    if project_of_copy(job.root):
        name = os.environ.get("DVC_EXP_NAME", "NAME")
        run = run.with_notes(f"this ran in DVC's temporary copy: `dvc exp apply {name}` brings its files here")
    return run.with_notes(*_publish(job, recorded, run.sentence))


def record_again(job: Job, message: str) -> list[str]:
    """Record files that changed beside a measurement, such as a demoted order. Returns what to know of it."""
    stage = dvc.stage_of(job.name)
    try:
        return _publish(job, dvc.record_again(job.root, stage, UNMEASURED_KEYS), message)
    except dvc.DvcError as error:
        return [f"not recorded in DVC: {error}. When that is fixed: `dvc commit --force {stage}`"]


@contextlib.contextmanager
def collect_warnings(notes: list[str], what: str) -> Iterator[None]:
    """Turn whatever fails in the block into a note, because what is to be recorded waits behind it."""
    try:
        yield
    except OrderproofError as error:
        notes.append(str(error))
    except Exception as error:
        _log.debug("%s", what, exc_info=True)
        notes.append(f"{what} ({type(error).__name__}: {error})")


def git_revision(root: Path) -> str | None:
    """The commit that the project is at; None outside of git, or where git is not installed."""
    try:
        return dvc.run_tool(root, "git", ["git"], ["rev-parse", "HEAD"]).strip()
    except dvc.DvcError:
        return None


def _publish(job: Job, recorded: dvc.Recorded, message: str) -> list[str]:
    """As far as the job asks for it: git and the remotes."""
    if not recorded.recorded:  # inside a stage that is as it should be: DVC records it when the command has ended
        return [] if dvc.inside_a_stage() else [f"not recorded in DVC: {recorded.why}"]
    try:
        book = str((job.data_dir / ledger.FILE).relative_to(job.root))
        return list(publish.publish(job.root, recorded.stage, job.reporting.publish, message, [book]).notes)
    except dvc.DvcError as error:
        return [f"not published: {error}"]
