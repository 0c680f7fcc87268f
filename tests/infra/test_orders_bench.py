"""What a comparison of orders runs: a trial's passes, with an arm for each order. The engine is the stand-in."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from orderproof.tasks.jobs import OrderSpec
from tests.conftest import ROOT
from tests.e2e.batches import make_project
from tests.tasks.tiny_tokenizer import save_model

sys.path.insert(0, str(ROOT / "infra" / "bench"))  # a script, no package

import orders as bench

ANY_MACHINE = {"probe_slowdown": 1000.0, "steal": 1.0, "probe_mib": 16}


def test_every_order_is_compared_with_shuffled_in_every_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = make_project(tmp_path / "p", 240, step_ms=0.2)
    save_model(job.model_path)
    told, params = tmp_path / "told.json", job.root / "params.yaml"
    document = json.loads(params.read_text())
    document["defaults"]["measure"] = {"validity": ANY_MACHINE}
    params.write_text(json.dumps(document))
    words = ["it", "--params", str(params), "--blocks", "2", "--json", str(told), "--orders", "label", "label/80"]
    monkeypatch.setattr(sys, "argv", ["orders.py", *words])
    bench.main()
    figures = {name: found["measured"] for name, found in json.loads(told.read_text()).items()}
    assert list(figures) == ["shuffled", "label", "label/80"]
    assert figures["shuffled"]["gain"] is None
    for name in ("label", "label/80"):
        arm = figures[name]
        assert len(arm["blocks"]) == 2
        assert arm["low"] <= arm["gain"] <= arm["high"]
    assert "2 blocks count, 0 passes were discarded" in capsys.readouterr().out
    assert not (job.root / "reports").exists()


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("file", {"method": "file"}),
        ("label/128", {"method": "label", "window": 128}),
        ("token", {"method": "cluster", "signal": "token"}),
        ("lexicalx64/256", {"method": "cluster", "signal": "lexical", "clusters": 64, "window": 256}),
        ("greedy", {"method": "greedy", "signal": "predicted"}),
    ],
)
def test_an_order_has_a_short_name(name: str, fields: dict[str, Any]) -> None:
    assert bench.spec_of(name) == OrderSpec.model_validate(fields)


def test_what_names_no_order_is_told() -> None:
    with pytest.raises(SystemExit, match=r"'label:128' names no order"):
        bench.spec_of("label:128")
