"""Decides with evidence in which order to send an offline batch to a mixture-of-experts model, and sends it so."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from orderproof import telemetry as telemetry

if TYPE_CHECKING:
    from orderproof.job.params import load_job as load_job
    from orderproof.orders.registry import expert_friendly_order as expert_friendly_order
    from orderproof.orders.registry import restore as restore

# Imported when first used: most of them bring numpy, pyarrow and more, and `orderproof --help` needs none of it.
_HOMES = {
    "expert_friendly_order": "orderproof.orders.registry",
    "load_job": "orderproof.job.params",
    "restore": "orderproof.orders.registry",
}
__all__ = ["expert_friendly_order", "load_job", "restore"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
