"""What a generation adds to its MLflow run, and what its picture says first."""

from __future__ import annotations

from typing import Any

from orderproof.generate.picture import _title
from orderproof.generate.tracking import CURVE_POINTS, CURVES, tracking_of
from orderproof.lossy.routing import routing_name
from orderproof.runs.run import Figure, Run
from tests.support.run_maker import make_run


def run(lossy_k0: int | None = None, **details: Any) -> Run:
    return make_run(
        figures=(Figure(name="generated", value=1),), details={"outputs_md5": "m", **details}, lossy_k0=lossy_k0
    )


def test_a_lossy_routing_is_a_parameter_and_so_is_the_models_own() -> None:
    assert tracking_of(run()).params["routing"] == routing_name(None)
    assert tracking_of(run(lossy_k0=2)).params["routing"] == routing_name(2)


def test_the_outputs_are_named_by_their_hash() -> None:
    assert tracking_of(run()).tags["outputs_md5"] == "m"


def test_the_picture_of_a_lossy_run_says_so_first() -> None:
    assert _title(run()) == "it: 1 requests in label order"
    assert _title(run(lossy_k0=2)) == f"{routing_name(2)}: it: 1 requests in label order"


def test_a_curve_is_thinned_from_its_beginning_in_equal_steps() -> None:
    series = tracking_of(run(curve=[[float(k), 1.0, 0.0] for k in range(1_990)])).series
    assert tuple(series) == CURVES
    assert len(series["step_ms"]) <= CURVE_POINTS == 100
    assert list(series["step_ms"][:2]) == [0.0, 20.0]
    assert set(series["running"]) == {1.0}


def test_a_run_without_steps_has_no_curves() -> None:
    assert tracking_of(run(curve=[])).series == {}
