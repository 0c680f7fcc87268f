"""An order made window by window, for jobs whose prompts must not wait for each other.

Each window's order is made from that window and a small state alone. So a file, a pipe and a growing file give the same
order and need the same memory.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderproof.job.files import atomic_file
from orderproof.job.spec import OrderSpec
from orderproof.orders.ranking import FIRST_WINDOW, Ranking, WindowState
from orderproof.orders.view import PromptView

ARRAY_PREFIX = "state."  # of the names of a state's arrays in its file


class Windows:
    """Orders one window of prompts after the other. A file that is ordered as a whole is one window."""

    def __init__(self, spec: OrderSpec, state: WindowState = FIRST_WINDOW) -> None:
        self.spec, self.state = spec, state
        self.prompts = 0  # in all windows so far
        self.parameters: Mapping[str, Any] = {}  # those of the last window: what is needed to make the order again
        self.seeds: Mapping[str, int] = {}

    def add(self, prompts: PromptView) -> NDArray[np.int64]:
        """Sort the next window's prompts by rank, stably, beginning where the previous window ended.

        Returns:
            int64[N]: the k-th prompt to send is the [k]-th of the window.

        Raises:
            OrderError: these prompts cannot be ordered in this way; names the first one at fault.
            SignalError: the signal cannot be computed for them.
        """
        rank = import_module(f"orderproof.orders.{self.spec.method}").rank
        ranking: Ranking = rank(prompts, self.spec, self.state)
        previous_rank = self.state.last_rank if ranking.previous_rank is None else ranking.previous_rank
        permutation = _sort(ranking.ranks, previous_rank)
        window = {} if self.spec.window is None else {"window": self.spec.window}
        self.parameters, self.seeds = {**ranking.parameters, **window}, ranking.seeds
        last_rank = int(ranking.ranks[permutation[-1]]) if len(permutation) else self.state.last_rank
        self.state = WindowState(self.state.windows + 1, last_rank, ranking.next_state)
        self.prompts += len(permutation)
        return permutation


def _sort(ranks: NDArray[np.int64], previous_rank: int | None) -> NDArray[np.int64]:
    """Sort by ascending rank, or by descending rank where the window then begins nearer to the previous window's end.

    So equal or similar prompts are neighbours across the border of two windows, as they are within one.
    """
    descending = (
        previous_rank is not None
        and len(ranks) > 0
        and abs(int(ranks.max()) - previous_rank) < abs(int(ranks.min()) - previous_rank)
    )
    return np.argsort(-ranks if descending else ranks, kind="stable")


def write_windows(path: Path, windows: Windows) -> None:
    """Write the state after the last window, atomically, so that a later process can continue."""
    state = windows.state
    record = {
        "prompts": windows.prompts,
        "windows": state.windows,
        "last_rank": state.last_rank,
        "parameters": dict(windows.parameters),
        "seeds": dict(windows.seeds),
    }
    arrays = {f"{ARRAY_PREFIX}{name}": array for name, array in state.arrays.items()}
    with atomic_file(path) as sink:
        np.savez(sink, allow_pickle=False, record=np.array(json.dumps(record)), **arrays)


def read_windows(path: Path, spec: OrderSpec) -> Windows:
    """Read what `write_windows` wrote. Raises OSError, ValueError or KeyError if the file is not readable."""
    try:
        with np.load(path, allow_pickle=False) as file:
            record = json.loads(str(file["record"]))
            names = [name for name in file.files if name.startswith(ARRAY_PREFIX)]
            arrays = {name.removeprefix(ARRAY_PREFIX): file[name] for name in names}
    except (EOFError, zipfile.BadZipFile) as error:
        raise ValueError(str(error)) from None
    windows = Windows(spec, WindowState(record["windows"], record["last_rank"], arrays))
    windows.prompts, windows.parameters, windows.seeds = record["prompts"], record["parameters"], record["seeds"]
    return windows
