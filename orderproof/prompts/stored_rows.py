"""Rows of a prompt file on disk: scanned once for their offsets, then read singly."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from orderproof.prompts.prompt import Prompt, PromptError, flawed_prompt
from orderproof.prompts.prompt_file import read_prompts
from orderproof.prompts.prompt_files import PromptFiles
from orderproof.prompts.request_defaults import RequestDefaults
from orderproof.prompts.row_formats import json_lines
from orderproof.prompts.row_reader import RowReader


class JsonRows:
    """Reads the lines of the file itself."""

    def __init__(self, path: Path, defaults: RequestDefaults | None) -> None:
        self.path, self._reader = path, RowReader(path, defaults)
        self.notices: list[str] = []  # after `scan`
        self._open: IO[bytes] | None = None

    def scan(self) -> Iterator[tuple[int, int, Prompt | PromptError]]:
        """Offset, number and prompt (or its flaw) of every line that is not blank."""
        for number, offset, line in json_lines(self.path):
            try:
                yield offset, number, self._reader.read_line(number, line)
            except PromptError as flaw:
                yield offset, number, flaw
        self.notices = self._reader.notices.lines(self.path)

    def prompt(self, offset: int, number: int) -> Prompt:
        """The prompt at an offset that `scan` gave, with its number."""
        if self._open is None:
            self._open = open(self.path, "rb")  # noqa: SIM115  (held until close)
        self._open.seek(offset)
        try:
            return self._reader.read_line(number, self._open.readline())
        except PromptError as flaw:
            return flawed_prompt(flaw)

    def close(self) -> None:
        if self._open:
            self._open.close()


class SpooledRows:
    """Rows of other formats and of several files: their prompts are written to a temporary file and read there."""

    def __init__(self, files: PromptFiles, defaults: RequestDefaults | None) -> None:
        self.files, self.defaults = files, defaults
        self.notices: list[str] = []  # after `scan`
        self._spool = tempfile.TemporaryFile(prefix="orderproof-")  # noqa: SIM115  (held until close)

    def scan(self) -> Iterator[tuple[int, int, Prompt | PromptError]]:
        """Offset in the temporary file, number and prompt (or its flaw) of every row."""
        flaws: list[PromptError] = []
        for prompt in read_prompts(self.files, flaws.append, self.defaults, self.notices.append):
            yield from self._keep_flaws(flaws)
            yield self._keep(prompt), prompt.line, prompt
        yield from self._keep_flaws(flaws)

    def _keep_flaws(self, flaws: list[PromptError]) -> Iterator[tuple[int, int, PromptError]]:
        while flaws:
            flaw = flaws.pop(0)
            yield self._keep(flawed_prompt(flaw)), flaw.row or 0, flaw

    def _keep(self, prompt: Prompt) -> int:
        """Append a prompt to the temporary file. Returns its offset."""
        offset = self._spool.tell()
        self._spool.write(json.dumps(dataclasses.asdict(prompt)).encode() + b"\n")
        return offset

    def prompt(self, offset: int, number: int) -> Prompt:
        """The prompt at an offset that `scan` gave, with its number."""
        self._spool.seek(offset)
        fields = json.loads(self._spool.readline())
        text = fields.pop("text")
        return Prompt(text=text if isinstance(text, str) else tuple(text), **fields)

    def close(self) -> None:
        self._spool.close()
