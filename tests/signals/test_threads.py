"""One thread within, and as before afterwards."""

from __future__ import annotations

import pytest

from orderproof.signals.threads import one_thread


def counts() -> list[int]:
    import torch
    from threadpoolctl import threadpool_info

    return [torch.get_num_threads(), *(library["num_threads"] for library in threadpool_info())]


def test_everything_runs_on_one_thread_within_and_as_before_afterwards() -> None:
    import torch

    torch.set_num_threads(3)
    before = counts()
    assert 3 in before
    with one_thread():
        assert set(counts()) == {1}
    assert counts() == before


def test_the_threads_come_back_after_an_error_too() -> None:
    before = counts()
    with pytest.raises(RuntimeError), one_thread():
        raise RuntimeError
    assert counts() == before
