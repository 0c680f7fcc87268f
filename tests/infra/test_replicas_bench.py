"""The script that compares contiguous shares with dealing in turn: the second is a permutation of the first's order."""

from __future__ import annotations

import numpy as np
import pytest
import replicas as bench

from orderproof.engines.shares import Shares
from orderproof.orders.order import Order


@pytest.mark.parametrize("replicas", [2, 3])
def test_contiguous_shares_of_the_permuted_order_are_what_dealing_in_turn_gives(replicas: int) -> None:
    order = Order(np.random.default_rng(0).permutation(12 * replicas), "label", {}, {}, "md5")
    dealt = bench.in_turn(order, replicas)
    shares = Shares(np.ones(len(order)), replicas, run=len(order))
    for replica in range(replicas):
        places = shares.take(replica)
        got = dealt.permutation[places.start : places.stop].tolist()
        assert got == order.permutation.tolist()[replica::replicas]
