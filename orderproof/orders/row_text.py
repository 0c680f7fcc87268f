"""The text by which an order compares the rows of any tool's file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from orderproof.job.spec import OrderSpec
from orderproof.orders.prompt_text import text_of
from orderproof.prompts.rendering import Rendering
from orderproof.routing.errors import RoutingError
from orderproof.routing.routes import CHAT_TEMPLATE_ARGS, Routes
from orderproof.signals.registry import ROUTING_SIGNALS
from orderproof.signals.served_model import ServedModel

RowText = Callable[[Mapping[str, Any], str], str]  # (row, its name in messages) → its text; OrderError without one


def row_text(spec: OrderSpec, served: ServedModel) -> RowText:
    """Choose how rows are read.

    Captured prompts are recognised by the text that the model received, so for a routing signal a chat is rendered by
    the model's template; a row that a job would not accept is read by its words, as it is for every other signal.
    """
    if spec.signal not in ROUTING_SIGNALS or served.model is None or served.routes is None:
        return text_of
    render = Rendering(served.tokenizer or served.model, _template_arguments(served.routes))

    def rendered_text(record: Mapping[str, Any], where: str) -> str:
        text = render(record)
        return text_of(record, where) if text is None else text

    return rendered_text


def _template_arguments(routes: Path) -> Mapping[str, Any]:
    """The chat template's arguments with which the captured prompts were rendered."""
    try:
        with Routes(routes) as captured:
            return captured.record.capture.get(CHAT_TEMPLATE_ARGS) or {}
    except RoutingError:  # reported when the signal is loaded
        return {}
