"""Prompt files of any kind → `Prompt` values in their order, streamed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from orderproof.prompts.file_kinds import kind_of, row_word
from orderproof.prompts.json_lines import EXAMPLE
from orderproof.prompts.prompt import Prompt, PromptError
from orderproof.prompts.prompt_files import PromptFiles
from orderproof.prompts.request_defaults import RequestDefaults
from orderproof.prompts.row_formats import FORMATS
from orderproof.prompts.row_reader import RowReader


def read_prompts(
    source: Path | PromptFiles,
    on_flaw: Callable[[PromptError], None] | None = None,
    defaults: RequestDefaults | None = None,
    on_notice: Callable[[str], None] = lambda _: None,
) -> Iterator[Prompt]:
    """Stream the prompts of a file, or of several one after another, in constant memory, in the file's order.

    Ids are not compared, since that needs them all in memory. Integers are accepted as ids, labels and references in
    their decimal text. Columns that are no field of a prompt are left out.

    Args:
        source: .jsonl (UTF-8, with or without byte order marks, LF or CRLF; plain rows, or those of OpenAI's batch
            format), .json and .csv, each also as .gz or .zst; or .parquet.
        on_flaw: gets each flaw of a row, or that there are no rows, and reading goes on; by default the first raises.
        defaults: of the job; None: the rows belong to no job.
        on_notice: gets, at the end, what should be known about rows that are used, such as columns that are not read.

    Raises:
        PromptError: at once if the file cannot be opened, later if it or a row cannot be read.
    """
    files = PromptFiles.of(source)
    return _prompts(files, RowReader(files.path, defaults), on_flaw or _raise, on_notice)


def _raise(error: PromptError) -> None:
    raise error


def _prompts(
    files: PromptFiles,
    reader: RowReader,
    on_flaw: Callable[[PromptError], None],
    on_notice: Callable[[str], None],
) -> Iterator[Prompt]:
    empty = True
    for file in files.files:
        for prompt in FORMATS[str(kind_of(file))](file, reader):
            empty = False
            if isinstance(prompt, PromptError):
                on_flaw(_in_file(prompt, file, reader) if len(files.files) > 1 else prompt)
            else:
                yield prompt
        reader.begin_file()
    if empty:
        has_bytes = any(file.stat().st_size for file in files.files)
        problem = "holds no prompts, only blank lines or an empty table" if has_bytes else "is empty"
        on_flaw(PromptError(files.path, problem, f"Give at least one prompt, such as {EXAMPLE}", flaw="file"))
    for line in reader.notices.lines(files.path):
        on_notice(line)


def _in_file(flaw: PromptError, file: Path, reader: RowReader) -> PromptError:
    """The flaw of a row of several files: its number counts the rows of all."""
    if flaw.row is None:
        return flaw
    place = f"{file.name}, {row_word(file)} {flaw.row - reader.rows_before}"
    return PromptError(flaw.file, f"{flaw.problem} ({place})", flaw.remedy, row=flaw.row, id=flaw.id, flaw=flaw.flaw)
