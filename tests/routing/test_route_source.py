"""Captured prompts replay their own routes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from orderproof.routing import route_source
from orderproof.routing.errors import RoutingError
from orderproof.routing.experts import bit_sets
from orderproof.routing.route_source import captured_routes
from orderproof.routing.routes import Routes
from tests.support.routes_maker import make_routes

CAPTURED = 20


@pytest.fixture
def written(tmp_path: Path) -> dict[str, np.ndarray]:
    """Bit sets by id: of p<k>, k + 1 tokens of the prompt and then k generated ones."""
    experts = make_routes(tmp_path / "routes.parquet", CAPTURED)
    return {prompt_id: bit_sets(chosen.astype(np.uint8), 64) for prompt_id, chosen in experts.items()}


@pytest.fixture
def routes(tmp_path: Path, written: dict[str, np.ndarray]) -> Routes:
    return Routes(tmp_path / "routes.parquet")


def test_a_captured_prompt_replays_its_own_rows(routes: Routes, written: dict[str, np.ndarray]) -> None:
    ids = [f"p{k}" for k in np.random.default_rng(0).permutation(CAPTURED)]
    replayed = captured_routes(routes, ids)
    for number, prompt_id in enumerate(ids):
        sets, read = written[prompt_id], int(prompt_id[1:]) + 1
        assert replayed.generated(number) == read
        assert np.array_equal(replayed.prefill(number, 0, read), np.bitwise_or.reduce(sets[:read]))
        assert np.array_equal(replayed.prefill(number, read - 1, read), sets[read - 1])
        assert np.array_equal(replayed.decode(number, read - 1), sets[read:])


def test_more_tokens_than_were_captured_go_round_them(routes: Routes, written: dict[str, np.ndarray]) -> None:
    replayed = captured_routes(routes, ["p3", "p0"])
    assert np.array_equal(replayed.decode(0, 8), written["p3"][[4, 5, 6, 4, 5, 6, 4, 5]])
    assert np.array_equal(replayed.decode(1, 2), written["p0"][[0, 0]])  # it generated one token, which has no row


def test_bit_sets_are_kept_within_their_bytes(routes: Routes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_source, "CACHE_BYTES", 1500)
    replayed = captured_routes(routes, [f"p{k}" for k in range(CAPTURED)])
    for number in np.random.default_rng(0).integers(0, CAPTURED, 100).tolist():
        replayed.decode(number, 1)
        kept = [sets.nbytes for sets, _ in replayed._sets.values()]
        assert kept
        assert sum(kept) <= 1500 or len(kept) == 1


def test_routes_of_none_of_the_prompts_are_refused(routes: Routes) -> None:
    with pytest.raises(RoutingError, match=r"routes\.parquet holds none of these 2 prompts"):
        captured_routes(routes, ["a", "b"])


def test_samples_of_a_prompt_are_not_alike_token_by_token(routes: Routes, written: dict[str, np.ndarray]) -> None:
    replayed = captured_routes(routes, ["p11"])
    rows = [replayed.decode(0, 11, sample) for sample in range(4)]
    assert len({row.tobytes() for row in rows}) == 4
    assert np.array_equal(rows[0], written["p11"][12:])
    for row in rows:
        assert {set_.tobytes() for set_ in row} == {set_.tobytes() for set_ in written["p11"][12:]}
