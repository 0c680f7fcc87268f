"""A job's status in words: a table of all jobs, or a block of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from io import StringIO

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from orderproof.job.formatting import with_interval
from orderproof.lossy.routing import routing_name
from orderproof.runs.ledger_picture import LEDGER_PICTURE
from orderproof.runs.run import TOY
from orderproof.status.savings import Savings
from orderproof.status.status import ActiveStatus, JobStatus, OrderStatus

COLUMNS = ("job", "runs in", "last verdict", "gain", "trials", "notes")
TABLE_WIDTH = 200  # characters; a terminal folds what is wider than itself
LABEL_WIDTH = 13
ALL_JOBS = "all jobs"
SAVINGS_NOTE = (
    "saved: against the control of the trial that promoted the order; hours of all accelerators of a job, with 95 % "
    "intervals. In money: saved less measuring"
)


def status_table(statuses: Sequence[JobStatus]) -> list[str]:
    """One line for each job."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in COLUMNS:
        table.add_column(column, no_wrap=True)
    for status in statuses:
        table.add_row(*_row(status))
    return _lines_of(table)


def savings_lines(savings: Mapping[str, Savings], months: Mapping[str, Savings]) -> list[str]:
    """What measuring cost and orders saved, by job and in all, and by month."""
    total = savings[ALL_JOBS]
    lines = [*_savings_table("job", savings), "", *_savings_table("month", months), "", SAVINGS_NOTE]
    return [*lines, TOY] if total.toy else lines


def _savings_table(what: str, rows: Mapping[str, Savings]) -> list[str]:
    has_price = any(row.currency for row in rows.values())
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in (what, "trials", "runs in order", "measuring", "saved", *(["in money"] if has_price else []), ""):
        table.add_column(column, no_wrap=True)
    for name, row in rows.items():
        money = f"{row.saved - row.cost:+,.2f} {row.currency}" if row.currency else "–"
        table.add_row(
            name,
            str(row.trials),
            str(row.generations),
            f"{row.cost_hours:.2f} h",
            f"{row.saved_hours:.2f} h ({row.saved_low_hours:.2f} to {row.saved_high_hours:.2f})",
            *([money] if has_price else []),
            _paid_back(row) if what == "job" else "",
        )
    return _lines_of(table)


def _paid_back(row: Savings) -> str:
    if not row.trials:
        return "not measured"
    if not row.generations:
        return "no run in a promoted order"
    return "has paid for its trials" if row.paid_back else "has not paid for its trials yet"


def _lines_of(table: Table) -> list[str]:
    sink = StringIO()
    Console(file=sink, width=TABLE_WIDTH).print(table)
    return [line.rstrip() for line in sink.getvalue().splitlines()]


def status_block(status: JobStatus) -> list[str]:
    """Everything about one job."""
    return [status.job, *(f"  {name:<{LABEL_WIDTH}} {text}".rstrip() for name, text in _facts(status))]


def _row(status: JobStatus) -> tuple[str, ...]:
    order, verdict = status.order, status.runs.get("measure")
    in_use = order is not None and order.promoted and not order.stale
    notes = [
        *(["LOSSY routing accepted"] if status.lossy_k0 is not None else []),
        *(["toy model"] if status.toy else []),
        *(["promoted order is of other prompts"] if order and order.stale else []),
        *([f"{len(status.incomplete)} without a verdict"] if status.incomplete else []),
        *(["generating now"] if status.active else ["unfinished generation"] if status.checkpoint else []),
        *(problem.split(":")[0] + " broken or missing" for problem in status.problems),
    ]
    return (
        status.job,
        f"{order.method} (promoted)" if order and in_use else "file",
        verdict.answer if verdict else "not measured",
        _gain(verdict.figures) if verdict else "",
        str(status.trials),
        ", ".join(dict.fromkeys(notes)),
    )


def _facts(status: JobStatus) -> Iterator[tuple[str, str]]:
    yield "prompts", status.prompts
    yield "model", status.model
    yield "runs in", _runs_in(status.order)
    if status.lossy_k0 is not None:
        yield "routing", f"{routing_name(status.lossy_k0)}, accepted in params.yaml"
    if verdict := status.runs.get("measure"):
        yield "last verdict", f"{verdict.sentence}, {verdict.ended}"
        yield "", verdict.reason
    else:
        yield "last verdict", f"none: `orderproof measure {status.job}` gives one"
    if status.toy:
        yield "", TOY
    yield "trials", f"{status.trials}; {status.attempts} attempts at the newest question"
    yield "alpha left", f"{status.alpha_left:g} for another trial of that question"
    yield from _other_runs(status)
    if (savings := status.savings) is not None:
        saved, low, high, cost = (savings[f"{name}_hours"] for name in ("saved", "saved_low", "saved_high", "cost"))
        yield "saved", f"{saved:.2f} h ({low:.2f} to {high:.2f}) for {cost:.2f} h of measuring"
        yield "", f"over time: reports/{status.job}/{LEDGER_PICTURE}"
    yield from _generation(status)
    for name in status.incomplete:
        yield "no verdict", f"{name}: stopped, or being measured now"
    for problem in status.problems:
        yield "problem", problem


def _other_runs(status: JobStatus) -> Iterator[tuple[str, str]]:
    for verb in ("generate", "reproduce", "plan", "capture", "lossy"):
        if run := status.runs.get(verb):
            yield f"last {verb}", f"{run.sentence}, {run.ended}"
            if verb == "generate" and status.streamed and not run.current:
                yield "", f"of a stream, whose prompts are kept in data/{status.job}/streamed.jsonl"
            elif run.current is False:
                yield "", f"of another version of the prompts: `orderproof {verb} {status.job}` makes a new one"
    if any(not run.sent for run in status.runs.values()):
        yield "", f"not all runs are in MLflow: `orderproof log {status.job}` sends them"


def _generation(status: JobStatus) -> Iterator[tuple[str, str]]:
    if kept := status.checkpoint:
        newest = f", the newest of {kept.when}" if kept.when else ""
        resume = "" if status.active else f": `orderproof generate {status.job}` resumes"
        yield "checkpoint", f"{kept.results} of {kept.prompts} results are kept{newest}{resume}"
    if status.active:
        yield "active now", _active(status.active)


def _active(active: ActiveStatus) -> str:
    text = f"{active.who}, since {active.since}"
    if active.run is None:
        return f"{text}; it generates nothing yet"
    left = "" if active.seconds_left is None else f", {active.seconds_left / 60:.0f} min more"
    of_all = "" if active.prompts is None else f" of {active.prompts}"
    return f"{text}; {active.done}{of_all} prompts, {active.rate_req_s or 0:.2f} req/s{left}"


def _runs_in(order: OrderStatus | None) -> str:
    if order is None:
        return "the file's own order; none was ever promoted"
    if not order.promoted:
        return "the file's own order" + (f", since {order.demoted} (demoted)" if order.demoted else "")
    if order.stale:
        return f"the file's own order: the promoted {order.method} order is of another version of the prompts"
    gain = "" if order.gain is None else f" with {with_interval(order.gain, order.gain_low, order.gain_high)}"
    return f"the {order.method} order, promoted {order.since} by trial {order.trial}{gain}"


def _gain(figures: dict[str, float | None]) -> str:
    gain = figures.get("gain")
    return "" if gain is None else with_interval(gain, figures.get("gain_low"), figures.get("gain_high"))
