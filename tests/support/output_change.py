"""Changes of outputs as a comparison would find them."""

from __future__ import annotations

from typing import Any

from orderproof.outputs.output_change import OutputChange


def output_change(**fields: Any) -> OutputChange:
    """One that changed no more than reshuffling does; `fields` replace its own."""
    unchanged: dict[str, Any] = {
        "prompts": 768,
        "control_passes": 5,
        "candidate_passes": 5,
        "d_aa": 0.05,
        "d_ab": 0.05,
        "d_bb": 0.0,
        "excess": 0.0,
        "se": 0.002,
        "se_prompts": 0.002,
        "se_passes": 0.001,
        "low": -0.004,
        "high": 0.004,
        "answer": "as_reshuffling",
        "first_divergence": {},
        "vacuous": False,
        "smallest_excess": 0.01,
        "scores": None,
    }
    return OutputChange(**{**unchanged, **fields})
