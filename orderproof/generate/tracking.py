"""What MLflow holds of a generation beside its figures: what the outputs are, and the curves of its steps."""

from __future__ import annotations

from orderproof.lossy.routing import routing_name
from orderproof.runs.mlflow_run import Tracking
from orderproof.runs.run import Run

CURVES = ("step_ms", "running", "waiting")
CURVE_POINTS = 100  # sent of each curve: a step is a percentage of the run, and the record has them all


def tracking_of(run: Run) -> Tracking:
    """What a generation adds to its MLflow run."""
    curve = run.details.get("curve")
    points = curve if isinstance(curve, list) else []
    thinned = points[:: max(1, -(-len(points) // CURVE_POINTS))]
    series = {name: [float(point[k]) for point in thinned] for k, name in enumerate(CURVES)} if thinned else {}  # type: ignore[index,arg-type]
    return Tracking(
        tags={"outputs_md5": str(run.details.get("outputs_md5"))},
        params={"routing": routing_name(run.basis.lossy_k0)},
        series=series,
    )
