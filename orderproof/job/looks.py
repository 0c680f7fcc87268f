"""Looks: the planned numbers of blocks at which a verdict may be given, checked in one place."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated

from pydantic import AfterValidator, Field

FEWEST_BLOCKS, MOST_BLOCKS = 2, 64  # a single block has no spread; more than a job has time for


def _check_looks(looks: tuple[int, ...]) -> tuple[int, ...]:
    if not looks or any(b <= a for a, b in pairwise(looks)):
        raise ValueError("looks must be increasing numbers of blocks")
    if looks[0] < FEWEST_BLOCKS or looks[-1] > MOST_BLOCKS:
        raise ValueError(f"looks must be at {FEWEST_BLOCKS} to {MOST_BLOCKS} blocks")
    return looks


# Not strict, because YAML and JSON have lists and no tuples; the numbers in it are as strict as the model around it.
Looks = Annotated[tuple[int, ...], Field(strict=False), AfterValidator(_check_looks)]
