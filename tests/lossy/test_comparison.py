"""The lossy comparison on an engine that answers as it is told. The routing itself: engines/test_routing.py."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from orderproof.engines.protocol import Completion, EngineInfo, Failure, Output, Request
from orderproof.job.model import ModelFacts
from orderproof.job.spec import EngineSpec, Job, MeasureSpec, OrderSpec
from orderproof.lossy.comparison import compare_lossy
from orderproof.lossy.order import order_to_compare
from orderproof.lossy.report import LOSSY, SORTED, SORTED_LOSSY, LossyReport, lines, read_report, write_page
from orderproof.lossy.routing import LossyError, refuse_k0
from orderproof.orders.registry import make_order
from orderproof.prompts.prompt_file import read_prompts
from orderproof.prompts.tokenization import tokenize
from tests.support.captured_job import make_job
from tests.support.fake_engine import MOE, grouped, mixed, prompts_of

PROMPTS, BATCH = 300, 8
GROUPED = np.arange(PROMPTS)  # places in a file that is sorted by domain
SHUFFLED_FILE = np.random.default_rng(0).permutation(GROUPED)
DEALT_OUT = GROUPED.reshape(3, -1).T.ravel()
KINDS = SHUFFLED_FILE * 3 // PROMPTS  # of its prompts
RATE = {SORTED: 1.2, LOSSY: 1.1, SORTED_LOSSY: 1.3}


class ToldEngine:
    """Sorted passes are 1.2 times as fast and lossy ones 1.1 times; a lossy one changes every fourth output's tokens.

    `moved`: the text of those.
    """

    info = EngineInfo(1.0, {"vllm": "0"}, {"device_type": "none"}, {})

    def __init__(self, refuse: int = -1, moved: str = "wrong") -> None:
        self.k0: int | None = None
        self.moved = moved
        self.refuse = refuse
        self.passes: list[tuple[int | None, list[int]]] = []

    @contextlib.contextmanager
    def opportunistic(self, k0: int | None) -> Iterator[None]:
        self.k0 = k0
        yield
        self.k0 = None

    def run(
        self, requests: Iterable[Request], sampling: Mapping[str, Any], sink: Callable[[Output | Failure], None]
    ) -> Any:
        sent = [request.number for request in requests]
        self.passes.append((self.k0, sent))
        for number in sent:
            if number == self.refuse:
                sink(Failure(number, "too long"))
                continue
            moved = self.k0 is not None and number % 4 == 0
            text = self.moved if moved else "right"
            sink(Output(number, (Completion([number, int(moved)], text, "length"),), 0, 0.0, 0.0))
        grouped = sum(np.diff(KINDS[sent]) == 0) > PROMPTS / 2
        arm = {(True, False): SORTED, (False, True): LOSSY, (True, True): SORTED_LOSSY}
        rate = RATE.get(arm.get((bool(grouped), self.k0 is not None), ""), 1.0)
        noise = 1 + 0.004 * (len(self.passes) % 3)

        class Done:
            wall_s = noise / rate

        return Done()


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(
        name="it",
        root=tmp_path,
        prompts="p.jsonl",
        model="m",
        engine=EngineSpec(args={"max_num_seqs": BATCH}),
        sampling={"temperature": 0, "max_tokens": 2},
        order=OrderSpec(method="label"),
        measure=MeasureSpec(scorer="exact"),
    )


def compared(
    job: Job,
    engine: Any,
    k0: int = 2,
    blocks: int = 5,
    file: NDArray[np.int64] = SHUFFLED_FILE,
    right: Sequence[str] = ("right", "-"),
) -> LossyReport:
    """`right`: the references of successive prompts, over and over."""
    prompts = prompts_of(grouped(PROMPTS)).take(file)
    prompts.references[:] = [right[k % len(right)] for k in range(len(file))]
    return compare_lossy(job, MOE, prompts, make_order(job.order, prompts, "md5"), engine, k0, blocks)


def test_every_block_holds_every_arm_once_and_the_coin_orders_them(job: Job) -> None:
    engine = ToldEngine()
    compared(job, engine, blocks=6)
    warm_up, *timed = engine.passes
    assert len(warm_up[1]) < PROMPTS
    blocks = [timed[start : start + 4] for start in range(0, 24, 4)]
    assert all([k0 for k0, _ in block].count(2) == 2 for block in blocks)
    assert len({tuple(k0 for k0, _ in block) for block in blocks}) > 1
    for block in blocks:
        orders = {k0: [sent for own, sent in block if own == k0] for k0 in (None, 2)}
        assert sorted(orders[None]) == sorted(orders[2]), "the lossy arms send what the others send"
    assert len({tuple(sent) for block in blocks for _, sent in block}) == 1 + 6, "a fresh shuffle for every block"


def test_each_arm_has_its_gain_its_churn_and_its_scores(job: Job) -> None:
    arms = {arm.arm: arm for arm in compared(job, ToldEngine()).arms}
    assert {name: arm.gain for name, arm in arms.items()} == pytest.approx(
        {name: rate - 1 for name, rate in RATE.items()}, abs=0.02
    )
    for arm in arms.values():
        assert arm.gain_low < arm.gain < arm.gain_high
    assert [arms[name].outputs.d_ab for name in (SORTED, LOSSY, SORTED_LOSSY)] == [0, 0.25, 0.25]
    assert arms[LOSSY].outputs.d_aa == 0
    scores = {name: arm.outputs.scores for name, arm in arms.items()}
    assert scores[SORTED] is not None
    assert scores[LOSSY] is not None
    assert scores[SORTED].passed
    assert scores[LOSSY].difference == -0.25
    assert not scores[LOSSY].passed


def test_the_page_says_lossy_first_and_promotes_nothing(job: Job, tmp_path: Path) -> None:
    report = compared(job, ToldEngine())
    page = write_page(job, report)
    assert page.read_text().startswith("# LOSSY")
    assert lines(report)[0].startswith("LOSSY")
    kept = json.loads(page.with_suffix(".json").read_text())
    assert (kept["lossy"], kept["promotes"], kept["k0"]) == (True, False, 2)
    assert not job.data_dir.exists()
    assert page == job.reports_dir / "lossy" / "k0-2.md"
    assert read_report(job, 2) == report


def test_the_page_ends_with_how_to_accept_it_only_where_scores_carry_it(job: Job) -> None:
    worse, as_good = compared(job, ToldEngine()), compared(job, ToldEngine(moved="right"))
    assert not any("accept_lossy" in line for line in lines(worse))
    assert "accept_lossy: {k0: 2}` under jobs.it in params.yaml" in lines(as_good)[-1]
    assert "where no order is promoted and where this label order is promoted" in lines(as_good)[-1]
    assert not any("Not carried" in line for line in lines(as_good))
    unscored = compared(job.model_copy(update={"measure": MeasureSpec()}), ToldEngine(moved="right"))
    assert not any("accept_lossy" in line for line in lines(unscored))


def test_without_references_the_page_says_that_nothing_was_scored(job: Job) -> None:
    prompts = prompts_of(mixed(PROMPTS))
    engine: Any = ToldEngine()
    report = compare_lossy(job, MOE, prompts, make_order(job.order, prompts, "md5"), engine, 2, 5)
    assert "not scored" in "\n".join(lines(report))
    assert "nobody knows what it costs: give the prompts a `reference`" in lines(report)[-1]


@pytest.mark.parametrize(
    ("prompts", "right", "why"),
    [
        (PROMPTS - 1, ("right", "-"), "fewer than 300 scored prompts"),
        (PROMPTS, ("right",), "all score 1, and references that every output or none matches"),
        (PROMPTS, ("-",), "all score 0, and references that every output or none matches"),
    ],
)
def test_scores_that_can_show_no_loss_carry_nothing_and_the_page_says_why(
    job: Job, prompts: int, right: tuple[str, ...], why: str
) -> None:
    report = compared(job, ToldEngine(moved="right"), file=SHUFFLED_FILE[:prompts], right=right)
    scores = report.scores_of(LOSSY)
    assert scores is not None
    assert scores.passed, "of itself the bound is inside"
    assert not report.passed(LOSSY)
    assert not report.passed(SORTED_LOSSY)
    assert why in lines(report)[-1]
    assert not any("accept_lossy" in line for line in lines(report))


def test_a_margin_is_held_against_the_figures_and_not_against_a_word(job: Job) -> None:
    report = compared(job, ToldEngine())
    kept = report.model_dump()
    for arm in kept["arms"]:
        arm["outputs"]["scores"]["passed"] = True
    assert not LossyReport.model_validate(kept).passed(LOSSY)


@pytest.mark.parametrize("file", [GROUPED, DEALT_OUT], ids=["grouped", "dealt out"])
def test_the_shuffled_arm_does_not_stand_for_a_file_that_is_no_shuffle(job: Job, file: NDArray[np.int64]) -> None:
    report = compared(job, ToldEngine(moved="right"), file=file)
    assert not report.file_like_shuffle
    assert not report.passed(LOSSY)
    assert report.passed(SORTED_LOSSY)
    *_, why, accept = lines(report)
    assert why.startswith("Not carried where no order is promoted: the file's own order is not like a shuffle")
    assert "Scores carry it where this label order is promoted" in accept


def test_an_order_may_need_the_served_model(tmp_path: Path) -> None:
    job = make_job(tmp_path, captured=40, order={"method": "cluster", "signal": "token", "clusters": 2})
    engine: Any = ToldEngine()
    prompts = tokenize(job, read_prompts(job.prompts_path))
    report = compare_lossy(job, MOE, prompts, order_to_compare(job, prompts, "md5"), engine, 2, 5)
    assert (report.order.method, report.prompts) == ("cluster", 40)


@pytest.mark.parametrize("k0", [0, 4, 9])
def test_a_k0_that_is_none_or_changes_nothing_is_refused(job: Job, k0: int) -> None:
    with pytest.raises(LossyError, match="1 to 3"):
        compared(job, ToldEngine(), k0=k0)


def test_a_dense_model_has_no_routing_to_change() -> None:
    with pytest.raises(LossyError, match="dense"):
        refuse_k0(ModelFacts("models/d", "1", "Qwen3ForCausalLM", 512, None, toy=False), 2)


def test_a_refused_prompt_ends_the_comparison_with_its_id(job: Job) -> None:
    with pytest.raises(LossyError, match=r"'p0\d+' was refused.*too long"):
        compared(job, ToldEngine(refuse=5))
