"""An order made window by window: for jobs whose prompts must not wait for each other.

In: a way to order, and windows of prompts as they come. Out: each window's order, made from that window and a small
carried state alone, so that a file, a pipe and a growing file give the same order and need the same memory. Knows
nothing of how ranks come about, nor of files or engines.
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
from orderproof.orders.ranking import NOTHING, Ranking, WindowState
from orderproof.orders.view import PromptView
from orderproof.signals.registry import Progress


class Windows:
    """A fold: `add` takes the next window and says in which order its prompts are sent.

    A file that is ordered as a whole is one window.
    """

    def __init__(self, spec: OrderSpec, carried: WindowState = NOTHING) -> None:
        self.spec, self.carried = spec, carried
        self.prompts = 0  # in all windows so far
        self.parameters: Mapping[str, Any] = {}  # once there was a window: what it takes to make the order again
        self.seeds: Mapping[str, int] = {}

    def add(self, prompts: PromptView, progress: Progress | None = None) -> NDArray[np.int64]:
        """Sort a window's prompts by rank, stably, beginning where the window before ended.

        Returns:
            int64[N]: the k-th to be sent is the [k]-th of the window.

        Raises:
            OrderError: these prompts cannot be ordered so; the first to blame is named.
            SignalError: the embedding model cannot be loaded.
        """
        rank = import_module(f"orderproof.orders.{self.spec.method}").rank
        ranking: Ranking = rank(prompts, self.spec, progress, self.carried)
        follows = self.carried.last if ranking.follows is None else ranking.follows
        sent = _sorted(ranking.ranks, follows)
        window = {} if self.spec.window is None else {"window": self.spec.window}
        self.parameters, self.seeds = {**ranking.parameters, **window}, ranking.seeds
        last = int(ranking.ranks[sent[-1]]) if len(sent) else self.carried.last
        self.carried = WindowState(self.carried.windows + 1, last, ranking.keeps)
        self.prompts += len(sent)
        return sent


def _sorted(ranks: NDArray[np.int64], follows: int | None) -> NDArray[np.int64]:
    """By rank, low ones first; the other way round where the window then begins nearer to the rank that it follows.

    So where two windows meet the same or similar prompts touch, as they do inside a window.
    """
    turned = (
        follows is not None and len(ranks) > 0 and abs(int(ranks.max()) - follows) < abs(int(ranks.min()) - follows)
    )
    return np.argsort(-ranks if turned else ranks, kind="stable")


def write_windows(path: Path, windows: Windows) -> None:
    """Keep where a fold stands, atomically, for a later process to go on with."""
    carried = windows.carried
    stands = {"prompts": windows.prompts, "windows": carried.windows, "last": carried.last,
              "parameters": dict(windows.parameters), "seeds": dict(windows.seeds)}  # fmt: skip
    own = {f"own.{name}": array for name, array in carried.arrays.items()}
    with atomic_file(path) as sink:
        np.savez(sink, allow_pickle=False, stands=np.array(json.dumps(stands)), **own)


def read_windows(path: Path, spec: OrderSpec) -> Windows:
    """What `write_windows` wrote. Raises OSError, ValueError or KeyError where it is not readable."""
    try:
        with np.load(path, allow_pickle=False) as kept:
            stands = json.loads(str(kept["stands"]))
            own = {name.removeprefix("own."): kept[name] for name in kept.files if name.startswith("own.")}
    except (EOFError, zipfile.BadZipFile) as error:
        raise ValueError(str(error)) from None
    windows = Windows(spec, WindowState(stands["windows"], stands["last"], own))
    windows.prompts, windows.parameters, windows.seeds = stands["prompts"], stands["parameters"], stands["seeds"]
    return windows
