"""The public names are exactly those listed, and importing the package costs nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

import orderproof

PUBLIC = [
    "decide",
    "expert_friendly_order",
    "generate_job",
    "load_job",
    "measure_job",
    "plan_job",
    "reproduce_job",
    "restore",
]
HEAVY = ["numpy", "pyarrow", "torch", "mlflow", "prefect", "dvc"]


def test_the_public_names_are_these() -> None:
    assert sorted(orderproof.__all__) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_each_public_name_can_be_imported(name: str) -> None:
    assert callable(getattr(orderproof, name))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = orderproof.no_such_name


def test_importing_the_package_loads_no_large_library() -> None:
    script = f"import sys, orderproof; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
