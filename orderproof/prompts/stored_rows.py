"""Rows of a prompt file on disk: scanned once for their offsets, then read singly."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from orderproof.prompts.prompt import Prompt, PromptError, prompt_of
from orderproof.prompts.prompt_file import FormatCheck, json_lines, prompt_of_line, read_prompts
from orderproof.prompts.request_defaults import RequestDefaults


class JsonRows:
    """Reads the lines of the file itself."""

    def __init__(self, path: Path, defaults: RequestDefaults | None) -> None:
        self.path, self.defaults = path, defaults
        self._open: IO[bytes] | None = None

    def scan(self) -> Iterator[tuple[int, int, Prompt | PromptError]]:
        """Offset, number and prompt (or its flaw) of every line."""
        check_format = FormatCheck(self.path)
        for number, offset, line in json_lines(self.path):
            try:
                yield offset, number, check_format(prompt_of_line(self.path, number, line, self.defaults))
            except PromptError as flaw:
                yield offset, number, flaw

    def prompt(self, offset: int, number: int) -> Prompt:
        """The prompt at an offset that `scan` gave, with its number."""
        if self._open is None:
            self._open = open(self.path, "rb")  # noqa: SIM115  (held until close)
        self._open.seek(offset)
        return prompt_of_line(self.path, number, self._open.readline(), self.defaults)

    def close(self) -> None:
        if self._open:
            self._open.close()


class ParquetRows:
    """Rows of Parquet cannot be read singly, so they are written once as lines of a temporary file."""

    def __init__(self, path: Path, defaults: RequestDefaults | None) -> None:
        self.path, self.defaults = path, defaults
        self._spool = tempfile.TemporaryFile(prefix="orderproof-")  # noqa: SIM115  (held until close)

    def scan(self) -> Iterator[tuple[int, int, Prompt | PromptError]]:
        flaws: list[PromptError] = []
        for prompt in read_prompts(self.path, flaws.append, self.defaults):
            yield from ((0, flaw.row or 0, flaw) for flaw in flaws)
            flaws.clear()
            offset = self._spool.tell()
            fields = {"id": prompt.id, "text": prompt.text, "label": prompt.label, "sampling": prompt.sampling,
                      "reference": prompt.reference, "lora": prompt.lora}  # fmt: skip
            self._spool.write(json.dumps(fields).encode() + b"\n")
            yield offset, prompt.line, prompt
        yield from ((0, flaw.row or 0, flaw) for flaw in flaws)

    def prompt(self, offset: int, number: int) -> Prompt:
        """The prompt at an offset that `scan` gave, with its number."""
        self._spool.seek(offset)
        return prompt_of(self.path, number, json.loads(self._spool.readline()))

    def close(self) -> None:
        self._spool.close()
