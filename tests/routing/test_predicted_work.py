"""Work is counted in generated tokens and divided into contiguous shares."""

from __future__ import annotations

import numpy as np
import pytest

from orderproof.routing.predicted_work import PROMPT_TOKEN_WORK, equal_shares, predicted_work


def test_a_prompt_s_token_counts_less_than_a_generated_one() -> None:
    assert predicted_work([0, 100], [7, 7]).tolist() == [7, 7 + 100 * PROMPT_TOKEN_WORK]
    assert 0 < PROMPT_TOKEN_WORK < 1


@pytest.mark.parametrize("work", [1.0, 5.1, 0.1, 7.3])
@pytest.mark.parametrize("replicas", [2, 3, 5])
def test_equal_requests_are_shared_equally_whatever_their_work(work: float, replicas: int) -> None:
    assert [len(share) for share in equal_shares(np.full(12 * replicas, work), replicas)] == [12] * replicas


def test_shares_are_contiguous_and_no_cut_would_be_nearer() -> None:
    work = np.random.default_rng(0).random(50)
    first, second = equal_shares(work, 2)
    assert (first.start, first.stop, second.stop) == (0, second.start, 50)
    off = [abs(work[:cut].sum() - work.sum() / 2) for cut in range(51)]
    assert off[first.stop] == min(off)
