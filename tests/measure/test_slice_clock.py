"""Windows of slices in one run: from admission to admission, tokens where they were generated."""

from __future__ import annotations

import numpy as np
import pytest

from orderproof.measure.slice_clock import SentRequests, cut_windows


def requests(admitted: list[float], ended: list[float], arms: list[str], steps: tuple[float, ...] = ()) -> SentRequests:
    """Requests of 20 prompt tokens that generate 10."""
    size = len(admitted)
    return SentRequests(
        np.array(admitted), np.array(ended), np.full(size, 20.0), np.full(size, 10.0), np.array(arms), np.array(steps)
    )


def test_a_window_runs_from_its_own_admission_to_the_next_slices() -> None:
    sent = requests([0, 1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6, 7], list("SSSCCCF"))
    one, other = cut_windows(sent, [3, 3], ["S", "C"], washout=0)
    assert (one.start_s, one.seconds, other.start_s, other.seconds) == (0, 3, 3, 3)
    assert (one.output_tokens, one.prompt_tokens, one.foreign_tokens) == (30, 60, 0)
    assert other.output_tokens == 30


def test_the_wash_out_is_not_timed() -> None:
    sent = requests([0, 1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6, 7], list("SSSCCCF"))
    one, other = cut_windows(sent, [3, 3], ["S", "C"], washout=1)
    assert (one.start_s, one.seconds, other.start_s, other.seconds) == (1, 2, 4, 2)
    assert one.prompt_tokens == 40


def test_tokens_count_where_they_are_generated_whoever_they_belong_to() -> None:
    sent = requests([0, 0, 2, 2, 6], [2, 4, 4, 6, 8], list("SSCCF"))
    one, other = cut_windows(sent, [2, 2], ["S", "C"], washout=0)
    assert one.output_tokens == pytest.approx(10 + 5)
    assert one.foreign_tokens == 0
    assert other.output_tokens == pytest.approx(5 + 10 + 10)
    assert other.foreign_tokens == pytest.approx(5)


def test_a_request_generates_as_many_tokens_in_a_fast_step_as_in_a_slow_one() -> None:
    sent = requests([0, 0, 2, 2, 6], [2, 6, 4, 6, 8], list("SSCCF"), steps=(0.5, 1, 1.5, 2, 4, 6, 8))
    one, other = cut_windows(sent, [2, 2], ["S", "C"], washout=0)
    assert one.output_tokens == pytest.approx(10 + 10 * 3 / 5)
    assert other.foreign_tokens == pytest.approx(10 * 2 / 5)


def test_a_failed_request_has_no_tokens_and_leaves_no_gap() -> None:
    sent = requests([0, np.nan, 2, 3], [2, np.nan, 3, 4], list("SSCF"))
    one, other = cut_windows(sent, [2, 1], ["S", "C"], washout=0)
    assert (one.seconds, one.output_tokens, other.seconds) == (2, 10, 1)


def test_without_a_filler_the_last_slice_would_have_no_end() -> None:
    with pytest.raises(ValueError, match="filler"):
        cut_windows(requests([0, 1], [1, 2], list("SC")), [1, 1], ["S", "C"], washout=0)
