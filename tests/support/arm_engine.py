"""An engine in memory for lossy comparisons: each arm has its speed, and a lossy pass changes every fourth output."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderproof.engines.protocol import Completion, EngineInfo, Failure, Output, Request
from orderproof.job.spec import EngineSpec, Job, MeasureSpec, OrderSpec
from orderproof.lossy.comparison import compare_lossy
from orderproof.lossy.report import LOSSY, SORTED, SORTED_LOSSY, LossyReport
from orderproof.orders.registry import make_order
from tests.support.fake_engine import MOE, grouped, prompts_of

PROMPTS = 300
SHUFFLED_FILE = np.random.default_rng(0).permutation(PROMPTS)  # places in a file that is sorted by domain
KINDS = SHUFFLED_FILE * 3 // PROMPTS  # of a shuffled file's prompts
RATE = {SORTED: 1.2, LOSSY: 1.1, SORTED_LOSSY: 1.3}


class ArmEngine:
    """`passes` has the k0 of each pass and what was sent, in that order.

    Args:
        refuse: the number of a request that fails.
        changed: the text of the outputs that a lossy pass changes.
    """

    info = EngineInfo(1.0, {"vllm": "0"}, {"device_type": "none"}, {})

    def __init__(self, refuse: int = -1, changed: str = "wrong") -> None:
        self.k0: int | None = None
        self.changed = changed
        self.refuse = refuse
        self.passes: list[tuple[int | None, list[int]]] = []

    def __enter__(self) -> ArmEngine:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    @contextlib.contextmanager
    def opportunistic(self, k0: int | None) -> Iterator[None]:
        self.k0 = k0
        yield
        self.k0 = None

    def run(
        self, requests: Iterable[Request], sampling: Mapping[str, Any], sink: Callable[[Output | Failure], None]
    ) -> Any:
        sent = [request.number for request in requests]
        self.passes.append((self.k0, sent))
        for number in sent:
            if number == self.refuse:
                sink(Failure(number, "too long"))
                continue
            changes = self.k0 is not None and number % 4 == 0
            text = self.changed if changes else "right"
            sink(Output(number, (Completion([number, int(changes)], text, "length"),), 0, 0.0, 0.0))
        is_sorted = sum(np.diff(KINDS[sent]) == 0) > PROMPTS / 2
        arm = {(True, False): SORTED, (False, True): LOSSY, (True, True): SORTED_LOSSY}
        rate = RATE.get(arm.get((bool(is_sorted), self.k0 is not None), ""), 1.0)
        noise = 1 + 0.004 * (len(self.passes) % 3)
        return SimpleNamespace(wall_s=noise / rate)


def arm_job(root: Path) -> Job:
    """A scored job whose candidate is the label order. None of its files is there."""
    return Job(
        name="it",
        root=root,
        prompts="p.jsonl",
        model="m",
        engine=EngineSpec(args={"max_num_seqs": 8}),
        sampling={"temperature": 0, "max_tokens": 2},
        order=OrderSpec(method="label"),
        measure=MeasureSpec(scorer="exact"),
    )


def compare_arms(
    job: Job,
    engine: ArmEngine,
    k0: int = 2,
    blocks: int = 5,
    file: NDArray[np.int64] = SHUFFLED_FILE,
    right: Sequence[str] = ("right", "-"),
) -> LossyReport:
    """A comparison on that engine.

    Args:
        file: places of its prompts in a file that is sorted by domain.
        right: the references of successive prompts, over and over.
    """
    routing_engine: Any = engine
    prompts = prompts_of(grouped(PROMPTS)).take(file)
    prompts.references[:] = [right[k % len(right)] for k in range(len(file))]
    return compare_lossy(job, MOE, prompts, make_order(job.order, prompts, "md5"), routing_engine, k0, blocks)
