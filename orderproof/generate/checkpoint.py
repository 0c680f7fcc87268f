"""The checkpoint of an unfinished job: its results are on disk as soon as they exist, and a later run resumes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderproof.generate.checkpoint_folder import (
    RESULTS_FILE,
    CheckpointError,
    count_prompts,
    prepare_folder,
    remove_folder,
)
from orderproof.generate.result import Result
from orderproof.generate.results_file import HAS_OUTPUT, ResultsFile, count_outputs
from orderproof.generate.suspects import Suspects
from orderproof.orders.order import Order


class Checkpoint:
    """The results so far of N prompts. A context manager: leaving it keeps everything."""

    def __init__(self, folder: Path, order: Order) -> None:
        """Use `open_checkpoint`."""
        self.folder, self.order = folder, order
        self.results = ResultsFile(folder, len(order))
        self.suspects = Suspects(folder)
        self.count_resumed()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def states(self) -> NDArray[np.int8]:
        """int8[N], by place in the prompts file: the `State` of each prompt."""
        return self.results.states

    @property
    def done(self) -> NDArray[np.bool_]:
        """bool[N], by place: there is an output, so the prompt is not sent again."""
        done: NDArray[np.bool_] = HAS_OUTPUT[self.states]
        return done

    @property
    def pending(self) -> NDArray[np.int64]:
        """Places of the prompts that are still to be sent, in the order of sending."""
        settled = self.done
        settled[self.suspects.fatal] = True
        pending: NDArray[np.int64] = self.order.permutation[~settled[self.order.permutation]]
        return pending

    def count_resumed(self) -> None:
        """An engine starts: `resumed` becomes the number of prompts that have their output already."""
        self.resumed = int(self.done.sum())

    def append(self, result: Result) -> None:
        """Keep a result: as `ResultsFile.append`."""
        self.results.append(result)

    def read(self, place: int) -> Result | None:
        """The result of a prompt; None: none yet."""
        return self.results.read(place)

    def close(self) -> None:
        """Sync and close; the folder stays."""
        self.results.close()

    def discard(self) -> None:
        """Remove the folder, once its results are durable elsewhere.

        Raises:
            CheckpointError: it cannot be removed.
        """
        self.close()
        remove_folder(self.folder)


def open_checkpoint(folder: Path, key: Mapping[str, Any], order: Order, *, restart: bool = False) -> Checkpoint:
    """Resume a folder's checkpoint if it has this key, or begin one.

    Args:
        key: everything that decides an output, as JSON holds it; the order is added to it.
        restart: begin again; what is there is moved aside and never deleted.

    Raises:
        CheckpointError: the checkpoint there has another key (the differences are named), or cannot be written.
    """
    prepare_folder(folder, {**key, "order": order.record().model_dump()}, order.permutation, restart=restart)
    return Checkpoint(folder, order)


def count_done(folder: Path) -> tuple[int, int] | None:
    """Prompts with an output, and prompts in all, of a folder's checkpoint; None: no checkpoint. Changes nothing.

    Raises:
        CheckpointError: it cannot be read.
    """
    prompts = count_prompts(folder)
    if prompts is None:
        return None
    try:
        return count_outputs(folder / RESULTS_FILE, prompts), prompts
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be read: {error.strerror}") from None
