"""Prompts that are put in order while others are sent already.

In: a source of prompts, a stream or a file, and a growing checkpoint. Out: their places in the order of sending, window
by window, each on disk before it is given. Holds one window of prompts. Knows nothing of engines.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from orderproof.generate.checkpoint import CheckpointError
from orderproof.generate.growing_checkpoint import GrowingCheckpoint
from orderproof.job.files import sync_folder
from orderproof.job.spec import Job
from orderproof.orders.view import PromptView, own_samples
from orderproof.prompts.prompt import Prompt, PromptError
from orderproof.prompts.source import PromptSource
from orderproof.prompts.stream import PromptStream
from orderproof.prompts.tokenization import Tokenizer
from orderproof.signals.served_model import ServedModel

SPOOL_FILE = "prompts.jsonl"  # in the checkpoint's folder: what came of a stream
STREAMED_FILE = "streamed.jsonl"  # in data/<job>: the prompts of outputs.parquet, where they came as a stream


class Coming:
    """The prompts of a source that are not in order yet."""

    def __init__(
        self,
        job: Job,
        source: PromptSource | PromptStream,
        checkpoint: GrowingCheckpoint,
        tokenizer: Tokenizer,
        in_tokens: bool,
    ) -> None:
        self.job, self.source, self.checkpoint = job, source, checkpoint
        self.tokenizer, self.in_tokens = tokenizer, in_tokens

    def has_more(self) -> bool:
        """Whether there is a prompt that is not in order yet; waits for it."""
        return self.source.has_more(self.checkpoint.windows.prompts)

    def windows(self, starving: Callable[[], bool]) -> Iterator[NDArray[np.int64]]:
        """Places in the order of sending, a window at a time.

        Args:
            starving: whether the engine has less to do than it could.
        """
        made = self.checkpoint.windows
        assert made.spec.window is not None
        for rows in self.source.windows(made.prompts, made.spec.window, starving):
            yield self.checkpoint.extend(self._view(rows))

    def _view(self, rows: range) -> PromptView:
        prompts = self.source.read(rows)
        counts = [len(ids) for ids in self._token_ids(prompts)] if self.in_tokens else None
        return PromptView(
            ids=[prompt.id for prompt in prompts],
            labels=[prompt.label for prompt in prompts],
            text=lambda i: self._text(prompts[i]),
            lines=[prompt.line for prompt in prompts],
            token_counts=None if counts is None else np.array(counts, np.int64),
            source=str(self.source.path),
            first=rows.start,
            token_ids=lambda places: self._token_ids([prompts[int(i)] for i in places]),
            served=ServedModel.of_job(self.job),
            own_samples=lambda places: [own_samples(prompts[int(i)].sampling) for i in places],
        )

    def _text(self, prompt: Prompt) -> str:
        """Nothing where it cannot be rendered: that is told when its turn to be sent comes."""
        with contextlib.suppress(PromptError):
            return self.tokenizer.render(prompt)
        return ""

    def _token_ids(self, prompts: list[Prompt]) -> list[list[int]]:
        return [[] if isinstance(ids, PromptError) else ids for ids in token_ids_of(self.tokenizer, prompts)]


def token_ids_of(tokenizer: Tokenizer, prompts: list[Prompt]) -> list[list[int] | PromptError]:
    """Of each prompt; or why it cannot be rendered, which is no reason to hold up the others."""
    try:
        return list(tokenizer(prompts)[1])
    except PromptError as error:
        if len(prompts) == 1:
            return [error]
    return [ids for prompt in prompts for ids in token_ids_of(tokenizer, [prompt])]


def keep_streamed(job: Job, spool: Path) -> Job:
    """Put what came of a stream beside the outputs that were made of it. Returns the job with these prompts.

    Raises:
        CheckpointError: it cannot be written.
    """
    kept = job.data_dir / STREAMED_FILE
    beside = kept.with_name(f".{kept.name}.part")
    try:
        beside.unlink(missing_ok=True)
        try:
            os.link(spool, beside)
        except OSError:  # a file system without links
            shutil.copyfile(spool, beside)
        os.replace(beside, kept)
        beside.unlink(missing_ok=True)  # two names of one file, of which an earlier run made one, are not replaced
        sync_folder(kept.parent)
    except OSError as error:
        raise CheckpointError(
            f"{kept} cannot be written: {error.strerror}. The prompts are kept in {spool}, and all results: run the "
            "same command again to go on"
        ) from None
    return job.model_copy(update={"prompts": str(kept.relative_to(job.root))})
