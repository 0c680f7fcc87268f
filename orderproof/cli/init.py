"""`orderproof init`: a project of the user's own, with the configuration, the stages and the flows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orderproof.cli.conventions import Json, examples, print_answer

commands = typer.Typer()


@commands.command(epilog=examples("orderproof init", "orderproof init ~/evals"))
def init(
    folder: Annotated[Path, typer.Argument(help="Where; the current folder by default.")] = Path(),
    as_json: Json = False,
) -> None:
    """Write params.yaml, dvc.yaml, infra/prefect.yaml, flows/ and tasks/ into a folder. Overwrites nothing."""
    from orderproof.cli.project_files import write_project

    written, kept = write_project(folder)
    lines = [f"wrote {path}" for path in written] + [f"kept {path}: it was there already" for path in kept]
    lines.append("next: describe a job in params.yaml, then `orderproof doctor` and `orderproof validate JOB`")
    print_answer({"folder": str(folder.resolve()), "written": written, "kept": kept}, as_json, lines)
