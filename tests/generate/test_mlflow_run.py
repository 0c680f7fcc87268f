"""What MLflow is told of a run: nothing is cut silently, and a lossy routing says so in its tag and its parameter."""

from __future__ import annotations

from typing import Any

from orderproof.generate.picture import _title
from orderproof.generate.record import BatchRun
from orderproof.generate.tracking import CURVE_POINTS, _record
from orderproof.lossy.routing import routing_named
from orderproof.orders.order_record import OrderRecord

NOON = "2026-11-29T12:00:00+00:00"


def run(**changes: Any) -> BatchRun:
    order = OrderRecord(method="label", parameters={"window": 8}, seeds={}, dataset_md5="a", sha256="b")
    fields = {"run": "r", "job": "it", "started_utc": NOON, "ended_utc": NOON, "dataset_md5": "a", "order": order,
              "order_why": "it was promoted", "resumed": 0, "generated": 1, "outputs": "o", "outputs_md5": "m",
              "key": {}, "prompts": 1, "failed": 0}  # fmt: skip
    return BatchRun.model_validate({**fields, **changes})


def test_a_value_too_long_for_a_parameter_is_named_and_never_cut() -> None:
    params = _record(run(key={"sampling": {"stop": ["x" * 600]}}), None).params
    assert params["sampling"] == "long: see the artifact r.json"
    assert (params["order"], params["order.parameters"]) == ("label", '{"window":8}')


def test_a_lossy_routing_is_in_a_tag_and_a_parameter_and_the_models_own_in_the_latter_alone() -> None:
    own, lossy = _record(run(), None), _record(run(lossy_k0=2), None)
    assert ("lossy" in own.tags, own.params["routing"]) == (False, routing_named(None))
    assert (lossy.tags["lossy"], lossy.params["routing"]) == ("k0 = 2", routing_named(2))


def test_the_picture_of_a_lossy_run_says_so_first() -> None:
    assert _title(run()) == "it: 1 requests in label order"
    assert _title(run(lossy_k0=2)) == f"{routing_named(2)}: it: 1 requests in label order"


def test_no_two_points_of_a_curve_have_one_step() -> None:
    sent = _record(run(curve=[(float(k), 1.0, 0.0) for k in range(1_990)]), None).series["step_ms"]
    assert len(sent) <= CURVE_POINTS == 100
    assert sent[:2] == [0.0, 20.0]
