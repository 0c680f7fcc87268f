"""A predictor is read as it was written, for its own model only, and again when its file changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from orderproof.signals.predictor_file import fit_and_write, predictor_of, read_predictor, write_predictor
from orderproof.signals.registry import SignalError
from orderproof.signals.served_model import UNKNOWN_MODEL, predictor_path
from tests.support.routed import Routed, fitted, make_routed


@pytest.fixture(scope="module")
def routed(tmp_path_factory: pytest.TempPathFactory) -> Routed:
    return make_routed(tmp_path_factory.mktemp("routed"))


def predictor_file(routed: Routed) -> Path:
    assert routed.served.routes is not None
    return predictor_path(routed.served.routes)


def test_a_fit_is_the_same_bits_each_time_and_after_its_file(routed: Routed, tmp_path: Path) -> None:
    from threadpoolctl import threadpool_limits

    with threadpool_limits(3):
        again = fitted(routed)
    write_predictor(tmp_path / "predictor.npz", again)
    model = routed.served.model or Path()
    first, second = (read_predictor(path, model) for path in (predictor_file(routed), tmp_path / "predictor.npz"))
    assert first.record == second.record
    for part in ("prefill", "decode"):
        assert first.weights[part].tobytes() == second.weights[part].tobytes()
    assert first.lexical.tobytes() == second.lexical.tobytes()


def test_a_predictor_that_cannot_be_made_leaves_no_older_one_behind(tmp_path: Path) -> None:
    routed = make_routed(tmp_path)
    assert routed.served.routes is not None
    assert fit_and_write(routed.view, routed.served.routes, routed.served) == fitted(routed).record
    with pytest.raises(SignalError, match="not among the prompts"):
        fit_and_write(routed.view.take(range(50)), routed.served.routes, routed.served)
    assert not predictor_file(routed).exists()


def test_without_routes_the_command_that_makes_them_is_named(routed: Routed, tmp_path: Path) -> None:
    with pytest.raises(SignalError, match="orderproof capture JOB"):
        predictor_of(UNKNOWN_MODEL, "predicted")
    with pytest.raises(SignalError, match=r"predictor\.npz does not exist: `orderproof capture JOB` makes it"):
        predictor_of(replace(routed.served, routes=tmp_path / "routes.parquet"), "predicted")


@pytest.mark.parametrize("size", [0, 10, 500, -1])
def test_a_damaged_predictor_is_refused(routed: Routed, tmp_path: Path, size: int) -> None:
    path = tmp_path / "predictor.npz"
    path.write_bytes(predictor_file(routed).read_bytes()[:size])
    with pytest.raises(SignalError, match="cannot be read as a predictor"):
        read_predictor(path, routed.served.model or Path())


def test_a_pickle_in_its_place_is_never_opened(routed: Routed, tmp_path: Path) -> None:
    np.savez(tmp_path / "predictor.npz", record=np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(SignalError, match="cannot be read as a predictor"):
        read_predictor(tmp_path / "predictor.npz", routed.served.model or Path())


def test_a_predictor_of_another_model_is_refused(routed: Routed, tmp_path: Path) -> None:
    other = make_routed(tmp_path, seed=1)
    with pytest.raises(SignalError, match="another model's routes"):
        read_predictor(predictor_file(routed), other.served.model or Path())


def test_a_predictor_that_was_replaced_is_read_again(tmp_path: Path) -> None:
    routed = make_routed(tmp_path)
    before = predictor_of(routed.served, "predicted")
    assert predictor_of(routed.served, "predicted") is before
    changed = replace(before, record=replace(before.record, prompts=7))
    write_predictor(predictor_file(routed), changed)
    assert predictor_of(routed.served, "predicted").record.prompts == 7
