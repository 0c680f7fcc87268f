"""What commands have in common: their arguments, the job they are given, and how they answer."""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from orderproof.job.errors import OrderproofError
from orderproof.job.params import load_job
from orderproof.job.spec import Job
from orderproof.runs.run import Run

Name = Annotated[str, typer.Argument(metavar="JOB", help="A name under `jobs` in params.yaml.")]
NameOrAll = Annotated[str | None, typer.Argument(metavar="[JOB]", help="A name under `jobs`; without it all of them.")]
Params = Annotated[Path, typer.Option("--params", help="The project's params.yaml.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output, for machines.")]
PARAMS = Path("params.yaml")


class StandardErrorHandler(logging.Handler):
    """Log lines on whatever standard error is at that moment: a progress bar replaces it while it is shown."""

    def emit(self, record: logging.LogRecord) -> None:
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        print(
            f"{time.strftime('%H:%M:%S', time.localtime(record.created))} {level}{record.getMessage()}", file=sys.stderr
        )


def log_to_standard_error() -> None:
    """Show what the library logs, with the time."""
    library = logging.getLogger("orderproof")
    library.handlers = [StandardErrorHandler()]
    library.setLevel(logging.INFO)
    library.propagate = False


def examples(*lines: str) -> str:
    """How a command is called, below its help."""
    return "Examples:\n\n" + "\n\n".join(f"`{line}`" for line in lines)


def checked_job(params: Path, name: str) -> Job:
    """A job, checked as far as that takes no time.

    Raises:
        JobError: params.yaml or the job in it is wrong.
        ModelError: a folder is not a model's.
    """
    from orderproof.job.model import read_model

    job = load_job(params, name)
    read_model(job.model_path, job.model, job.adapters)
    return job


def print_run(job: Job, run: Run, as_json: bool) -> None:
    """A run, for machines or for people."""
    from orderproof.runs.text import terminal_lines

    print_answer(run.as_json(), as_json, terminal_lines(job, run))


def print_answer(value: Any, as_json: bool, lines: list[str]) -> None:
    """A command's answer, for machines or for people."""
    try:
        print(json.dumps(value, ensure_ascii=False) if as_json else "\n".join(lines), flush=True)
    except BrokenPipeError:
        raise  # the reader has had enough
    except OSError as error:
        raise OrderproofError(f"the answer cannot be written to the standard output: {error.strerror}") from None
