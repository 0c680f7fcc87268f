"""Which way to order saves the most experts? Simulated on captured prompts that it did not learn from.

The captured prompts are split into two random halves. What a method learns from routes it learns from one half; it
then orders the other half, which is simulated. Then the halves change roles.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from orderproof.job.spec import OrderSpec
from orderproof.orders.greedy import greedy_order
from orderproof.orders.registry import make_order
from orderproof.orders.shuffled import shuffle
from orderproof.orders.view import PromptView
from orderproof.routing.errors import RoutingError
from orderproof.routing.experts import frequencies
from orderproof.routing.routes import Routes
from orderproof.routing.routes_writer import write_routes
from orderproof.routing.simulate import EngineShape, simulate_captured
from orderproof.signals.predictor import LEAST_PROMPTS, fit
from orderproof.signals.predictor_file import write_predictor
from orderproof.signals.registry import ROUTING_SIGNALS
from orderproof.signals.served_model import ROUTES_FILE, ServedModel, predictor_path

SHUFFLES = 5  # whose mean is the reference of what is saved


@dataclass(frozen=True)
class Choice:
    """One way to order, on prompts that it did not learn from."""

    spec: OrderSpec
    experts_per_step: float  # distinct ones per layer
    saved: float  # share of the experts that a shuffle reads


@dataclass(frozen=True)
class Choices:
    """All methods, best first; of equal ones the first named."""

    ranked: tuple[Choice, ...]
    shuffled: float  # distinct experts per layer and step
    oracle: float  # likewise: greedy by the real routes; a yardstick, not a bound

    @property
    def headroom(self) -> float:
        """Share of a shuffle's experts that the oracle saves."""
        return 1 - self.oracle / self.shuffled


def choose(
    specs: Sequence[OrderSpec],
    prompts: PromptView,
    routes: Routes,
    served: ServedModel,
    shape: EngineShape,
    seed: int = 0,
) -> Choices:
    """Rank methods to order.

    Args:
        prompts: include all captured ones.
        served: the model; its routes are not read.
        shape: the engine; each prompt generates as many tokens as were captured.

    Raises:
        RoutingError: too few captured prompts to learn from one half and compare on the other.
        OrderError, SignalError: a method cannot be applied to these prompts.
    """
    if len(routes) < 2 * LEAST_PROMPTS:
        raise RoutingError(
            f"{routes.path}: {len(routes)} captured prompts; comparing orders needs {2 * LEAST_PROMPTS}, half to learn "
            "from and half to compare on. Capture more with `orderproof capture JOB --prompts N`"
        )
    place = {prompt_id: i for i, prompt_id in enumerate(prompts.ids)}
    drawn = shuffle(len(routes), seed)
    halves = np.sort(drawn[: len(drawn) // 2]), np.sort(drawn[len(drawn) // 2 :])
    served = replace(served, batch=shape.batch, batched_tokens=shape.batched_tokens)
    captured = replace(prompts.take([place[prompt_id] for prompt_id in routes.ids]), served=served)
    counts = []
    for learned, held in (halves, halves[::-1]):
        with _learned(specs, prompts, routes, learned, served) as known:
            counts.append(experts_read(specs, replace(captured, served=known), routes, held, shape, seed))
    *means, best, shuffled = np.mean(counts, axis=0).tolist()
    choices = [Choice(spec, mean, 1 - mean / shuffled) for spec, mean in zip(specs, means, strict=True)]
    return Choices(tuple(sorted(choices, key=lambda choice: choice.experts_per_step)), shuffled, best)


def experts_read(
    specs: Sequence[OrderSpec],
    captured: PromptView,
    routes: Routes,
    held: NDArray[np.int64],
    shape: EngineShape,
    seed: int = 0,
) -> list[float]:
    """The experts that orders of some captured prompts read, by simulation.

    Args:
        captured: in the order of the routes, with the served model as it is known.
        held: places among them, ascending.

    Returns:
        Distinct experts per layer and step of each order, of the oracle, and of a shuffle (the mean of SHUFFLES).

    Raises:
        OrderError, SignalError: a method cannot be applied to these prompts.
    """
    view, samples = captured.take(held.tolist()), dict(enumerate(captured.samples(range(len(captured)))))
    orders = [make_order(spec, view, "").permutation for spec in specs]
    orders.append(oracle(routes, held, captured.at_once() or shape.batch))
    shuffles = [shuffle(len(held), seed + k) for k in range(SHUFFLES)]
    passes = [simulate_captured(routes, held[order].tolist(), shape, samples) for order in orders + shuffles]
    found = [simulated.experts_per_layer for simulated in passes]
    return [*found[:-SHUFFLES], float(np.mean(found[-SHUFFLES:]))]


def oracle(routes: Routes, places: NDArray[np.int64], beside: int) -> NDArray[np.int64]:
    """The greedy order by how often each prompt's answer used each expert.

    Args:
        beside: prompts that run at once.

    Returns:
        int64[n]: the k-th value says which of `places` is sent k-th.
    """
    record = routes.record
    likely = [np.minimum(frequencies(routes[k].decode, record.experts) * record.top_k, 1) for k in places.tolist()]
    return greedy_order([np.array(likely, np.float32)], beside - 1, pool=max(1, len(places)))


def _learned(
    specs: Sequence[OrderSpec], prompts: PromptView, routes: Routes, learned: NDArray[np.int64], served: ServedModel
) -> AbstractContextManager[ServedModel]:
    if any(spec.signal in ROUTING_SIGNALS for spec in specs):
        return learned_from(routes, learned, prompts, served)
    return contextlib.nullcontext(replace(served, routes=None))


@contextlib.contextmanager
def learned_from(
    routes: Routes, learned: NDArray[np.int64], prompts: PromptView, served: ServedModel
) -> Iterator[ServedModel]:
    """The served model as if only the routes at the places `learned` had been captured.

    Args:
        prompts: include all captured ones.

    Raises:
        SignalError: too few routes to learn from.
    """
    known = replace(served, routes=None)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ROUTES_FILE
        with write_routes(path, routes.record) as writer:
            for k in learned.tolist():
                writer.add(routes[k].prompt_id, routes[k].prompt_tokens, routes[k].experts)
        with Routes(path) as half:
            write_predictor(predictor_path(path), fit(prompts, half, known))
        yield replace(known, routes=path)
