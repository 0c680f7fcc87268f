"""Make an order: the same permutation each time for the same prompts, parameters and seeds.

In a script of your own, three lines around whatever generates:

    order = expert_friendly_order(prompts)
    outputs = llm.generate(order.apply(prompts), sampling)
    outputs = restore(outputs, order)  # in the order of `prompts` again

Each way to order is a module of this package with a function `rank`; `OrderSpec.method` lists their names.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar, get_args

import numpy as np

from orderproof.job.spec import OrderSpec
from orderproof.orders.order import Order, OrderError
from orderproof.orders.purity import purity
from orderproof.orders.view import AnyPrompt, AnyPrompts, PromptView, view_of
from orderproof.orders.window import Windows
from orderproof.signals.served_model import UNKNOWN_MODEL, ServedModel

METHODS: tuple[str, ...] = get_args(OrderSpec.model_fields["method"].annotation)
DEFAULT = OrderSpec()

T = TypeVar("T")


def make_order(spec: OrderSpec, prompts: PromptView | AnyPrompts, dataset_md5: str) -> Order:
    """Order prompts as `spec` asks.

    Args:
        dataset_md5: of the file that the prompts are in; kept in the order's record.

    Raises:
        OrderError: these prompts cannot be ordered in this way; names the first one at fault.
        SignalError: the signal cannot be computed for them.
    """
    view = view_of(prompts)
    windows, size = Windows(spec), spec.window or max(1, len(view))
    starts = range(0, max(1, len(view)), size)  # without prompts one empty window, whose parameters are recorded
    permutation = np.concatenate([start + windows.add(view.part(start, start + size)) for start in starts])
    label_purity = purity(permutation, view.labels)
    return Order(permutation, spec.method, windows.parameters, windows.seeds, dataset_md5, label_purity)


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
) -> Order:
    """An order in which neighbouring prompts are likely to use the same experts.

    Args:
        prompts: texts, chats (lists of messages), mappings with `text` (and `id`, `label`) or `Prompt`s.
        method: one of METHODS.
        window: order only within so many consecutive prompts.
        clusters: how many the method `cluster` makes.
        signal: how `cluster` compares prompts: `lexical` (no model), `token` (the served model's own embeddings) or
            `embedding` (a sentence-transformers model), the default.
        embedding: which model the signal `embedding` uses.
        model: folder of the served model, for the signal `token`.

    Raises:
        OrderError: unknown method, wrong parameter, or prompts that cannot be ordered in this way.
        SignalError: the signal cannot be computed for them.
    """
    if method not in METHODS:
        near = difflib.get_close_matches(method, METHODS, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(METHODS)}"
        raise OrderError(f"there is no method {method!r} to order prompts: {hint}")
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
    view = view_of(prompts, ServedModel(Path(model)) if model else UNKNOWN_MODEL)
    return make_order(spec, view, _md5(view))


def restore(outputs: Sequence[T], order: Order) -> list[T]:
    """Put outputs that are in the order of sending back into the order of the prompts.

    Raises:
        OrderError: not as many outputs as prompts.
    """
    return order.restore(outputs)


def _md5(view: PromptView) -> str:
    """Hash prompts that are in no file: ids and texts, each preceded by its length, so that no two lists are alike."""
    digest = hashlib.md5(usedforsecurity=False)
    for i, text in enumerate(view.texts()):
        for part in (view.ids[i].encode("utf-8", "surrogatepass"), text.encode("utf-8", "surrogatepass")):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
    return digest.hexdigest()
