"""A checkpoint whose order is made while its prompts are sent: of a stream, or of a file that is ordered in windows.

In: a key, a way to order, windows of prompts as they come, and results. Out: as checkpoint.py; and the same order after
any crash, because a window's order is on disk before its first prompt is sent. Knows nothing of engines.

    windows.npz    where the fold over windows stands; order.i8 holds the windows so far
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderproof.generate.checkpoint import (
    ORDER_FILE,
    Checkpoint,
    CheckpointError,
    begin_folder,
    kept_key,
    unusable,
    write_key,
)
from orderproof.generate.result import ABSENT
from orderproof.job.spec import OrderSpec
from orderproof.orders.order import Order, OrderError
from orderproof.orders.view import PromptView
from orderproof.orders.window import Windows, read_windows, write_windows

WINDOWS_FILE = "windows.npz"
TOLD_LATER = ("order", "dataset_md5", "prompts")  # parts of the key that only the whole order has


class GrowingCheckpoint(Checkpoint):
    """The results so far of the prompts that were put in order so far."""

    def __init__(self, folder: Path, spec: OrderSpec) -> None:
        """Use `open_growing`."""
        try:
            self.windows = (
                read_windows(folder / WINDOWS_FILE, spec) if (folder / WINDOWS_FILE).exists() else Windows(spec)
            )
            os.truncate(folder / ORDER_FILE, 8 * self.windows.prompts)  # a window that a crash tore is made again
            order = self._so_far(folder)
        except (FileNotFoundError, ValueError, KeyError, OrderError) as error:
            raise CheckpointError(
                f"{folder}: {WINDOWS_FILE} or {ORDER_FILE} is damaged ({error}), so the order cannot go on. Begin anew "
                "with --restart, which moves the checkpoint aside"
            ) from None
        except OSError as error:
            raise unusable(folder, error) from None
        super().__init__(folder, order)
        self._roomy_state, self._roomy_offsets = self.state, self._offsets

    def extend(self, window: PromptView) -> NDArray[np.int64]:
        """Put the next prompts in order.

        Returns:
            int64[N]: their places, in the order of sending.

        Raises:
            CheckpointError: it cannot be written, or is closed.
            OrderError, SignalError: these prompts cannot be ordered so.
        """
        places = self.windows.prompts + self.windows.add(window)
        with self._writing:
            self._refuse_if_closed()
            try:
                self._keep(places)
            except OSError as error:
                raise unusable(self.folder, error) from None
            self._make_room(self.windows.prompts)
        return places

    def end(self, dataset_md5: str) -> Mapping[str, Any]:
        """Say that there are no more prompts: from now on this is the checkpoint of a whole order. Returns its key."""
        made = self.windows
        sent = self._so_far(self.folder).permutation
        self.order = Order(sent, made.spec.method, made.parameters, made.seeds, dataset_md5)
        whole = {"order": self.order.record().model_dump(), "dataset_md5": dataset_md5, "prompts": len(sent)}
        key = {**(kept_key(self.folder) or {}), **whole}
        try:
            write_key(self.folder, key)
        except OSError as error:
            raise unusable(self.folder, error) from None
        return key

    def _keep(self, places: NDArray[np.int64]) -> None:
        """The order first: what of it the windows do not count is made again."""
        with open(self.folder / ORDER_FILE, "ab") as sink:
            sink.write(places.astype("<i8").tobytes())
            sink.flush()
            os.fsync(sink.fileno())
        write_windows(self.folder / WINDOWS_FILE, self.windows)

    def _so_far(self, folder: Path) -> Order:
        """A whole order too: windows never mix."""
        sent = np.fromfile(folder / ORDER_FILE, "<i8").astype(np.int64)
        if len(sent) != self.windows.prompts:
            raise ValueError(f"{len(sent)} of {self.windows.prompts} places are there")
        return Order(sent, self.windows.spec.method)

    def _make_room(self, prompts: int) -> None:
        """Twice as much each time it is needed, so that a million windows cost no more than their sum."""
        if prompts > len(self._roomy_state):
            self._roomy_state = _grown(self._roomy_state, 2 * prompts, ABSENT)
            self._roomy_offsets = _grown(self._roomy_offsets, 2 * prompts, -1)
        self.state, self._offsets = self._roomy_state[:prompts], self._roomy_offsets[:prompts]


def open_growing(folder: Path, key: Mapping[str, Any], spec: OrderSpec, *, restart: bool = False) -> GrowingCheckpoint:
    """Go on with a folder's checkpoint if it has this key and way to order, or begin one.

    Raises:
        CheckpointError: as `open_checkpoint`; or what it needs to go on is damaged.
    """
    begin_folder(
        folder, {**key, "windows": spec.model_dump()}, np.empty(0, np.int64), told_later=TOLD_LATER, restart=restart
    )
    return GrowingCheckpoint(folder, spec)


def _grown(array: NDArray[Any], size: int, fill: int) -> NDArray[Any]:
    room = np.full(size, fill, array.dtype)
    room[: len(array)] = array
    return room
