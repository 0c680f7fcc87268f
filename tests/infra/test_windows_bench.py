"""What the comparison of windows runs: a trial's passes, with an arm for each window. The engine is the stand-in."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.e2e.batches import make_project
from tests.tasks.tiny_tokenizer import save_model

sys.path.insert(0, str(ROOT / "infra" / "bench"))  # a script, no package

import windows as bench


def test_every_way_is_compared_with_shuffled_in_every_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = make_project(tmp_path / "p", 240, step_ms=0.2)
    save_model(job.model_path)
    told = tmp_path / "told.json"
    words = ["it", "--params", str(job.root / "params.yaml"), "--method", "label", "--windows", "80", "--blocks", "2"]
    monkeypatch.setattr(sys, "argv", ["windows.py", *words, "--json", str(told)])
    params = json.loads((job.root / "params.yaml").read_text())
    params["defaults"]["measure"] = {"validity": {"probe_slowdown": 1000.0, "steal": 1.0, "probe_mib": 16}}
    (job.root / "params.yaml").write_text(json.dumps(params))
    bench.main()
    figures = json.loads(told.read_text())
    assert (figures["blocks"], figures["discarded_passes"]) == (2, 0)
    shuffled, whole, windowed = figures["ways"]
    assert [way["name"] for way in figures["ways"]] == ["shuffled", "label, whole file", "label, windows of 80"]
    assert shuffled["gain"] is None
    assert all(len(way["blocks"]) == 2 and way["low"] <= way["gain"] <= way["high"] for way in (whole, windowed))
    assert whole["labels_per_batch"] < windowed["labels_per_batch"] < 7
    assert "gain over shuffled" in capsys.readouterr().out
    assert not (job.root / "reports").exists()
