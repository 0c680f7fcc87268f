"""A checkpoint whose order is made while its prompts are sent: of a stream, or of a file that is ordered in windows.

A window's order is on disk before its first prompt is sent, so a resumed run has the same order.

    windows.npz    the state of the ordering after the last window; order.i8 holds the windows so far
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderproof.generate.checkpoint import Checkpoint
from orderproof.generate.checkpoint_folder import (
    ORDER_FILE,
    CheckpointError,
    cannot_write,
    prepare_folder,
    read_key,
    write_key,
)
from orderproof.job.spec import OrderSpec
from orderproof.orders.order import Order, OrderError
from orderproof.orders.view import PromptView
from orderproof.orders.window import Windows, read_windows, write_windows

WINDOWS_FILE = "windows.npz"
KNOWN_AT_END = ("order", "dataset_md5", "prompts")  # parts of the key


class GrowingCheckpoint(Checkpoint):
    """The results so far of the prompts that have an order so far."""

    def __init__(self, folder: Path, spec: OrderSpec) -> None:
        """Use `open_growing`."""
        try:
            self.windows = (
                read_windows(folder / WINDOWS_FILE, spec) if (folder / WINDOWS_FILE).exists() else Windows(spec)
            )
            os.truncate(folder / ORDER_FILE, 8 * self.windows.prompts)  # a window that a crash tore is made again
            order = Order(self._read_permutation(folder), spec.method)
        except (FileNotFoundError, ValueError, KeyError, OrderError) as error:
            raise CheckpointError(
                f"{folder}: {WINDOWS_FILE} or {ORDER_FILE} is damaged ({error}), so the run cannot resume. Use "
                "--restart to begin again: the checkpoint is moved aside"
            ) from None
        except OSError as error:
            raise cannot_write(folder, error) from None
        super().__init__(folder, order)

    def extend(self, window: PromptView) -> NDArray[np.int64]:
        """Put the next prompts in order.

        Returns:
            int64[N]: their places, in the order of sending.

        Raises:
            CheckpointError: it cannot be written, or is closed.
            OrderError, SignalError: these prompts cannot be ordered this way.
        """
        places = self.windows.prompts + self.windows.add(window)
        with self.results.writing():
            try:
                self._write_window(places)
            except OSError as error:
                raise cannot_write(self.folder, error) from None
            self.results.grow(self.windows.prompts)
        return places

    def end(self, dataset_md5: str) -> Mapping[str, Any]:
        """Complete the order: there are no more prompts. Returns the key with it."""
        windows, permutation = self.windows, self._read_permutation(self.folder)
        self.order = Order(permutation, windows.spec.method, windows.parameters, windows.seeds, dataset_md5)
        added = {"order": self.order.record().model_dump(), "dataset_md5": dataset_md5, "prompts": len(permutation)}
        key = {**(read_key(self.folder) or {}), **added}
        try:
            write_key(self.folder, key)
        except OSError as error:
            raise cannot_write(self.folder, error) from None
        return key

    def _write_window(self, places: NDArray[np.int64]) -> None:
        """The order first: what the windows do not count of it is made again."""
        with open(self.folder / ORDER_FILE, "ab") as sink:
            sink.write(places.astype("<i8").tobytes())
            sink.flush()
            os.fsync(sink.fileno())
        write_windows(self.folder / WINDOWS_FILE, self.windows)

    def _read_permutation(self, folder: Path) -> NDArray[np.int64]:
        """int64[prompts so far]: a permutation too, because windows never mix."""
        permutation: NDArray[np.int64] = np.fromfile(folder / ORDER_FILE, "<i8").astype(np.int64)
        if len(permutation) != self.windows.prompts:
            raise ValueError(f"{len(permutation)} of {self.windows.prompts} places are there")
        return permutation


def open_growing(folder: Path, key: Mapping[str, Any], spec: OrderSpec, *, restart: bool = False) -> GrowingCheckpoint:
    """Resume a folder's checkpoint if it has this key and way to order, or begin one.

    Raises:
        CheckpointError: as `open_checkpoint`; or what it needs to resume is damaged.
    """
    key = {**key, "windows": spec.model_dump()}
    prepare_folder(folder, key, np.empty(0, np.int64), known_at_end=KNOWN_AT_END, restart=restart)
    return GrowingCheckpoint(folder, spec)
