"""data/<job>/ledger.csv: a line for each trial and each generation of a job, with what it took and what came of it.

It is text for git, DVC's plots and spreadsheets, and the only source of what measuring cost and an order saved.
"""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from orderproof.job.errors import OrderproofError
from orderproof.job.spec import Job
from orderproof.runs.run import Frozen, Run

FILE = "ledger.csv"


class LedgerError(OrderproofError):
    """A ledger that cannot be read or written."""


class Entry(Frozen):
    """One line. Gains are fractions, absent things empty."""

    verb: Literal["measure", "aa", "generate"]
    run: str  # id
    ended_utc: str
    answer: str  # a verdict, or `complete`
    question: str = ""  # of a trial: sha256 of data, model, engine, sampling and candidate
    attempt: int | None = None  # at that question, from 1
    alpha: float | None = None  # that the trial could spend, halved by earlier attempts
    blocks: int | None = None
    trial: str = ""  # of a generation: the one that promoted its order; empty: none did
    gain: float | None = None  # measured by the trial, or by the one that promoted the generation's order
    gain_low: float | None = None  # of its 95 % interval
    gain_high: float | None = None
    order: str = ""  # method: the candidate's, or that of the generation
    requests: int | None = None  # that have outputs
    seconds: float = 0.0  # of the engine at work
    price_per_hour: float = 0.0
    currency: str = ""
    model: str = ""  # fingerprint
    engine: str = ""  # vLLM's version
    prompts: str = ""  # md5
    toy: bool = False


def entry_of(job: Job, run: Run) -> Entry | None:
    """The line of a run; None: a verb that neither measures nor generates."""
    if run.verb not in ("measure", "aa", "generate"):
        return None
    promotion = run.details.get("promotion")
    source: dict[str, Any] = promotion if isinstance(promotion, dict) else {}
    of_trial: dict[str, Any] = {
        "question": run.details.get("question") or "",
        "attempt": run.details.get("attempt"),
        "alpha": run.figure("alpha"),
        "blocks": run.figure("blocks"),
        "seconds": run.figure("measured_s") or 0.0,
        **next((figure.flat() for figure in run.figures if figure.name == "gain"), {}),
    }
    of_generation: dict[str, Any] = {
        "trial": source.get("trial") or "",
        **{name: source.get(name) for name in ("gain", "gain_low", "gain_high")},
        "requests": run.figure("generated"),
        "seconds": run.figure("wall_s") or 0.0,
    }
    return Entry(
        verb=run.verb,
        run=run.id,
        ended_utc=run.ended_utc,
        answer=run.answer,
        order=run.basis.order.method if run.basis.order else "",
        price_per_hour=job.reporting.price_per_hour,
        currency=job.reporting.currency,
        model=run.basis.model_fingerprint or "",
        engine=run.basis.versions.get("engine_vllm") or run.basis.versions.get("vllm", ""),  # a trial also has ours
        prompts=run.basis.dataset_md5 or "",
        toy=run.basis.toy,
        **(of_generation if run.verb == "generate" else of_trial),
    )


def shows_something_new(run: Run) -> bool:
    """Whether a picture changes: a refusal, or a run that found everything generated, ends before it would be drawn."""
    return run.figure("gain") is not None or bool(run.figure("generated"))


def add(job: Job, run: Run) -> None:
    """Append a run's line, unless it is there. A line is on disk before this returns.

    Raises:
        LedgerError: it cannot be read or written.
    """
    entry, path = entry_of(job, run), job.data_dir / FILE
    if entry is None or entry in read(path):
        return
    sink = io.StringIO()
    writer = csv.DictWriter(sink, Entry.model_fields, lineterminator="\n")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a+b") as file:  # appended: two runs of a job may end at once
            if file.seek(0, os.SEEK_END) == 0:
                writer.writeheader()
            elif not _ends_whole(file):
                sink.write("\n")
            writer.writerow(entry.model_dump(mode="json"))
            file.write(sink.getvalue().encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise LedgerError(f"{path} cannot be written: {error.strerror}") from None


def read(path: Path) -> list[Entry]:
    """The lines of a ledger, oldest first; of a run with several, the last. A line that a crash tore is left out.

    Raises:
        LedgerError: it cannot be read.
    """
    found: dict[tuple[str, str], Entry] = {}
    try:
        with open(path, encoding="utf-8", newline="") as lines:
            for row in csv.DictReader(lines):
                try:
                    entry = Entry.model_validate({name: value for name, value in row.items() if value})
                except ValidationError:
                    continue
                found[entry.verb, entry.run] = entry
    except FileNotFoundError:
        return []
    except (OSError, ValueError, csv.Error) as error:
        raise LedgerError(f"{path} cannot be read: {error}. Restore it from git") from None
    return sorted(found.values(), key=lambda entry: (entry.ended_utc, entry.run))


def _ends_whole(file: io.BufferedRandom) -> bool:
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"
