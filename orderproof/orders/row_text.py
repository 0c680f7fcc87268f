"""How an order reads a row of any tool's file: the text by which prompts are compared.

In: a way to order, and what is known of the served model. Out: a function of a row as it was parsed. Knows nothing of
files, and nothing of how texts are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from orderproof.job.spec import OrderSpec
from orderproof.orders.view import text_of
from orderproof.prompts.rendering import Rendering
from orderproof.routing.errors import RoutingError
from orderproof.routing.routes import CHAT_TEMPLATE_ARGS, Routes
from orderproof.signals.registry import ROUTING_SIGNALS
from orderproof.signals.served_model import ServedModel

Reading = Callable[[Mapping[str, Any], str], str]  # (row, where it stands) → its text; OrderError where there is none


def reading_of(spec: OrderSpec, served: ServedModel) -> Reading:
    """A row's words; or, where prompts are looked for among captured ones, which are known by what the model met, the
    chat through its template. A row that no job would take is read by its words then, too.
    """
    if spec.signal not in ROUTING_SIGNALS or served.model is None or served.routes is None:
        return text_of
    rendering = Rendering(served.tokenizer or served.model, _template_arguments(served.routes))

    def rendered_or_words(record: Mapping[str, Any], where: str) -> str:
        text = rendering(record)
        return text_of(record, where) if text is None else text

    return rendered_or_words


def _template_arguments(routes: Path) -> Mapping[str, Any]:
    """With which the captured prompts were rendered."""
    try:
        with Routes(routes) as captured:
            return captured.record.capture.get(CHAT_TEMPLATE_ARGS) or {}
    except RoutingError:  # whoever takes the signal says so
        return {}
