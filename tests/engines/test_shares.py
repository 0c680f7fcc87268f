"""How an order is divided: contiguous, balanced, every request once, nothing read before it can be sent."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orderproof.engines.protocol import Request, Share
from orderproof.engines.requests import RequestList
from orderproof.engines.shares import Dealer, Shares

RUN = 4


def drain(shares: Shares, turns: Iterator[int], replicas: int) -> list[tuple[int, int]]:
    """(replica, place) of everything, with whoever's turn it is asking next, until nothing is left for anyone."""
    taken, done = [], set[int]()
    while len(done) < replicas:
        replica = next(turns)
        places = shares.take(replica)
        taken += [(replica, place) for place in places]
        if not places:
            done.add(replica)
    return taken


def in_turn(replicas: int) -> Iterator[int]:
    while True:
        yield from range(replicas)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 50), max_size=120), st.integers(1, 5), st.randoms(use_true_random=False))
def test_every_place_is_dealt_once_whoever_asks_when(work: list[int], replicas: int, chance: object) -> None:
    shares = Shares(np.array(work, float), replicas, RUN)

    def anyone() -> Iterator[int]:
        while True:
            yield chance.randrange(replicas)  # type: ignore[attr-defined]

    taken = drain(shares, anyone(), replicas)
    assert sorted(place for _, place in taken) == list(range(len(work)))
    dealt = [(share.replica, place) for share in shares.dealt for place in range(share.start, share.stop)]
    assert sorted(dealt) == sorted(taken)


def test_shares_are_contiguous_and_equal_in_work_not_in_number() -> None:
    work = np.array([10.0] * 20 + [1.0] * 200)
    shares = Shares(work, 2, run=1000)
    first, second = shares.take(0), shares.take(1)
    assert (first, second) == (range(20), range(20, 220))


def test_replicas_of_equal_speed_keep_their_shares() -> None:
    shares = Shares(np.ones(30 * RUN), 3, RUN)
    drain(shares, in_turn(3), 3)
    assert shares.dealt == [Share(0, 0, 40), Share(1, 40, 80), Share(2, 80, 120)]


def test_a_replica_that_runs_dry_takes_the_back_half_of_the_longest_share() -> None:
    shares = Shares(np.ones(30 * RUN), 3, RUN)
    while shares.take(2).start < 120 - RUN:
        pass
    shares.take(0)
    assert shares.take(2) == range(60, 60 + RUN), "of replica 1, which has not begun, all 40 places but the first 20"


def test_what_is_taken_is_never_shorter_than_a_run_nor_leaves_less() -> None:
    work = np.concatenate([np.full(2 * RUN, 10.0), [20.0 * RUN - 1], np.full(4 * RUN, 1e-3)])
    shares = Shares(work, 2, RUN)  # nearly all work of the second share is in its first place
    assert [shares.take(0) for _ in range(2)] == [range(RUN), range(RUN, 2 * RUN)]
    assert shares.take(0) == range(3 * RUN, 4 * RUN)


def test_a_share_below_two_runs_is_left_to_its_replica() -> None:
    shares = Shares(np.ones(2 * (2 * RUN - 1)), 2, RUN)
    assert [len(shares.take(0)) for _ in range(3)] == [RUN, RUN - 1, 0]
    assert [len(shares.take(1)) for _ in range(3)] == [RUN, RUN - 1, 0]


def test_more_replicas_than_requests_leave_some_without_any() -> None:
    shares = Shares(np.ones(2), 4, RUN)
    assert sum(len(shares.take(k)) for k in range(4)) == 2


def test_a_prompt_s_token_counts_less_than_a_generated_one() -> None:
    own = RequestList([Request(0, [1] * 10), Request(1, [1] * 10)], [5, None])
    assert own.work()[1] > own.work()[0]


def numbered(count: int) -> list[Request]:
    return [Request(k, [1, 2, 3]) for k in range(count)]


def listed(count: int) -> RequestList:
    return RequestList(numbered(count), [8] * count)


def everything(dealer: Dealer, replicas: int) -> list[list[int]]:
    """What each replica gets if all answer at once, each from a thread of its own."""
    got: list[list[int]] = [[] for _ in range(replicas)]

    def work(replica: int) -> None:
        for request in dealer.requests_of(replica):
            got[replica].append(request.number)
            dealer.answered(replica)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(replicas)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return got


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_goes_to_one_replica_from_however_many_threads(stream: bool) -> None:
    requests = iter(numbered(1000)) if stream else listed(1000)
    dealer = Dealer(requests, 3, run=RUN, room=8)
    assert sorted(chain(*everything(dealer, 3))) == list(range(1000))


def test_a_stream_is_dealt_in_whole_runs_of_neighbours() -> None:
    got = everything(Dealer(iter(numbered(50 * RUN + 1)), 2, run=RUN, room=8), 2)
    for numbers in got:
        starts = [number for number in numbers if number % RUN == 0]
        assert [n for start in starts for n in range(start, min(start + RUN, 50 * RUN + 1))] == numbers


def test_a_stream_is_read_no_further_than_there_is_room() -> None:
    read: list[int] = []

    def source() -> Iterator[Request]:
        for request in numbered(10_000):
            read.append(request.number)
            yield request

    dealer = Dealer(source(), 2, run=RUN, room=8)
    mine = dealer.requests_of(0)
    for _ in range(8):
        next(mine)
    assert len(read) == 8


def test_a_prompt_of_a_slow_stream_is_sent_without_waiting_for_its_neighbours() -> None:
    more = threading.Event()

    def slow() -> Iterator[Request]:
        yield from numbered(1)
        more.wait(30)

    dealer, got = Dealer(slow(), 2, run=RUN, room=8), threading.Event()

    def work() -> None:
        for _ in dealer.requests_of(0):
            got.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert got.wait(10)
    more.set()
    thread.join()


def test_a_replica_without_room_waits_for_an_answer() -> None:
    dealer = Dealer(listed(100), 1, run=RUN, room=2)
    sent: list[int] = []
    thread = threading.Thread(target=lambda: sent.extend(request.number for request in dealer.requests_of(0)))
    mine = dealer.requests_of(0)
    next(mine), next(mine)
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    dealer.stop()
    thread.join()
    assert sent == []


def test_a_source_that_fails_ends_every_replica_and_is_raised_once() -> None:
    def torn() -> Iterator[Request]:
        yield from numbered(3 * RUN)
        raise ValueError("line 13 is torn")

    dealer = Dealer(torn(), 2, run=RUN, room=100)
    assert sorted(chain(*everything(dealer, 2))) == list(range(3 * RUN))
    assert str(dealer.fault) == "line 13 is torn"


def test_a_list_that_cannot_be_read_on_ends_every_replica_at_once() -> None:
    class Edited(RequestList):
        def between(self, start: int, stop: int) -> Iterable[Request]:
            if start == 3 * RUN:
                raise ValueError("the file was changed")
            return super().between(start, stop)

    dealer = Dealer(Edited(numbered(20 * RUN), [8] * 20 * RUN), 2, run=RUN, room=100)
    first, second = dealer.requests_of(0), dealer.requests_of(1)
    assert next(second).number == 10 * RUN
    assert [request.number for request in first] == list(range(3 * RUN))
    assert [request.number for request in second] == list(range(10 * RUN + 1, 11 * RUN))
    assert str(dealer.fault) == "the file was changed"


def test_neighbours_stay_neighbours() -> None:
    dealer = Dealer(listed(500), 2, run=RUN, room=8)
    for numbers in everything(dealer, 2):
        seams = sum(b != a + 1 for a, b in pairwise(numbers))
        assert seams < 10, "parts as short as single requests were dealt"
