from __future__ import annotations

import numpy as np

from orderproof.tasks.orders.window import sort_within


def test_without_a_window_equal_ranks_stay_in_the_files_order() -> None:
    assert sort_within(np.array([1, 0, 1, 0, 1]), None).tolist() == [1, 3, 0, 2, 4]


def test_a_window_as_long_as_the_file_is_no_window() -> None:
    ranks = np.random.default_rng(0).integers(0, 4, 50)
    assert (sort_within(ranks, 50) == sort_within(ranks, None)).all()
    assert (sort_within(ranks, 80) == sort_within(ranks, None)).all()


def test_where_two_windows_meet_the_same_ranks_touch() -> None:
    ranks = np.tile([0, 1, 2], 8)
    sorted_ranks = ranks[sort_within(ranks, 12)]
    assert sorted_ranks.tolist() == [0] * 4 + [1] * 4 + [2] * 8 + [1] * 4 + [0] * 4


def test_equal_ranks_stay_in_the_files_order_in_turned_windows_too() -> None:
    assert sort_within(np.array([0, 0, 1, 1, 0, 1]), 2).tolist() == [0, 1, 2, 3, 4, 5]
    assert sort_within(np.array([0, 0, 0, 1, 1, 0]), 3).tolist() == [0, 1, 2, 3, 4, 5]


def test_no_prompts_have_an_order_too() -> None:
    assert sort_within(np.zeros(0, np.int64), None).tolist() == []
    assert sort_within(np.zeros(0, np.int64), 5).tolist() == []
