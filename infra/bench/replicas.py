"""What whole clusters gain on replicas: a sorted order in contiguous shares, the same dealt in turn, and shuffled.

The output is that of arms.py.

Dealing a sorted order in turn over R replicas, as a load balancer does, sends places 0, R, 2R, … to the first of them
and 1, R + 1, … to the second. The permutation that lists the places in that order has the same neighbours, so all three
ways run through the same engine, in slices that the replicas share in contiguous parts.

    python infra/bench/replicas.py six-domains --blocks 4        # 2 replicas on 2 cores: about 6 minutes
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict
from pathlib import Path

import arms
import numpy as np

from orderproof.orders.order import Order


def main() -> None:
    parser = arms.arguments(__doc__)
    parser.add_argument("--replicas", type=int, default=2)
    options = parser.parse_args()
    job = arms.named(options, replicas=options.replicas, devices=None)
    prompts = arms.prompts_of(job)
    whole = prompts.order(job.order)
    ways = {"in turn": in_turn(whole, options.replicas), "contiguous": whole, "shuffled": None}
    with tempfile.TemporaryDirectory() as scratch:
        found = arms.compare(job, prompts, ways, options.blocks, Path(options.keep or scratch).resolve())
    print(arms.table(found))
    if options.json:
        options.json.write_text(json.dumps([asdict(arm) for arm in found], indent=1) + "\n")


def in_turn(order: Order, replicas: int) -> Order:
    """The order whose contiguous shares are what each replica gets when `order` is dealt in turn."""
    permutation = np.concatenate([order.permutation[k::replicas] for k in range(replicas)])
    parameters = {**order.parameters, "dealt_in_turn": replicas}
    return Order(permutation, order.method, parameters, order.seeds, order.dataset_md5)


if __name__ == "__main__":
    main()
