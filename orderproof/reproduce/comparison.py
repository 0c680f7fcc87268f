"""Compare two files of outputs, row by row, and their scores if there is a scorer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict

from orderproof.outputs.disagreement import Float64, Int64
from orderproof.outputs.divergence import SHORTLIST, first_differences, similarity, summary
from orderproof.reproduce.join_outputs import JoinedOutputs, join_outputs, samples_of

MOST_DIFFERENT = 10
CURVE_POINTS = 200
FAILED = "failed"

# Ids and texts (None: failed) → scores 0 to 1, NaN if there is nothing to score.
Scorer = Callable[[Sequence[str], Sequence[str | None]], Float64]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class OutputDifference(_Frozen):
    """An output whose tokens differ. Texts only if they may be shown."""

    id: str
    sample: int
    first_divergence: int  # index of the first token that differs; the shorter length if one begins with the other
    similarity: float  # of the tokens, 0 to 1
    then: str | None
    now: str | None


class OutputComparison(_Frozen):
    """How outputs that were generated twice differ. All counts are numbers of outputs."""

    outputs: int  # in both files
    only_then: int  # only in the baseline
    only_now: int
    failed_then: int  # of `outputs`
    failed_now: int
    compared: int  # neither failed then nor now
    identical: int  # of `compared`: the same tokens, text and finish reason
    diverged: int  # of `compared`: other tokens
    altered: int  # of `compared`: the same tokens, but another text or finish reason
    finish_changes: dict[str, int]  # count by change, such as "stop → length"
    first_divergence: dict[str, float | None]  # of the diverged outputs: share_within_8, q25, median, q75
    same_until: tuple[tuple[int, float], ...]  # (token, share of `compared` that is equal up to it)
    most_different: tuple[OutputDifference, ...]

    @property
    def all_identical(self) -> bool:
        """Every output of either file is the same in both, and none failed."""
        return self.identical == self.outputs + self.only_then + self.only_now

    @property
    def reproduced(self) -> bool:
        """Nothing differs; requests that failed in the baseline failed again."""
        same = self.compared == self.identical and not self.finish_changes
        return same and not self.only_then and not self.only_now

    @property
    def identical_share(self) -> float | None:
        return self.identical / self.compared if self.compared else None


@dataclass(frozen=True)
class PairedScores:
    """Scores of the outputs that were scored both times; row i of each array is the same output."""

    ids: tuple[str, ...]
    then: Float64
    now: Float64


def compare_outputs(
    then: Path, now: Path, *, scorer: Scorer | None = None, texts: bool = False, k: int = MOST_DIFFERENT
) -> tuple[OutputComparison, PairedScores | None]:
    """Compare two files of outputs.

    Args:
        texts: whether the result may contain the texts of the most different outputs.
        k: how many of the most different outputs to name, least similar first, among those that diverge earliest.

    Raises:
        OSError, pa.ArrowException: a file cannot be read.
    """
    tally = _Tally(k, texts, scorer)
    joined = join_outputs(then, now)
    for before, after in joined.pairs():
        tally.add(before, after)
    return tally.result(joined), tally.scored()


class _Tally:
    """Counts, and the few outputs to name."""

    def __init__(self, k: int, texts: bool, scorer: Scorer | None) -> None:
        self.k, self.texts, self.scorer = k, texts, scorer
        self.outputs = self.failed_then = self.failed_now = self.identical = self.altered = 0
        self.finish_changes: dict[str, int] = {}
        self.divergences: list[Int64] = []  # first different token of each compared output; -1: none
        self.earliest: list[tuple[int, pa.Table, pa.Table]] = []  # (first divergence, row then, row now)
        self.ids: list[str] = []
        self.scores: list[tuple[Float64, Float64]] = []

    def add(self, then: pa.Table, now: pa.Table) -> None:
        finished = [table["finish_reason"].combine_chunks() for table in (then, now)]
        failed = [pc.equal(column, FAILED).to_numpy(zero_copy_only=False) for column in finished]
        self.outputs += len(then)
        self.failed_then += int(failed[0].sum())
        self.failed_now += int(failed[1].sum())
        other_finish = pc.not_equal(*finished).to_numpy(zero_copy_only=False)
        for row in np.flatnonzero(other_finish).tolist():
            change = f"{finished[0][row].as_py()} → {finished[1][row].as_py()}"
            self.finish_changes[change] = self.finish_changes.get(change, 0) + 1
        rows = np.flatnonzero(~failed[0] & ~failed[1])
        self._compare(then.take(rows), now.take(rows), other_finish[rows])
        self._score(then, now)

    def _compare(self, then: pa.Table, now: pa.Table, other_finish: np.ndarray) -> None:
        divergence = first_differences(then["token_ids"], now["token_ids"])
        other_text = pc.not_equal(then["text"], now["text"]).to_numpy(zero_copy_only=False)
        same_tokens = divergence < 0
        self.divergences.append(divergence)
        self.identical += int((same_tokens & ~other_text & ~other_finish).sum())
        self.altered += int((same_tokens & (other_text | other_finish)).sum())
        different = np.flatnonzero(~same_tokens)
        earliest = different[np.argsort(divergence[different], kind="stable")][: SHORTLIST * self.k]
        # copies: a slice would keep its whole batch in memory
        self.earliest += [(int(divergence[row]), then.take([row]), now.take([row])) for row in earliest.tolist()]
        self.earliest = sorted(self.earliest, key=lambda entry: entry[0])[: SHORTLIST * self.k]

    def _score(self, then: pa.Table, now: pa.Table) -> None:
        if self.scorer is None:
            return
        ids = then["id"].to_pylist()
        before, after = (self.scorer(ids, table["text"].to_pylist()) for table in (then, now))
        both = ~np.isnan(before) & ~np.isnan(after)
        self.ids += [ids[row] for row in np.flatnonzero(both)]
        self.scores.append((before[both], after[both]))

    def scored(self) -> PairedScores | None:
        if not self.ids:
            return None
        before, after = (np.concatenate(scores) for scores in zip(*self.scores, strict=True))
        return PairedScores(tuple(self.ids), before, after)

    def result(self, joined: JoinedOutputs) -> OutputComparison:
        divergences = np.concatenate([np.empty(0, np.int64), *self.divergences])
        statistics = summary([divergences])
        return OutputComparison(
            outputs=self.outputs,
            only_then=joined.only_then,
            only_now=joined.only_now,
            failed_then=self.failed_then,
            failed_now=self.failed_now,
            compared=len(divergences),
            identical=self.identical,
            diverged=int((divergences >= 0).sum()),
            altered=self.altered,
            finish_changes=dict(sorted(self.finish_changes.items())),
            first_divergence={name: statistics[name] for name in statistics if name not in ("pairs", "diverged")},
            same_until=_same_until(divergences),
            most_different=self._most_different(),
        )

    def _most_different(self) -> tuple[OutputDifference, ...]:
        outputs = [self._difference(*entry) for entry in self.earliest]
        return tuple(sorted(outputs, key=lambda output: (output.similarity, output.first_divergence))[: self.k])

    def _difference(self, divergence: int, then: pa.Table, now: pa.Table) -> OutputDifference:
        tokens = [table["token_ids"][0].as_py() for table in (then, now)]
        texts = [table["text"][0].as_py() if self.texts else None for table in (then, now)]
        sample = int(samples_of(then)[0].as_py())
        return OutputDifference(
            id=then["id"][0].as_py(),
            sample=sample,
            first_divergence=divergence,
            similarity=similarity(*tokens),
            then=texts[0],
            now=texts[1],
        )


def _same_until(divergences: Int64) -> tuple[tuple[int, float], ...]:
    """(token t, share of outputs that are equal in all tokens before t), for at most CURVE_POINTS tokens."""
    diverged = np.sort(divergences[divergences >= 0])
    if not len(diverged):
        return ()
    tokens = np.unique(np.linspace(0, diverged[-1] + 1, CURVE_POINTS).round().astype(np.int64))
    shares = 1 - np.searchsorted(diverged, tokens) / len(divergences)
    return tuple(zip(tokens.tolist(), shares.tolist(), strict=True))
