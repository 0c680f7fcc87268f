"""What commands do alike: their common arguments, the job they are given, what stands around a flow, how they answer.

In: the words of one command. Out: a checked `Job`, an answer on standard output, or a mistake. Knows no command.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from orderproof.job.errors import OrderproofError
from orderproof.job.params import load_job
from orderproof.job.spec import Job

Name = Annotated[str, typer.Argument(metavar="JOB", help="A name under `jobs` in params.yaml.")]
NameOrAll = Annotated[str | None, typer.Argument(metavar="[JOB]", help="A name under `jobs`; without it all of them.")]
Params = Annotated[Path, typer.Option("--params", help="The project's params.yaml.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output, for machines.")]
PARAMS = Path("params.yaml")
ANOTHER_SERVER = (
    "Start a server of this version there (`prefect server start`), or unset PREFECT_API_URL: flows run without one"
)
WITHOUT_A_SERVER = {  # how Prefect's RuntimeError begins where a flow cannot → what to do
    "Failed to reach API": ANOTHER_SERVER,
    "Found incompatible versions": ANOTHER_SERVER,
    "Timed out while attempting to connect": "See that there is room in PREFECT_HOME and that it can be written",
}


def examples(*lines: str) -> str:
    """How a command is called, below its help."""
    return "Examples:\n\n" + "\n\n".join(f"`{line}`" for line in lines)


def checked_job(params: Path, name: str) -> Job:
    """A job of which all was checked that can be told in no time, before Prefect or an engine starts.

    Raises:
        JobError: params.yaml or the job in it is wrong.
        ModelError: a folder is no model's.
    """
    from orderproof.job.model import read_model

    job = load_job(params, name)
    read_model(job.model_path, job.model, job.adapters)
    return job


@contextlib.contextmanager
def prefect_around(kept: str) -> Iterator[None]:
    """Around a flow. `kept` says what outlives a server that goes away, and how to go on."""
    if home := os.environ.get("PREFECT_HOME"):
        _see_that_it_can_be_written(Path(home))
    import httpx

    from flows.server import spare_server_the_terminal_s_interrupt

    spare_server_the_terminal_s_interrupt()
    try:
        yield
    except RuntimeError as error:
        remedy = next((what for said, what in WITHOUT_A_SERVER.items() if str(error).startswith(said)), None)
        if remedy is None:
            raise
        raise OrderproofError(
            f"Prefect says: {' '.join(str(error).split()).rstrip('.')}. Nothing was begun. {remedy}"
        ) from None
    except httpx.HTTPError as error:
        raise OrderproofError(
            f"the Prefect server is gone ({error}), so it does not know how this run ended. {kept}"
        ) from None


def _see_that_it_can_be_written(home: Path) -> None:
    """Prefect opens a database there, and fails for minutes without."""
    why = "it cannot be written"
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = str(error.strerror)
    if not os.access(home, os.W_OK | os.X_OK):
        raise OrderproofError(f"PREFECT_HOME, {home}: {why}. Mend it or name another folder. Nothing was begun")


def say(value: Any, as_json: bool, lines: list[str]) -> None:
    """A command's answer, for machines or for people."""
    try:
        print(json.dumps(value, ensure_ascii=False) if as_json else "\n".join(lines), flush=True)
    except BrokenPipeError:
        raise  # the reader has had enough
    except OSError as error:
        raise OrderproofError(f"the answer cannot be written to the standard output: {error.strerror}") from None
