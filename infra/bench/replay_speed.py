"""How fast a replay runs, and in how much memory.

    python infra/bench/replay_speed.py

Synthetic routes of Qwen3-30B-A3B's shape (48 layers, 128 experts, top-8), 64 prompt tokens, drawn during the replay on
one core at batch 32. Each number of prompts runs in its own process, so that each peak memory is its own. An event is
one token in one layer, prompt tokens included.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time

from published import QWEN3_ROUTING
from synthetic import SyntheticRoutes

from orderproof.job.spec import BATCHED_TOKENS
from orderproof.routing.replay import SimRequest, replay

PROMPT_TOKENS = 64
BATCH = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, nargs="+", default=[1_000, 100_000])
    parser.add_argument("--tokens", type=int, default=32, help="generated for each prompt")
    arguments = parser.parse_args()
    print("prompts    events     seconds    million events/s    peak memory MiB")
    spawn = multiprocessing.get_context("spawn")
    for prompts in arguments.prompts:
        process = spawn.Process(target=measure, args=(prompts, arguments.tokens))
        process.start()
        process.join()


def measure(prompts: int, tokens: int) -> None:
    """Replay and print one line."""
    source = SyntheticRoutes(QWEN3_ROUTING, lambda number: number % QWEN3_ROUTING.domains, seed=0)
    requests = (SimRequest(number, PROMPT_TOKENS, tokens) for number in range(prompts))
    started = time.perf_counter()
    ended = sum(len(chunk.ended) for chunk in replay(requests, source, BATCH, BATCHED_TOKENS))
    seconds = time.perf_counter() - started
    assert ended == prompts
    events = prompts * (PROMPT_TOKENS + tokens - 1) * QWEN3_ROUTING.layers
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{prompts:7d} {events:12.3g} {seconds:8.1f} {events / seconds / 1e6:15.1f} {peak_mib:17.0f}", flush=True)


if __name__ == "__main__":
    main()
