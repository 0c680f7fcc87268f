"""Slices that were timed on a real engine: m128, m64 and m32 (tests/measure/traces), named after their prompts a slice.

Two shared CPU cores, the demo model, 768 prompts of six domains, 48 tokens each, 16 seats. Sorted slices (S) and
shuffled ones (C) alternate, a coin decided which came first.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderproof.measure.estimator import SliceTable

FOLDER = Path(__file__).parent.parent / "measure" / "traces"
NAMES = ("m128", "m64", "m32")
PROMPTS = 768

Floats = NDArray[np.float64]


@cache
def read_trace(name: str) -> tuple[dict[str, Any], ...]:
    """The slices in the order of time."""
    return tuple(json.loads(line) for line in (FOLDER / f"{name}.jsonl").read_text().splitlines())


def table_of(name: str) -> SliceTable:
    """The trace as blocks of pairs, work in requests."""
    slices = read_trace(name)
    strata = PROMPTS // slices[0]["m"]
    blocks = slices[-1]["block"] + 1
    seconds = {arm: np.zeros((blocks, strata)) for arm in "SC"}
    first = np.zeros((blocks, strata))
    for earlier, later in zip(slices[::2], slices[1::2], strict=True):
        place = next((part["block"], part["slice"]) for part in (earlier, later) if part["arm"] == "S")
        first[place] = 1 if earlier["arm"] == "S" else -1
        for part in (earlier, later):
            seconds[part["arm"]][place] = part["wall"]
    work = np.full((blocks, strata), float(slices[0]["m"]))
    return SliceTable(seconds["S"], seconds["C"], work, work, first)


@cache
def noise_of(name: str) -> Floats:
    """Log seconds in the order of time, without the effects of arm, stratum and prompt tokens: float64[slices]."""
    slices = read_trace(name)
    labels = sorted({part["slice"] for part in slices if part["arm"] == "S"})
    columns = [[float(part["arm"] == "C") for part in slices], [part["ptok"] / part["m"] for part in slices]]
    columns += [[float(part["arm"] == "S" and part["slice"] == label) for part in slices] for label in labels]
    design = np.array(columns).T
    seconds = np.log([part["wall"] for part in slices])
    fitted = design @ np.linalg.lstsq(design, seconds, rcond=None)[0]
    return np.asarray(seconds - fitted)
