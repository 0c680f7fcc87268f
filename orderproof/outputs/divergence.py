"""Where two outputs of one prompt begin to differ, and which pairs of outputs differ most."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from orderproof.outputs.disagreement import Int64
from orderproof.outputs.passes import CANDIDATE, PassOutputs, arm_of_shuffles, rows_in_file_order
from orderproof.outputs.samples import join_samples

EARLY_TOKENS = 8
CHUNK_PROMPTS = 65_536  # whose tokens are compared at once
SHORTLIST = 20  # times k: so many that diverge earliest are compared completely, which takes quadratic time


@dataclass(frozen=True)
class DifferentOutputs:
    """One prompt on which the candidate's output differs from the control's."""

    prompt_id: str
    first_divergence: int  # index of the first token that differs; the shorter one's length if the other continues it
    similarity: float  # of the tokens, 0 to 1: difflib's ratio, 2·matches / (tokens of both)
    control: str
    candidate: str


def first_divergence(
    passes: Sequence[PassOutputs], ids: Sequence[str], read: Callable[[str], pa.Table]
) -> dict[str, dict[str, float | None]]:
    """Where outputs of shuffles first differ from each other ("aa") and from the candidate's ("ab").

    "aa" pairs each pass of the shuffled arm (without one, of the control) with the next, "ab" the passes of one place
    in their arms, which for whole blocks is one block. At most three passes' tokens are in memory.

    Args:
        passes: in time order.
        ids: the measured prompts in the file's order, as `PassOutputs.from_tokens` had them.
        read: pass id → its tokens table (`prompt_id`, `token_ids`).

    Returns: per kind of pair `pairs` (of passes), `diverged` (pairs of outputs that differ), `share_within_8` (the
        share of those that differ within the first 8 tokens) and `q25`, `median`, `q75` of the first differing token's
        index from 0; the last four are None where nothing differs.
    """
    shuffles = [p for p in passes if p.arm == arm_of_shuffles(passes)]
    candidates = [p for p in passes if p.arm == CANDIDATE]

    @lru_cache(maxsize=2)
    def tokens(pass_id: str) -> _Tokens:
        return _Tokens.of(pass_id, join_samples(pass_id, read(pass_id)), ids)

    def divergences(pairs: Iterable[tuple[PassOutputs, PassOutputs]]) -> list[Int64]:
        return [
            _divergences(tokens(a.pass_id), tokens(b.pass_id), np.flatnonzero(a.digests != b.digests)) for a, b in pairs
        ]

    return {
        "aa": summary(divergences(pairwise(shuffles))),
        "ab": summary(divergences(zip(shuffles, candidates, strict=False))),
    }


def first_differences(one: pa.ChunkedArray, other: pa.ChunkedArray) -> Int64:
    """Where outputs begin to differ, row by row of two columns of token lists (int32) of the same length.

    Returns: int64[rows]: index of the first token that differs; the shorter one's length if the other continues it; −1
        where they are equal.
    """
    rows = np.arange(len(one))
    return _divergences(_Tokens(one, rows), _Tokens(other, rows), rows)


def most_different(
    control: pa.Table, candidate: pa.Table, ids: Sequence[str], k: int = 10
) -> tuple[DifferentOutputs, ...]:
    """The k prompts whose outputs in two passes are least similar, least similar first; fewer if fewer differ.

    They are chosen among the outputs that diverge earliest, because comparing all pairs of a large file would take
    hours. Ties go to the earlier divergence, then to the file's order.

    Args:
        control, candidate: tokens tables of a pass each, with `prompt_id`, `token_ids` and `text`.
        ids: the measured prompts in the file's order.

    Raises:
        OutputsError: a pass that has not one output per prompt.
    """
    control, candidate = join_samples("control", control), join_samples("candidate", candidate)
    before, after = _Tokens.of("control", control, ids), _Tokens.of("candidate", candidate, ids)
    divergences = _divergences(before, after, np.arange(len(ids)))
    different = np.flatnonzero(divergences >= 0)
    shortlist = different[np.argsort(divergences[different], kind="stable")][: SHORTLIST * k]
    found = [
        DifferentOutputs(
            prompt_id=ids[prompt],
            first_divergence=int(divergences[prompt]),
            similarity=similarity(before.of_prompt(prompt), after.of_prompt(prompt)),
            control=control["text"][before.rows[prompt]].as_py(),
            candidate=candidate["text"][after.rows[prompt]].as_py(),
        )
        for prompt in shortlist.tolist()
    ]
    return tuple(sorted(found, key=lambda pair: (pair.similarity, pair.first_divergence))[:k])


@dataclass(frozen=True)
class _Tokens:
    """A pass's tokens as they lie in its table, and where each prompt's are."""

    lists: pa.ChunkedArray  # of int32
    rows: Int64  # [N]

    @classmethod
    def of(cls, pass_id: str, table: pa.Table, ids: Sequence[str]) -> _Tokens:
        return cls(table["token_ids"], rows_in_file_order(pass_id, table, ids))

    def of_prompt(self, prompt: int) -> list[int]:
        return list(self.lists[self.rows[prompt]].as_py())

    def of_prompts(self, prompts: Int64) -> tuple[NDArray[np.int32], Int64]:
        """Their tokens end to end, and int64[len(prompts) + 1] where each begins."""
        taken = self.lists.take(pa.array(self.rows[prompts])).combine_chunks()
        return taken.flatten().to_numpy(), np.concatenate([[0], np.cumsum(pc.list_value_length(taken).to_numpy())])


def _divergences(one: _Tokens, other: _Tokens, prompts: Int64) -> Int64:
    """int64[len(prompts)]: index of the first differing token, the shorter length if it begins the other; −1: equal."""
    chunks = [prompts[start : start + CHUNK_PROMPTS] for start in range(0, len(prompts), CHUNK_PROMPTS)]
    return np.concatenate(
        [np.empty(0, np.int64), *(_first_differences(*one.of_prompts(c), *other.of_prompts(c)) for c in chunks)]
    )


def _first_differences(a: NDArray[np.int32], a_starts: Int64, b: NDArray[np.int32], b_starts: Int64) -> Int64:
    lengths = np.stack([np.diff(a_starts), np.diff(b_starts)])
    common = lengths.min(axis=0)
    ends = np.cumsum(common)
    starts = ends - common
    within = np.arange(ends[-1]) - np.repeat(starts, common)  # index of each compared token in its own output
    differ = np.flatnonzero(
        a[np.repeat(a_starts[:-1], common) + within] != b[np.repeat(b_starts[:-1], common) + within]
    )
    differ = np.append(differ, ends[-1])  # so that a search past the last difference finds the end
    first = differ[np.searchsorted(differ, starts)]
    equal = lengths[0] == lengths[1]
    return np.where(first < ends, first - starts, np.where(equal, -1, common))


def summary(divergences: Sequence[Int64]) -> dict[str, float | None]:
    """The figures of `first_divergence` for pairs of passes, from −1 or the first differing token for each prompt."""
    found = np.concatenate([np.empty(0, np.int64), *divergences])
    found = found[found >= 0]
    quartiles = np.percentile(found, (25, 50, 75)).tolist() if len(found) else (None, None, None)
    return {
        "pairs": len(divergences),
        "diverged": len(found),
        f"share_within_{EARLY_TOKENS}": float(np.mean(found < EARLY_TOKENS)) if len(found) else None,
        **dict(zip(("q25", "median", "q75"), quartiles, strict=True)),
    }


def similarity(one: Sequence[int], other: Sequence[int]) -> float:
    """Of two outputs' tokens, 0 to 1: difflib's ratio, 2·matches / (tokens of both). Takes quadratic time."""
    return difflib.SequenceMatcher(None, one, other, autojunk=False).ratio()
