"""A job's prompts on disk, readable in any order: 32 bytes of memory a prompt, so that millions fit."""

from __future__ import annotations

import array
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderproof.job.spec import Job
from orderproof.prompts.file_kinds import name_of, row_word
from orderproof.prompts.ids import id_key
from orderproof.prompts.prompt import Prompt, PromptError, duplicate_id, flawed_prompt
from orderproof.prompts.prompt_file import read_prompts
from orderproof.prompts.prompt_files import PromptFiles, find_files
from orderproof.prompts.request_defaults import RequestDefaults
from orderproof.prompts.stored_rows import JsonRows, SpooledRows
from orderproof.prompts.tokenization import BATCH_PROMPTS, Tokenizer
from orderproof.prompts.tolerance import sufficient, tolerates

logger = logging.getLogger(__name__)


class PromptSource:
    """N checked prompts with distinct ids, in the file's order. A context manager; not thread-safe.

    Among them are the rows that are no prompts, as far as they are tolerated: see `Prompt.flaw`.
    """

    def __init__(self, source: Path | PromptFiles, defaults: RequestDefaults | None = None) -> None:
        """Read and check the file, or the files, once.

        Args:
            defaults: of the job, with the share of rows that may be no prompts; None: the rows belong to no job.

        Raises:
            PromptError: more rows are no prompts, an id is used twice, or the file cannot be read; names the first.
        """
        self._files, self.defaults = PromptFiles.of(source), defaults
        self.path, self.files = self._files.path, self._files.files
        self._state = self._files.state()
        self._rows: JsonRows | SpooledRows = (
            JsonRows(self.path, defaults)
            if self.files == (self.path,) and self.path.suffix.lower() == ".jsonl"
            else SpooledRows(self._files, defaults)
        )
        index = _index(self._files, self._rows, defaults.job if defaults else None)
        self._offsets, self._numbers, self.keys = (np.frombuffer(column, column.typecode) for column in index)
        self._check_unique()
        self.md5 = self._files.md5()
        self.check_unchanged()
        for notice in self._rows.notices:
            logger.warning(notice)

    def __len__(self) -> int:
        return len(self._offsets)

    def __enter__(self) -> PromptSource:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rows.close()

    @property
    def is_batch_file(self) -> bool:
        """Its rows are requests of OpenAI's batch format."""
        return next((prompt.endpoint is not None for prompt in self.prompts() if prompt.flaw is None), False)

    def read(self, rows: Sequence[int] | NDArray[np.int64]) -> list[Prompt]:
        """Some prompts, by their places in the file's order.

        Raises:
            PromptError: the file was changed since it was indexed.
        """
        try:
            prompts = [self._rows.prompt(int(self._offsets[row]), int(self._numbers[row])) for row in rows]
        except PromptError:
            self.check_unchanged()
            raise
        self.check_unchanged()
        return prompts

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Bytes of each prompt's row, int64[N]; the last row has the mean of the others."""
        between = np.diff(self._offsets)
        sizes: NDArray[np.int64] = np.append(between, int(between.mean()) if len(between) else 1)
        return sizes

    def check_unchanged(self) -> None:
        """Raise PromptError if the file's content changed since it was indexed; a new time stamp alone is no change."""
        now = self._files.state()
        if now == self._state:
            return
        if None in now or self._files.md5() != self.md5:
            raise PromptError(
                self.path,
                "was changed while the job ran",
                "Finished outputs are kept for the earlier version: restore it and run the job again to continue, or "
                "start again with --restart",
                flaw="file",
            )
        self._state = now

    def has_more(self, start: int) -> bool:
        """Whether there is a prompt after the first `start`. (PromptStream, which has the same, waits for it.)"""
        return start < len(self)

    def windows(self, start: int, size: int, starving: Callable[[], bool]) -> Iterator[range]:
        """Places of `size` neighbours each, from `start` on. (PromptStream, which has the same, waits for them.)"""
        return (range(first, min(first + size, len(self))) for first in range(start, len(self), size))

    @property
    def ids(self) -> Sequence[str]:
        """All ids in the file's order; they stay on disk, and are read fastest one after the other."""
        return _Ids(self)

    @property
    def lines(self) -> NDArray[np.int64]:
        """Each prompt's line of JSON lines or row of Parquet, int64[N], from 1."""
        return self._numbers

    def labels(self) -> list[str | None]:
        """All labels in the file's order, in memory."""
        return [prompt.label for prompt in self.prompts()]

    def prompts(self) -> Iterator[Prompt]:
        """All prompts in the file's order, read again."""
        for start in range(0, len(self), BATCH_PROMPTS):
            yield from self.read(range(start, min(start + BATCH_PROMPTS, len(self))))

    def places(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Where prompts stand, int64[n], by the hashes of their ids; -1 for an id that is not in the file."""
        ranked = self._ranked
        wanted = np.fromiter(map(id_key, ids), np.uint64, len(ids))
        at = np.minimum(np.searchsorted(self.keys, wanted, sorter=ranked), len(self) - 1)
        return np.where(self.keys[ranked[at]] == wanted, ranked[at], -1)

    def samplings(self, rows: Sequence[int] | NDArray[np.int64]) -> Iterator[Mapping[str, Any] | None]:
        """Own sampling of some prompts, by their places in the file's order; None: the job's."""
        for start in range(0, len(rows), BATCH_PROMPTS):
            yield from (prompt.sampling for prompt in self.read(rows[start : start + BATCH_PROMPTS]))

    def token_counts(self, tokenizer: Tokenizer) -> NDArray[np.int64]:
        """Tokens of each prompt, int64[N]; 0: it cannot be rendered. Reads and tokenizes the whole file."""
        counts = np.empty(len(self), np.int64)
        for start in range(0, len(self), BATCH_PROMPTS):
            rows = range(start, min(start + BATCH_PROMPTS, len(self)))
            counts[rows.start : rows.stop] = list(map(len, tokenizer.token_ids(self.read(rows))))
        return counts

    @cached_property
    def _ranked(self) -> NDArray[np.int64]:
        ranked: NDArray[np.int64] = np.argsort(self.keys, kind="stable")
        return ranked

    def _check_unique(self) -> None:
        ranked = self._ranked
        repeated = np.flatnonzero(self.keys[ranked[1:]] == self.keys[ranked[:-1]])
        for first, second in ((ranked[k], ranked[k + 1]) for k in repeated.tolist()):
            earlier, later = self.read([first, second])
            if earlier.id == later.id:
                raise duplicate_id(self.path, later, earlier.line)


def open_prompts(job: Job) -> PromptSource:
    """All prompts of a job. Raises as `PromptSource`."""
    return PromptSource(find_files(job), RequestDefaults(job))


class _Ids(Sequence[str]):
    """Ids that stay on disk."""

    def __init__(self, source: PromptSource) -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def __iter__(self) -> Iterator[str]:
        return (prompt.id for prompt in self.source.prompts())

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [prompt.id for prompt in self.source.read(range(*row.indices(len(self))))]
        return self.source.read([row])[0].id


def _index(
    files: PromptFiles, rows: JsonRows | SpooledRows, job: Job | None
) -> tuple[array.array[int], array.array[int], array.array[int]]:
    """Offset, number and id key of every row. Raises the first flaw if there are too many, and says how many more."""
    offsets, numbers, keys = array.array("q"), array.array("q"), array.array("Q")
    first, flaws, fatal = None, 0, None
    for offset, number, found in rows.scan():
        if isinstance(found, PromptError):
            first, flaws = first or found, flaws + 1
            fatal = fatal or (None if found.is_of_one_row else found)
            found = flawed_prompt(found)
        offsets.append(offset)
        numbers.append(number)
        keys.append(id_key(found.id))
    if not offsets:
        with contextlib.suppress(StopIteration):
            next(read_prompts(files))  # raises the error for a file without prompts
    if first is not None and (fatal or job is None or not tolerates(job, flaws, len(offsets))):
        raise _with_count(fatal or first, job, flaws, len(offsets))
    if flaws:
        name, word = name_of(files.path), row_word(files.path)
        logger.warning("%s: %d of %d %ss are no prompts and are not sent", name, flaws, len(offsets), word)
    return offsets, numbers, keys


def _with_count(flaw: PromptError, job: Job | None, flaws: int, rows: int) -> PromptError:
    """A flaw that ends a job, with how many others there are and what would tolerate them."""
    more = f" ({flaws - 1} more rows are wrong: `orderproof validate` lists them)" if flaws > 1 else ""
    instead = f"; or go on without such rows: {sufficient(flaws, rows)}" if job and flaw.is_of_one_row else ""
    remedy = flaw.remedy + more + instead
    return PromptError(flaw.file, flaw.problem, remedy, row=flaw.row, id=flaw.id, flaw=flaw.flaw)
