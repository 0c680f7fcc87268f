"""The command run inside the test's process, as a shell would call it, and what it left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

JOB = {"prompts": "data/it/prompts.jsonl", "model": "m", "engine": {"args": {"max_num_seqs": 8}}}  # in params.yaml

IMPORTS = """
import sys
from orderproof.cli.main import main
sys.argv = ["orderproof", *sys.argv[1:]]
try:
    main()
finally:
    print("imported:", *sys.modules, file=sys.stderr)
"""


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which must be one document on one line and nothing else."""
        assert self.out.count("\n") == 1
        return json.loads(self.out)

    def assert_refused(self, code: int, *words: str) -> None:
        """One message on standard error, no traceback, nothing on standard output."""
        assert (self.code, self.out) == (code, ""), self
        assert self.err.startswith("orderproof: ")
        assert self.err.count("\n") == 1
        assert [word for word in words if word not in self.err] == [], self.err


RunCommand = Callable[..., Result]


def modules_of_command(folder: Path, *arguments: str) -> tuple[Result, set[str]]:
    """Run the command in a process of its own. Returns also the names of all modules that it imported."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    messages, _, imported = done.stderr.rpartition("imported: ")
    return Result(done.returncode, done.stdout, messages), set(imported.split())
