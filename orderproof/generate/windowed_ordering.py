"""Ordering of prompts window by window while others are sent already. Holds one window of prompts."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from orderproof.generate.checkpoint_folder import CheckpointError
from orderproof.generate.growing_checkpoint import GrowingCheckpoint
from orderproof.job.files import sync_folder
from orderproof.job.spec import Job
from orderproof.orders.view import PromptView, own_samples
from orderproof.prompts.source import PromptSource
from orderproof.prompts.stream import PromptStream
from orderproof.prompts.tokenization import Tokenizer
from orderproof.signals.served_model import ServedModel

SPOOL_FILE = "prompts.jsonl"  # in the checkpoint's folder: the prompts of a stream so far
STREAMED_FILE = "streamed.jsonl"  # in data/<job>: the prompts of outputs.parquet, where they were a stream


class WindowedOrdering:
    """Puts the prompts of a source in order that have none yet, and keeps each window's order in the checkpoint."""

    def __init__(
        self,
        job: Job,
        source: PromptSource | PromptStream,
        checkpoint: GrowingCheckpoint,
        tokenizer: Tokenizer,
        in_tokens: bool,
    ) -> None:
        """`in_tokens`: lengths are counted in tokens, otherwise in characters."""
        self.job, self.source, self.checkpoint = job, source, checkpoint
        self.tokenizer, self.in_tokens = tokenizer, in_tokens

    def has_more(self) -> bool:
        """Wait for a prompt that has no order yet. False: the source has ended."""
        return self.source.has_more(self.checkpoint.windows.prompts)

    def windows(self, starving: Callable[[], bool]) -> Iterator[NDArray[np.int64]]:
        """Places in the order of sending, int64[prompts] for each window, once that window is on disk.

        Args:
            starving: whether the engine could run more sequences than it has.
        """
        ordered = self.checkpoint.windows
        assert ordered.spec.window is not None
        for rows in self.source.windows(ordered.prompts, ordered.spec.window, starving):
            yield self.checkpoint.extend(self._view(rows))

    def _view(self, rows: range) -> PromptView:
        prompts = self.source.read(rows)
        counts = list(map(len, self.tokenizer.token_ids(prompts))) if self.in_tokens else None
        return PromptView(
            ids=[prompt.id for prompt in prompts],
            labels=[prompt.label for prompt in prompts],
            text=lambda i: self.tokenizer.text(prompts[i]),
            lines=[prompt.line for prompt in prompts],
            token_counts=None if counts is None else np.array(counts, np.int64),
            source=str(self.source.path),
            first=rows.start,
            token_ids=lambda places: self.tokenizer.token_ids([prompts[int(i)] for i in places]),
            served=ServedModel.of_job(self.job),
            own_samples=lambda places: [own_samples(prompts[int(i)].sampling) for i in places],
        )


def store_streamed_prompts(job: Job, spool: Path) -> Job:
    """Put the prompts of a stream beside their outputs. Returns the job with these prompts.

    Raises:
        CheckpointError: it cannot be written.
    """
    stored = job.data_dir / STREAMED_FILE
    part = stored.with_name(f".{stored.name}.part")
    try:
        part.unlink(missing_ok=True)
        try:
            os.link(spool, part)
        except OSError:  # a file system without links
            shutil.copyfile(spool, part)
        os.replace(part, stored)
        part.unlink(missing_ok=True)  # it stays where an earlier run linked `stored` to the same file
        sync_folder(stored.parent)
    except OSError as error:
        raise CheckpointError(
            f"{stored} cannot be written: {error.strerror}. The prompts are kept in {spool}, with all results. Fix "
            "this, then run the same command again to resume"
        ) from None
    return job.model_copy(update={"prompts": str(stored.relative_to(job.root))})
