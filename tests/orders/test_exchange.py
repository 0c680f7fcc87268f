"""Prompts change places between batches where that saves most, each is sent once, and nothing gets worse."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from orderproof.job.spec import OrderSpec
from orderproof.orders.exchange import BATCH_PROMPTS, MIN_SAVED, ROUNDING, best_swaps, exchange_order
from orderproof.orders.order import OrderError
from orderproof.orders.registry import expert_friendly_order, make_order
from orderproof.orders.view import view_of, view_of_source
from orderproof.prompts.source import PromptSource
from orderproof.signals.served_model import ServedModel
from tests.support.batches import Bytes
from tests.support.fake_engine import prompts_of
from tests.support.routed import Routed, make_routed
from tests.support.trial_maker import make_job


@pytest.fixture(scope="module")
def routed(tmp_path_factory: pytest.TempPathFactory) -> Routed:
    return make_routed(tmp_path_factory.mktemp("routed"))


def some(n: int, experts: int = 24, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((n, experts)).astype(np.float32) ** 3


def read(likely: np.ndarray, batch: int) -> float:
    """Experts that all batches are expected to read, by the plain formula."""
    batches = [likely[start : start + batch].astype(float) for start in range(0, len(likely), batch)]
    return sum(float((1 - np.prod(1 - np.minimum(rows, 0.99), axis=0)).sum()) for rows in batches)


def swapped(row: np.ndarray, here: int, there: int) -> np.ndarray:
    other = row.copy()
    other[[here, there]] = row[[there, here]]
    return other


def test_the_swap_that_saves_most_is_made_first_and_then_the_next_one() -> None:
    likely = some(14)
    row = np.arange(14)
    while True:
        now = read(likely[row], 4)
        others = [swapped(row, *pair) for pair in itertools.combinations(range(14), 2)]
        best = min(others, key=lambda other: read(likely[other], 4))
        if now - read(likely[best], 4) < MIN_SAVED:
            break
        row = best
    assert not np.array_equal(row, np.arange(14))
    assert best_swaps(1 - np.minimum(likely, np.float32(0.99)), 4).tolist() == row.tolist()


def test_two_kinds_dealt_in_turn_are_parted() -> None:
    likely = np.zeros((8, 4), np.float32)
    likely[::2, :2] = likely[1::2, 2:] = 0.9
    row = exchange_order([likely], batch=4)
    assert len(set(row[:4] % 2)) == len(set(row[4:] % 2)) == 1


def test_a_row_that_no_swap_makes_better_stays_as_it_is() -> None:
    kinds = np.repeat(np.eye(4, dtype=np.float32) * 0.8, 5, axis=0)
    assert exchange_order([kinds], batch=5).tolist() == list(range(20))
    assert exchange_order([np.full((50, 4), 0.5, np.float32)], batch=4).tolist() == list(range(50))


@pytest.mark.parametrize("n", [1, 3, 32, 33, 64, 100, 129])
def test_every_prompt_is_sent_once_and_chunks_change_nothing(n: int) -> None:
    likely = some(n)
    row = exchange_order(iter([likely[:13], likely[13:]] if n > 13 else [likely]), batch=4)
    assert sorted(row.tolist()) == list(range(n))
    assert np.array_equal(row, exchange_order([likely], batch=4))
    assert read(likely[row], 4) <= read(likely, 4)


def test_a_long_row_is_searched_stretch_by_stretch_and_across_their_borders() -> None:
    likely = some(400)
    row = exchange_order([likely], batch=4)
    moved = np.abs(row - np.arange(400))
    assert read(likely[row], 4) < 0.96 * read(likely, 4)
    assert 16 < moved.max() < 400 // 2, "partners stand near"
    assert ((row < 192) != (np.arange(400) < 192)).any(), "a border of stretches of 32, were they not to overlap"


def test_surely_used_experts_make_nothing_but_numbers() -> None:
    likely = np.ones((300, 3), np.float32)
    assert exchange_order([likely], batch=128).tolist() == list(range(300))


# -- room for what is read ---------------------------------------------------------------------------------------------


def too_much(tokens: np.ndarray, row: np.ndarray, batch: int, room: int) -> int:
    """Tokens beyond the room of the batches."""
    return sum(max(0, int(tokens[row[start : start + batch]].sum()) - room) for start in range(0, len(row), batch))


def test_no_batch_is_filled_beyond_its_room_although_that_would_save_experts() -> None:
    """Of two kinds one is long: by themselves four of them are more than a step reads."""
    likely = np.zeros((16, 4), np.float32)
    likely[:8, :2] = likely[8:, 2:] = 0.9
    tokens = np.where(np.arange(16) < 8, 30, 10)
    assert too_much(tokens, exchange_order([likely], 4), 4, room=100) == 40
    row = exchange_order([likely], 4, tokens, budget=100)
    assert too_much(tokens, row, 4, room=100) == 0
    long_ones = sorted(int((row[start : start + 4] < 8).sum()) for start in range(0, 16, 4))
    assert long_ones == [0, 2, 3, 3], "three are all that fit, and no more batches are mixed than must be"


@pytest.mark.parametrize("seed", range(5))
def test_the_room_costs_little_where_few_batches_lack_it(seed: int) -> None:
    likely, tokens = some(256, seed=seed), np.random.default_rng(seed).lognormal(4, 0.7, 256).astype(np.int64)
    room = int(1.3 * 8 * tokens.mean())
    free, row = exchange_order([likely], 8), exchange_order([likely], 8, tokens, room)
    assert too_much(tokens, free, 8, room) > 0
    assert too_much(tokens, row, 8, room) == 0
    assert sorted(row.tolist()) == list(range(256))
    saved = [read(likely, 8) - read(likely[order], 8) for order in (free, row)]
    assert saved[1] > 0.9 * saved[0]


def test_where_no_order_has_room_for_every_batch_it_is_no_limit() -> None:
    likely, tokens = some(64), np.random.default_rng(0).integers(100, 400, 64)
    assert np.array_equal(exchange_order([likely], 8, tokens, budget=2048), exchange_order([likely], 8))


def test_a_stretch_of_long_prompts_comes_to_an_end_without_more_tokens_beyond_the_room() -> None:
    likely, tokens = some(128), np.full(128, 5)
    tokens[:40] = 1000
    row = exchange_order([likely], 8, tokens, budget=3000 * 8 // 5)
    assert sorted(row.tolist()) == list(range(128))
    assert too_much(tokens, row, 8, room=4800) < too_much(tokens, np.arange(128), 8, room=4800)


def test_with_room_for_all_the_order_is_the_one_without_a_limit() -> None:
    likely = some(64)
    assert np.array_equal(exchange_order([likely], 8, np.full(64, 16), budget=128), exchange_order([likely], 8))


def test_the_record_says_how_many_tokens_a_step_reads_where_they_decide(routed: Routed) -> None:
    """A prompt that is sampled twice is read twice."""
    spec = OrderSpec(method="exchange", signal="predicted", clusters=4)
    counts = np.random.default_rng(0).integers(5, 40, len(routed.view)).astype(np.int64)
    seen = replace(routed.view, token_counts=counts)
    orders = {
        (room, samples): make_order(
            spec,
            replace(seen, served=replace(routed.served, batch=4 * samples, batched_tokens=room, samples=samples)),
            "md5",
        )
        for room, samples in ((100_000, 1), (115, 1), (230, 2))
    }
    assert [order.parameters["batched_tokens"] for order in orders.values()] == [100_000, 115, 230]
    wide, narrow, twice = (order.permutation for order in orders.values())
    assert too_much(counts, wide, 4, room=115) > too_much(counts, narrow, 4, room=115) == 0
    assert np.array_equal(narrow, twice)


def test_nothing_is_in_an_empty_row() -> None:
    assert exchange_order([], batch=4).tolist() == []


@pytest.mark.parametrize("signal", ["predicted", "fingerprint"])
@pytest.mark.parametrize("window", [None, 32])
def test_prompts_of_one_kind_share_batches(routed: Routed, signal: str, window: int | None) -> None:
    spec = OrderSpec.model_validate({"method": "exchange", "signal": signal, "clusters": 4, "window": window})
    view = replace(routed.view, served=replace(routed.served, batch=4))
    order = make_order(spec, view, "md5")
    labels = [prompt["label"] for prompt in order.apply(routed.prompts)]
    mixed = sum(len(set(labels[start : start + 4])) > 1 for start in range(0, 100, 4))
    assert mixed <= (2 if window is None else 5)  # of 25, and 22 in a shuffle
    assert make_order(spec, view, "md5") == order
    assert order.parameters["signal"] == signal
    assert order.parameters["batch"] == 4


def test_where_the_engine_is_not_known_the_record_says_what_batch_was_taken(routed: Routed) -> None:
    spec = OrderSpec(method="exchange", signal="predicted")
    order = make_order(spec, routed.view, "md5")
    assert order.parameters["batch"] == BATCH_PROMPTS
    assert order == make_order(spec, replace(routed.view, served=replace(routed.served, batch=BATCH_PROMPTS)), "md5")
    assert order != make_order(spec, replace(routed.view, served=replace(routed.served, batch=5)), "md5")


@pytest.mark.parametrize(
    ("of_job", "own", "at_once"),
    [(1, [None] * 4, 8), (4, [None] * 4, 2), (1, [4, 4, 4, 4], 2), (4, [1, 1, 1, 1], 8), (1, [None, None, 3, 3], 4)],
)
def test_each_sample_of_a_prompt_takes_a_place_of_the_batch_also_those_that_it_asks_itself(
    tmp_path: Path, of_job: int, own: list[int | None], at_once: int
) -> None:
    job = make_job(tmp_path)
    job = job.model_copy(update={"sampling": {**job.sampling, "n": of_job}})
    served = ServedModel.of_job(job)
    assert served.batch == job.engine.max_num_seqs == 8
    rows = [{"id": f"p{k}", "text": "a", **({} if n is None else {"sampling": {"n": n}})} for k, n in enumerate(own)]
    lines = tmp_path / "prompts.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenized = prompts_of(["maths"] * 4, samplings=[row.get("sampling") for row in rows])
    bodies = [{"body": {"prompt": "a", **row.get("sampling", {})}} for row in rows]
    with PromptSource(lines) as source:
        assert view_of_source(source, Bytes(), labels=False, lengths=False, served=served).at_once() == at_once  # type: ignore[arg-type]
    assert [view_of(prompts, served).at_once() for prompts in (rows, bodies, tokenized)] == [at_once] * 3


def test_a_part_of_the_prompts_has_the_samples_of_these_alone() -> None:
    view = view_of([{"text": "a", "sampling": {"n": n}} for n in (1, 1, 4, 4)], ServedModel(batch=8))
    assert [view.part(0, 2).at_once(), view.part(2, 4).at_once(), view.take([3, 2]).at_once()] == [8, 2, 2]
    assert view_of(["a"]).at_once() is None


def test_a_signal_that_tells_of_no_experts_is_refused() -> None:
    with pytest.raises(OrderError, match=r"`exchange` adds up experts.*fingerprint or predicted"):
        expert_friendly_order(["a", "b"], "exchange", signal="lexical")


@pytest.mark.parametrize(("experts", "swapped"), [(256, True), (15_000, False)])
def test_a_swap_is_made_only_where_rounding_cannot_make_up_what_it_saves(experts: int, swapped: bool) -> None:
    """Two kinds dealt in turn, which differ in two experts by so little that parting them saves 0.016."""
    likely = np.zeros((4, experts), np.float32)
    likely[::2, 0] = likely[1::2, 1] = 0.09
    saved = 4 * 0.09**2 / 2
    assert MIN_SAVED < saved < ROUNDING * 15_000
    assert (best_swaps(1 - likely, 2).tolist() != [0, 1, 2, 3]) == swapped
