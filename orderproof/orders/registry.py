"""Orders: in which sequence prompts are sent.

In: prompts and an `OrderSpec`. Out: an `Order`, the same bits each time for the same prompts, parameters and seeds.
Knows no engine, MLflow or DVC.

In a script of your own, three lines around whatever generates:

    order = expert_friendly_order(prompts)
    outputs = llm.generate(order.apply(prompts), sampling)
    outputs = restore(outputs, order)  # in the order of `prompts` again

Each way to order is a module here with a function `rank`; the names under `OrderSpec.method` are the registry.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar, get_args

import numpy as np

from orderproof.job.spec import OrderSpec
from orderproof.orders.order import Order, OrderError, read_order, write_order
from orderproof.orders.purity import purity
from orderproof.orders.shuffle_test import neighbour_tests, shuffle_like
from orderproof.orders.view import AnyPrompt, AnyPrompts, PromptView, view_of
from orderproof.orders.window import Windows
from orderproof.signals.registry import Progress
from orderproof.signals.served_model import UNKNOWN, Served

__all__ = [
    "METHODS",
    "Order",
    "OrderError",
    "PromptView",
    "Windows",
    "expert_friendly_order",
    "make_order",
    "neighbour_tests",
    "read_order",
    "restore",
    "shuffle_like",
    "view_of",
    "write_order",
]

METHODS: tuple[str, ...] = get_args(OrderSpec.model_fields["method"].annotation)
DEFAULT = OrderSpec()

T = TypeVar("T")


def make_order(
    spec: OrderSpec, prompts: PromptView | AnyPrompts, dataset_md5: str, *, progress: Progress | None = None
) -> Order:
    """Order prompts as a job asks.

    Args:
        dataset_md5: of the file that the prompts are in; goes into the record.
        progress: told of prompts as their features are made.

    Raises:
        OrderError: these prompts cannot be ordered so; the first to blame is named.
        SignalError: the signal cannot be taken of them.
    """
    view = view_of(prompts)
    windows, size = Windows(spec), spec.window or max(1, len(view))
    starts = range(0, max(1, len(view)), size)
    sent = [
        start + windows.add(view.part(start, start + size), _within(progress, start, len(view))) for start in starts
    ]
    permutation = np.concatenate(sent)
    known = purity(permutation, view.labels)
    return Order(permutation, spec.method, windows.parameters, windows.seeds, dataset_md5, known)


def expert_friendly_order(
    prompts: Sequence[AnyPrompt],
    method: str = DEFAULT.method,
    *,
    window: int | None = None,
    seed: int = 0,
    clusters: int = DEFAULT.clusters,
    signal: str | None = None,
    embedding: str = DEFAULT.embedding,
    model: str | Path | None = None,
    progress: Progress | None = None,
) -> Order:
    """An order that puts prompts side by side which are likely to use the same experts.

    Args:
        prompts: texts, chats (lists of messages), mappings with `text` (and `id`, `label`) or `Prompt`s.
        method: one of METHODS.
        window: order only within so many consecutive prompts.
        clusters: of the method `cluster`.
        signal: what `cluster` compares prompts by: `lexical` (no model), `token` (the served model's own embeddings),
            or `embedding` (a sentence-transformers model), the default.
        embedding: of the signal `embedding`: which model.
        model: folder of the served model, for `token`.

    Raises:
        OrderError: no such method or parameter, or prompts that cannot be ordered so.
        SignalError: the signal cannot be taken of them.
    """
    if method not in METHODS:
        near = difflib.get_close_matches(method, METHODS, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(METHODS)}"
        raise OrderError(f"no way to order is called {method!r}: {hint}")
    try:
        spec = OrderSpec.model_validate(
            {
                "method": method,
                "window": window,
                "seed": seed,
                "clusters": clusters,
                "embedding": embedding,
                **({} if signal is None else {"signal": signal}),
            }
        )
    except ValueError as error:
        raise OrderError(" ".join(str(error).split())) from None
    view = view_of(prompts, Served(Path(model)) if model else UNKNOWN)
    return make_order(spec, view, _md5(view), progress=progress)


def restore(outputs: Sequence[T], order: Order) -> list[T]:
    """Outputs in the order of sending → in the order of the prompts.

    Raises:
        OrderError: another number of outputs than of prompts.
    """
    return order.restore(outputs)


def _within(progress: Progress | None, start: int, total: int) -> Progress | None:
    """Of a window that begins at `start`, told as progress in the whole."""
    return progress and (lambda done, _: progress(start + done, total))


def _md5(view: PromptView) -> str:
    """Of prompts that are in no file: their ids and texts, each with its length, so that no two lists share one."""
    digest = hashlib.md5(usedforsecurity=False)
    for i, text in enumerate(view.texts()):
        for part in (view.ids[i].encode("utf-8", "surrogatepass"), text.encode("utf-8", "surrogatepass")):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
    return digest.hexdigest()
