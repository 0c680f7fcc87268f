"""Looks: the planned numbers of blocks at which a verdict may be given, checked in one place.

In: numbers of blocks. Out: the same as a tuple, or a ValueError that says what is wrong. Knows no job and no rule.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated

from pydantic import AfterValidator, Field

# Of the last look. 2**-4 is above the sign-flip test's limit, so with four blocks nothing could ever be promoted; its
# exact count sorts 2**(n/2) sums.
FEWEST_BLOCKS, MOST_BLOCKS = 5, 40


def _possible(looks: tuple[int, ...]) -> tuple[int, ...]:
    if not looks or looks[0] < 3 or any(b <= a for a, b in pairwise(looks)):
        raise ValueError("looks must be increasing numbers of blocks, the first at least 3")
    if not FEWEST_BLOCKS <= looks[-1] <= MOST_BLOCKS:
        raise ValueError(f"the last look must be at {FEWEST_BLOCKS} to {MOST_BLOCKS} blocks")
    return looks


# Not strict, because YAML and JSON have lists and no tuples; the numbers in it are as strict as the model around it.
Looks = Annotated[tuple[int, ...], Field(strict=False), AfterValidator(_possible)]
