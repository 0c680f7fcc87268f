"""Windows come out alike from a file and one by one, and each begins where the last one ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orderproof.job.spec import OrderSpec
from orderproof.orders.cluster import LEARNING_PROMPTS
from orderproof.orders.registry import METHODS, make_order
from orderproof.orders.view import view_of
from orderproof.orders.window import Windows, read_windows, write_windows

Make = Callable[..., list[dict[str, Any]]]

FREE = [method for method in METHODS if method not in ("greedy", "exchange")]  # they need a model and its routes


def spec(method: str = "label", window: int | None = None, **more: Any) -> OrderSpec:
    return OrderSpec.model_validate({"method": method, "window": window, "signal": "lexical", "seed": 4, **more})


def sent(labels: str, window: int | None, method: str = "label") -> str:
    """Labels, one letter each, in the order of sending."""
    prompts = [{"text": "x", "label": label} for label in labels]
    return "".join(labels[i] for i in make_order(spec(method, window), prompts, "").permutation)


def streamed(prompts: list[dict[str, Any]], asked: OrderSpec, folder: Path) -> list[int]:
    """The order that comes out window by window, each made by a fold that knows only what the last one wrote down."""
    assert asked.window
    places: list[int] = []
    write_windows(folder / "windows.npz", Windows(asked))
    for start in range(0, len(prompts), asked.window):
        windows = read_windows(folder / "windows.npz", asked)
        places += (windows.prompts + windows.add(view_of(prompts[start : start + asked.window]))).tolist()
        write_windows(folder / "windows.npz", windows)
    return places


@pytest.mark.parametrize("method", FREE)
@pytest.mark.parametrize("window", [16, 64, 100])
def test_an_order_is_the_same_whether_its_windows_come_from_a_file_or_one_by_one(
    some_prompts: Make, tmp_path: Path, method: str, window: int
) -> None:
    prompts, asked = some_prompts(170), spec(method, window)
    places = streamed(prompts, asked, tmp_path)
    assert places == make_order(asked, prompts, "").permutation.tolist()
    assert [k // window for k in places] == [k // window for k in range(170)], "a prompt left its window"


@pytest.mark.parametrize("method", [method for method in FREE if method != "cluster"])
def test_a_window_as_long_as_the_file_is_no_window(some_prompts: Make, method: str) -> None:
    prompts = some_prompts(50)
    whole = make_order(spec(method), prompts, "").permutation
    for window in (50, 80):
        assert np.array_equal(make_order(spec(method, window), prompts, "").permutation, whole)


def test_the_beginning_of_an_order_does_not_depend_on_what_comes_later(some_prompts: Make) -> None:
    prompts = some_prompts(300)
    for method in FREE:
        whole = make_order(spec(method, 60), prompts, "").permutation
        assert np.array_equal(make_order(spec(method, 60), prompts[:120], "").permutation, whole[:120])


def test_a_label_has_the_same_rank_in_all_windows() -> None:
    assert sent("abcabcabccabbcacabbbcaaccab", 9) == "aaabbbccccccbbbaaaaaabbbccc"


def test_a_window_begins_with_what_the_last_one_ended_with() -> None:
    assert sent("ababcbcbcdcd", 4) == "aabbbbccccdd", "a file that is nearly grouped needs no turning"
    assert sent("abcdabcddbca", 4) == "abcddcbaabcd"


def test_equal_ranks_stay_in_the_files_order_in_turned_windows_too() -> None:
    prompts = [{"text": "x", "label": label} for label in "abababab"]
    assert make_order(spec("label", 4), prompts, "").permutation.tolist() == [0, 2, 1, 3, 5, 7, 4, 6]


def test_each_window_is_shuffled_afresh() -> None:
    permutation = make_order(spec("shuffled", 50), ["x"] * 100, "").permutation
    assert permutation[:50].tolist() != (permutation[50:] - 50).tolist()
    assert permutation[:50].tolist() != (permutation[:49:-1] - 50).tolist()


def test_clusters_in_windows_find_the_domains_of_the_file(some_prompts: Make) -> None:
    prompts = some_prompts(1600)
    asked = spec("cluster", 100, clusters=4)
    labels = [prompt["label"] for prompt in make_order(asked, prompts, "").apply(prompts)]
    windows = [labels[k : k + 100] for k in range(0, 1600, 100)]
    changes = [sum(a != b for a, b in pairwise(window)) for window in windows]
    assert Counter(changes).most_common(1)[0][0] == 3, "as many changes as a window of four domains needs"
    learned = windows[LEARNING_PROMPTS // 100 :]
    assert all(a[-1] == b[0] for a, b in pairwise(learned)), "each begins with the domain that the last one ended with"


def test_what_clusters_carry_stops_growing(some_prompts: Make) -> None:
    windows, sizes, prompts = Windows(spec("cluster", 256, clusters=4)), [], some_prompts(7 * 256)
    for start in range(0, len(prompts), 256):
        windows.add(view_of(prompts[start : start + 256]))
        sizes.append(sum(array.nbytes for array in windows.state.arrays.values()))
    learning = LEARNING_PROMPTS // 256 - 1
    assert sizes[:learning] == sorted(sizes[:learning])
    assert set(sizes[learning:]) == {sizes[-1]}
    assert sizes[-1] < sizes[learning - 1]


def test_where_a_fold_stands_is_the_same_when_read_again(some_prompts: Make, tmp_path: Path) -> None:
    for method, prompts in (("label", 0), ("label", 50), ("cluster", 50), ("shuffled", 50)):
        windows = Windows(spec(method, 50))
        if prompts:
            windows.add(view_of(some_prompts(prompts)))
        write_windows(tmp_path / "windows", windows)
        again = read_windows(tmp_path / "windows", windows.spec)
        assert (again.prompts, again.parameters, again.seeds) == (prompts, windows.parameters, windows.seeds)
        assert (again.state.windows, again.state.last_rank) == (windows.state.windows, windows.state.last_rank)
        assert again.state.arrays.keys() == windows.state.arrays.keys()
        assert all(np.array_equal(again.state.arrays[name], kept) for name, kept in windows.state.arrays.items())


def test_a_window_of_no_prompts_changes_no_rank() -> None:
    windows = Windows(spec("label", 4))
    windows.add(view_of([{"text": "x", "label": "a"}]))
    assert windows.add(view_of([])).tolist() == []
    assert windows.state.last_rank == 0


@pytest.mark.parametrize("kept", [0, 10, -10])
def test_a_torn_state_is_a_value_error_and_never_another_order(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "windows.npz"
    write_windows(path, Windows(spec(window=2)))
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"data|zip"):
        read_windows(path, spec(window=2))


def test_a_flipped_bit_in_a_state_is_a_value_error(tmp_path: Path) -> None:
    path = tmp_path / "windows.npz"
    write_windows(path, Windows(spec(window=2)))
    content = bytearray(path.read_bytes())
    content[content.index("prompts".encode("utf-32-le"))] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="CRC"):
        read_windows(path, spec(window=2))
