"""A check is one line, one object, and never a fault without advice."""

from __future__ import annotations

import json

import pytest

from orderproof.doctor.check import Check


def test_a_fault_without_advice_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="no remedy"):
        Check("disk", "warn", "full")


def test_a_check_is_one_line_and_one_json_object() -> None:
    check = Check("params.yaml", "fail", "two\nlines", "fix them")
    assert check.line().splitlines() == ["fail  params.yaml       two; lines → fix them"]
    assert json.loads(json.dumps(check.as_json())) == {
        "name": "params.yaml",
        "state": "fail",
        "finding": "two\nlines",
        "remedy": "fix them",
    }
