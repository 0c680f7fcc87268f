"""Two files of outputs in, how they differ out.

In: outputs.parquet as it was and as it was generated again. Out: `OutputsCompared`, and scores of both where outputs
can be scored. Rows are joined by rows.py. Knows nothing of jobs, engines, or of why outputs differ.
"""

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
from orderproof.reproduce.join_outputs import Joined, samples_of

MOST_DIFFERENT = 10
CURVE_POINTS = 200
FAILED = "failed"

# Ids and texts (null: failed) → scores 0 to 1, NaN where there is nothing to score.
Scorer = Callable[[Sequence[str], Sequence[str | None]], Float64]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Different(_Frozen):
    """One output that was generated otherwise. Texts only where they may be shown."""

    id: str
    sample: int
    first_divergence: int  # index of the first token that differs; the shorter one's length if it begins the other
    similarity: float  # of the tokens, 0 to 1
    then: str | None
    now: str | None


class OutputsCompared(_Frozen):
    """How outputs that were generated twice differ. Counts are of outputs."""

    outputs: int  # in both files
    only_then: int  # in the baseline alone
    only_now: int
    failed_then: int  # of `outputs`
    failed_now: int
    compared: int  # neither failed then nor now
    identical: int  # of `compared`: the same tokens, text and finish reason
    diverged: int  # of `compared`: other tokens
    altered: int  # of `compared`: the same tokens, but another text or finish reason
    finish_changes: dict[str, int]  # "stop → length": how often
    first_divergence: dict[str, float | None]  # of those that diverged: share_within_8, q25, median, q75
    same_until: tuple[tuple[int, float], ...]  # (token, share of `compared` that is the same up to it)
    most_different: tuple[Different, ...]

    @property
    def all_identical(self) -> bool:
        """Every output that either file has was seen to be the same in both, and none failed."""
        return self.identical == self.outputs + self.only_then + self.only_now

    @property
    def reproduced(self) -> bool:
        """Nothing differs: what failed then failed again."""
        same = self.compared == self.identical and not self.finish_changes
        return same and not self.only_then and not self.only_now

    @property
    def identical_share(self) -> float | None:
        return self.identical / self.compared if self.compared else None


@dataclass(frozen=True)
class Scored:
    """Scores of outputs that were scored both times, row i being of one output."""

    ids: tuple[str, ...]
    then: Float64
    now: Float64


def compare_outputs(
    then: Path, now: Path, *, scorer: Scorer | None = None, texts: bool = False, k: int = MOST_DIFFERENT
) -> tuple[OutputsCompared, Scored | None]:
    """Compare two files of outputs.

    Args:
        texts: may the most different outputs' texts be in the result?
        k: how many most different outputs are named, least alike first; chosen among those that part earliest.

    Raises:
        OSError, pa.ArrowException: a file cannot be read.
    """
    tally = _Tally(k, texts, scorer)
    joined = Joined.of(then, now)
    for before, after in joined.pairs():
        tally.add(before, after)
    return tally.result(joined), tally.scored()


class _Tally:
    """Counts, and the few outputs worth naming."""

    def __init__(self, k: int, texts: bool, scorer: Scorer | None) -> None:
        self.k, self.texts, self.scorer = k, texts, scorer
        self.outputs = self.failed_then = self.failed_now = self.identical = self.altered = 0
        self.finish_changes: dict[str, int] = {}
        self.partings: list[Int64] = []  # of what could be compared
        self.early: list[tuple[int, pa.Table, pa.Table]] = []  # (first divergence, row then, row now)
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
        parted = first_differences(then["token_ids"], now["token_ids"])
        other_text = pc.not_equal(then["text"], now["text"]).to_numpy(zero_copy_only=False)
        same_tokens = parted < 0
        self.partings.append(parted)
        self.identical += int((same_tokens & ~other_text & ~other_finish).sum())
        self.altered += int((same_tokens & (other_text | other_finish)).sum())
        different = np.flatnonzero(~same_tokens)
        earliest = different[np.argsort(parted[different], kind="stable")][: SHORTLIST * self.k]
        # copies: a slice would keep its whole batch in memory
        self.early += [(int(parted[row]), then.take([row]), now.take([row])) for row in earliest.tolist()]
        self.early = sorted(self.early, key=lambda one: one[0])[: SHORTLIST * self.k]

    def _score(self, then: pa.Table, now: pa.Table) -> None:
        if self.scorer is None:
            return
        ids = then["id"].to_pylist()
        before, after = (self.scorer(ids, table["text"].to_pylist()) for table in (then, now))
        both = ~np.isnan(before) & ~np.isnan(after)
        self.ids += [ids[row] for row in np.flatnonzero(both)]
        self.scores.append((before[both], after[both]))

    def scored(self) -> Scored | None:
        if not self.ids:
            return None
        before, after = (np.concatenate(scores) for scores in zip(*self.scores, strict=True))
        return Scored(tuple(self.ids), before, after)

    def result(self, joined: Joined) -> OutputsCompared:
        partings = np.concatenate([np.empty(0, np.int64), *self.partings])
        told = summary([partings])
        return OutputsCompared(
            outputs=self.outputs,
            only_then=joined.only_then,
            only_now=joined.only_now,
            failed_then=self.failed_then,
            failed_now=self.failed_now,
            compared=len(partings),
            identical=self.identical,
            diverged=int((partings >= 0).sum()),
            altered=self.altered,
            finish_changes=dict(sorted(self.finish_changes.items())),
            first_divergence={name: told[name] for name in told if name not in ("pairs", "diverged")},
            same_until=_same_until(partings),
            most_different=self._most_different(),
        )

    def _most_different(self) -> tuple[Different, ...]:
        found = [self._different(*one) for one in self.early]
        return tuple(sorted(found, key=lambda one: (one.similarity, one.first_divergence))[: self.k])

    def _different(self, parting: int, then: pa.Table, now: pa.Table) -> Different:
        tokens = [table["token_ids"][0].as_py() for table in (then, now)]
        texts = [table["text"][0].as_py() if self.texts else None for table in (then, now)]
        sample = int(samples_of(then)[0].as_py())
        return Different(id=then["id"][0].as_py(), sample=sample, first_divergence=parting,
                         similarity=similarity(*tokens), then=texts[0], now=texts[1])  # fmt: skip


def _same_until(partings: Int64) -> tuple[tuple[int, float], ...]:
    """(token t, share of outputs that are the same in all tokens before t), at CURVE_POINTS tokens or fewer."""
    apart = np.sort(partings[partings >= 0])
    if not len(apart):
        return ()
    tokens = np.unique(np.linspace(0, apart[-1] + 1, CURVE_POINTS).round().astype(np.int64))
    shares = 1 - np.searchsorted(apart, tokens) / len(partings)
    return tuple(zip(tokens.tolist(), shares.tolist(), strict=True))
