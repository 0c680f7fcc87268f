"""The published gains compared with those simulated from published statistics and constants.

    python infra/bench/published_table.py

Every constant is fixed once, before the first cell, from: the model's shape; three statistics of its routing; 2.9 µs
per extra expert; shuffled throughput at batch 16 and 32. Not published, and assumed: prompts of 100
tokens, which cost only the experts they read; base beyond batch 32 as at 32; on two devices the base of one.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from published import (
    DOMAINS,
    GPT_OSS_EVEN,
    GPT_OSS_UNEVEN,
    QWEN3_EXPERT_MS,
    QWEN3_FAR,
    QWEN3_NEAR,
    QWEN3_ROUTING,
    QWEN3_SHUFFLED_TOK_S,
    SEED,
    costs_from_throughput,
)
from synthetic import RoutingShape, SyntheticRoutes

from orderproof.routing.replay import SimRequest
from orderproof.routing.simulate import EngineShape, simulate_pass
from orderproof.routing.step_costs import StepCosts

PROMPTS, TOKENS = 768, 256
PROMPT_TOKENS, BATCHED_TOKENS = 100, 8192
SHUFFLES = 2


@dataclass(frozen=True)
class Cell:
    """One published gain over shuffled, a fraction."""

    what: str
    batch: int
    published: float
    window: int | None = None
    devices: int = 1


QWEN3_CELLS = (
    Cell("label order", 16, 0.135),
    Cell("label order", 32, 0.173),
    Cell("label order", 64, 0.126),
    Cell("label order", 128, 0.116),
    Cell("within windows of 128", 32, 0.117, window=128),
    Cell("within windows of 256", 32, 0.148, window=256),
    Cell("within a window of 768", 32, 0.173, window=768),
    Cell("label order, 2 devices", 64, 0.129, devices=2),
    Cell("label order, 2 devices", 128, 0.087, devices=2),
)
GPT_OSS_CELLS = tuple(
    Cell("label order", batch, gain) for batch, gain in ((16, 0.069), (32, 0.122), (64, 0.106), (128, 0.091))
)


class Study:
    """768 prompts of six domains, as many of each, in a shuffled file, on one model and machine."""

    def __init__(self, routing: RoutingShape, costs: StepCosts) -> None:
        self._costs = costs
        self._source = SyntheticRoutes(routing, lambda number: number % DOMAINS, SEED)
        self._file = self._shuffle(SEED)

    def gain(self, cell: Cell) -> float:
        """Predicted gain of a cell's order over the mean of a few shuffles."""
        shuffled = self._shuffled_ms(cell.batch, cell.devices)
        return shuffled / self._sorted_ms(cell.batch, cell.devices, cell.window or PROMPTS) - 1

    @cache  # noqa: B019  (a study lives as long as its table)
    def _shuffled_ms(self, batch: int, devices: int) -> float:
        return float(np.mean([self._wall_ms(self._shuffle(SEED + k), batch, devices) for k in range(1, SHUFFLES + 1)]))

    @cache  # noqa: B019
    def _sorted_ms(self, batch: int, devices: int, window: int) -> float:
        by_domain = np.lexsort((self._file % DOMAINS, np.arange(PROMPTS) // window))
        return self._wall_ms(self._file[by_domain], batch, devices)

    def _wall_ms(self, order: NDArray[np.int64], batch: int, devices: int) -> float:
        loads = (SimRequest(number, PROMPT_TOKENS, TOKENS) for number in order.tolist())
        return 1000 * simulate_pass(loads, self._source, EngineShape(batch, BATCHED_TOKENS, devices)).wall_s(
            self._costs
        )

    @staticmethod
    def _shuffle(seed: int) -> NDArray[np.int64]:
        return np.random.default_rng(seed).permutation(PROMPTS)


def qwen3(routing: RoutingShape = QWEN3_ROUTING) -> Study:
    """Qwen3-30B-A3B with the published constants."""
    return Study(routing, costs_from_throughput(routing, QWEN3_EXPERT_MS, QWEN3_SHUFFLED_TOK_S, "published"))


def experts_alone(routing: RoutingShape) -> Study:
    """A model whose steps take nothing but their experts: no gain can be larger."""
    return Study(routing, StepCosts((1,), (0.0,), 1.0, "nothing but experts"))


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print("\n".join(lines()))


def lines() -> Iterator[str]:
    """The two tables."""
    yield "Qwen3-30B-A3B; in brackets: with 19 and 25 % fewer experts, the ends of the published range"
    middle, near, far = qwen3(), qwen3(QWEN3_NEAR), qwen3(QWEN3_FAR)
    for cell in QWEN3_CELLS:
        gain, low, high = middle.gain(cell), near.gain(cell), far.gain(cell)
        yield (
            f"{cell.what:24} batch {cell.batch:3d}   published {cell.published:+6.1%}   predicted {gain:+6.1%} "
            f"[{low:+6.1%} {high:+6.1%}]   off by {100 * (gain - cell.published):+5.1f} points"
        )
    yield ""
    yield "gpt-oss-120b; cost per expert and throughput are not published, so: if a step were nothing but its experts"
    even, uneven = experts_alone(GPT_OSS_EVEN), experts_alone(GPT_OSS_UNEVEN)
    for cell in GPT_OSS_CELLS:
        yield (
            f"{cell.what:24} batch {cell.batch:3d}   published {cell.published:+6.1%}   "
            f"at most {even.gain(cell):+6.1%} (experts evenly used) or {uneven.gain(cell):+6.1%} (unevenly)"
        )


if __name__ == "__main__":
    main()
