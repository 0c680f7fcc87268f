"""An id is known again among any number of others."""

from __future__ import annotations

import random

import pytest

from orderproof.prompts import ids
from orderproof.prompts.ids import IdSet, id_key


def test_a_key_is_new_once_however_many_came_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "MERGED_AT_ONCE", 10)
    keys = [id_key(f"p{k}") for k in range(500)] + [0, 2**64 - 1]
    random.Random(0).shuffle(keys)
    seen = IdSet()
    assert all(seen.add(key) for key in keys)
    assert not any(seen.add(key) for key in keys)
    assert seen.add(id_key("another"))


def test_half_a_surrogate_pair_has_a_key_too() -> None:
    assert id_key("\ud800") != id_key("?")
