"""How far outputs moved: what passes generated (passes.py), how often they disagree (disagreement.py), whether that is
more than reshuffling does (change.py), where two outputs part (divergence.py), and how well they answer (scorers.py).
"""

from orderproof.tasks.outputs.change import TOLERANCE, OutputChange, ScoreChange, compare, detectable_excess
from orderproof.tasks.outputs.passes import (
    CANDIDATE,
    CONTROL,
    SHUFFLED,
    OutputsError,
    PassOutputs,
    agreement_matrix,
    arm_of_shuffles,
    churn,
    disagreement_with_controls,
    rows_in_file_order,
)

__all__ = [
    "CANDIDATE",
    "CONTROL",
    "SHUFFLED",
    "TOLERANCE",
    "OutputChange",
    "OutputsError",
    "PassOutputs",
    "ScoreChange",
    "agreement_matrix",
    "arm_of_shuffles",
    "churn",
    "compare",
    "detectable_excess",
    "disagreement_with_controls",
    "rows_in_file_order",
]
