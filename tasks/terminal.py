"""A flow as a command: `python -m flows.measure six-domains`. Mistakes of the user are one message, no traceback."""

from __future__ import annotations

import functools
import logging
import sys
from pathlib import Path
from typing import Any

import httpx
import typer
from prefect import Flow
from prefect.context import FlowRunContext, TaskRunContext
from prefect.logging.handlers import APILogHandler

from orderproof.cli.conventions import StandardErrorHandler
from orderproof.cli.main import INTERRUPTED, KEPT
from orderproof.doctor import services
from orderproof.job.errors import OrderproofError
from orderproof.job.params import load_job
from orderproof.runs.run import Run
from orderproof.runs.text import terminal_lines


class _WithoutTraceback(logging.Filter):
    """Prefect logs a failed task with its traceback; for a mistake of the user the message is enough."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and isinstance(record.exc_info[1], OrderproofError):
            record.exc_info = None
        return True


class RunPageHandler(APILogHandler):
    """The library's log lines on the run's page in Prefect, where there is a run."""

    def emit(self, record: logging.LogRecord) -> None:
        if FlowRunContext.get() or TaskRunContext.get():
            super().emit(record)


for _name in ("prefect.flow_runs", "prefect.task_runs"):
    logging.getLogger(_name).addFilter(_WithoutTraceback())
library = logging.getLogger("orderproof")
library.setLevel(logging.INFO)
library.addHandler(RunPageHandler())


def _require_server() -> None:
    """Raise OrderproofError where the Prefect server that is set does not answer; Prefect would retry for minutes."""
    check = services.prefect()
    if check.state == "fail":
        raise OrderproofError(f"the Prefect server {check.finding}. Try again, or {check.remedy}")


def _was_interrupted(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def run_as_command(flow: Flow[..., Run]) -> None:
    """Parse the command line into the flow's parameters, run it, and print its result."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

    @app.command(help=flow.fn.__doc__)
    @functools.wraps(flow.fn)
    def command(*arguments: Any, **parameters: Any) -> None:
        _require_server()
        run = flow(*arguments, **parameters)
        job = load_job(Path(parameters.get("params", "params.yaml")), run.job)
        print("\n".join(terminal_lines(job, run)))

    handler = StandardErrorHandler()
    library.addHandler(handler)
    library.propagate = False  # Prefect's own console handler would show each line again
    try:
        app()
    except OrderproofError as error:
        print("\n".join((f"orderproof: {error}", *error.words)), file=sys.stderr)
        raise SystemExit(1) from None
    except httpx.HTTPError as error:
        if _was_interrupted(error):  # which also ended Prefect's own server
            print(f"orderproof: {KEPT}", file=sys.stderr)
            raise SystemExit(INTERRUPTED) from None
        print(
            f"orderproof: the Prefect server does not answer ({error}), so it does not know how this run ended. What "
            "was finished is kept: run the same command again to resume",
            file=sys.stderr,
        )
        raise SystemExit(1) from None
    finally:
        library.removeHandler(handler)
        library.propagate = True
