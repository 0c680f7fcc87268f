"""The rows of a file, or of several, one after another → prompts; and what a user should know about them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from orderproof.job.spec import ColumnsSpec
from orderproof.prompts import openai_batch
from orderproof.prompts.file_kinds import name_of, row_word
from orderproof.prompts.json_lines import parse_object
from orderproof.prompts.layout import Layout, find_layout
from orderproof.prompts.prompt import Prompt, PromptError, prompt_of
from orderproof.prompts.request_defaults import RequestDefaults

Listener = Callable[[str], None]


class Notices:
    """What should be known about rows that are used: each notice once, with its first row and how many others."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[int, int]] = {}  # of a notice: first row, how many

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, notice: str, row: int) -> None:
        first, count = self._rows.get(notice, (row, 0))
        self._rows[notice] = first, count + 1

    def lines(self, path: Path) -> list[str]:
        """One line for each notice."""
        return [
            f"{name_of(path)}: {notice} ({row_word(path)} {first}{f' and {count - 1:,} more' if count > 1 else ''})"
            for notice, (first, count) in self._rows.items()
        ]


class RowReader:
    """The first row decides the layout and the format of all; `notices` grow with every row."""

    def __init__(self, path: Path, defaults: RequestDefaults | None = None) -> None:
        """`defaults`: of the job; None: the rows belong to no job."""
        self.path, self.defaults, self.notices = path, defaults, Notices()
        self._columns = defaults.job.columns if defaults else ColumnsSpec()
        self.rows_before = 0  # of the current file: rows of the files before it
        self._layout: Layout | None = None
        self._last = 0
        self._first: Prompt | None = None

    def begin_file(self) -> None:
        """Another file follows: its rows are numbered on."""
        self.rows_before = self._last

    def place(self, number: int) -> int:
        """The number, among the rows of all files, of a row of the current one."""
        self._last = max(self._last, self.rows_before + number)
        return self.rows_before + number

    def is_batch(self, names: Collection[str]) -> bool:
        """Whether a row with these columns is a request of OpenAI's batch format."""
        return self._columns.text is None and openai_batch.is_request(names)

    def layout(self, names: Collection[str]) -> Layout:
        """That of the file, whose first row or schema has these names."""
        self._layout = self._layout or find_layout(names, self._columns)
        return self._layout

    def read_line(self, number: int, line: bytes) -> Prompt:
        """One line of JSON lines → its prompt. Raises PromptError at the first thing wrong."""
        row = self.place(number)

        def fail(problem: str, remedy: str, **more: Any) -> PromptError:
            return PromptError(self.path, problem, remedy, row=row, **more)

        return self.read(number, parse_object(line, fail))

    def read(self, number: int, record: Mapping[str, Any], names: Collection[str] | None = None) -> Prompt:
        """A row of any format → its prompt.

        Args:
            number: in its file, from 1.
            names: of all columns of the row, where `record` has only those that are read.

        Raises:
            PromptError: the first thing wrong, such as a row of another format than the first.
        """
        names = record.keys() if names is None else names
        number = self.place(number)

        def notice(text: str) -> None:
            self.notices.add(text, number)

        if self.is_batch(names):
            prompt = openai_batch.prompt_of(self.path, number, record, self.defaults, self._columns)
            found = openai_batch.notices(names, self._columns)
        else:
            layout = self.layout(names)
            prompt = prompt_of(self.path, number, record, self.defaults, layout, notice)
            found = layout.notices(names)
        self._check_format(prompt)
        for text in found:
            notice(text)
        return prompt

    def _check_format(self, prompt: Prompt) -> None:
        first = self._first = self._first or prompt
        if (prompt.endpoint is None) != (first.endpoint is None):
            names = ("plain", "batch") if first.endpoint else ("batch", "plain")
            problem = f"is a {names[0]} row, and {row_word(self.path)} {first.line} is a {names[1]} row"
            raise PromptError(self.path, problem, "Keep them in two files", row=prompt.line, id=prompt.id)
