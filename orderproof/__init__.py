"""Decides with evidence in which order to send an offline batch to a mixture-of-experts model, and sends it so."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from orderproof import telemetry as telemetry

if TYPE_CHECKING:
    from orderproof.forecast.story import plan as plan_job
    from orderproof.generate.story import generate as generate_job
    from orderproof.job.params import load_job as load_job
    from orderproof.measure.decide import decide as decide
    from orderproof.measure.story import measure as measure_job
    from orderproof.orders.registry import expert_friendly_order as expert_friendly_order
    from orderproof.orders.registry import restore as restore
    from orderproof.reproduce.story import reproduce as reproduce_job

# Imported when first used: they bring numpy, pyarrow and more, and `orderproof --help` needs none of it. The verbs are
# called measure_job and so on, because orderproof.measure is the room.
_HOMES = {
    "decide": ("orderproof.measure.decide", "decide"),
    "expert_friendly_order": ("orderproof.orders.registry", "expert_friendly_order"),
    "generate_job": ("orderproof.generate.story", "generate"),
    "load_job": ("orderproof.job.params", "load_job"),
    "measure_job": ("orderproof.measure.story", "measure"),
    "plan_job": ("orderproof.forecast.story", "plan"),
    "reproduce_job": ("orderproof.reproduce.story", "reproduce"),
    "restore": ("orderproof.orders.registry", "restore"),
}
__all__ = [
    "decide",
    "expert_friendly_order",
    "generate_job",
    "load_job",
    "measure_job",
    "plan_job",
    "reproduce_job",
    "restore",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        module, attribute = _HOMES[name]
        return getattr(import_module(module), attribute)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
