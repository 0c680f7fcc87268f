"""Routes of a real vLLM: proven against transformers on the same tokens, missing rather than wrong; and the
model's routing replaced by another."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from orderproof.engines.protocol import Failure, Output, Request
from orderproof.engines.routing_engine import Routed, RoutingEngine
from orderproof.engines.worker_routing import HookRouting, ReturnedRouting, Span, Step, Trace, opportunistic
from orderproof.job.spec import EngineSpec
from orderproof.routing.experts import bit_sets, distinct
from tests.conftest import GREEDY, ROOT, run_demo

LARGEST_GAP = 0.05  # of router logits, between what one side chose and the other did not
KV_BLOCKS = 12  # of 128 tokens: eight short requests fit, eight long ones do not


@dataclass
class Taken:
    """What one pass gave, by request."""

    answers: dict[int, Output | Failure]
    routes: dict[int, Routed]

    def experts(self, number: int) -> Any:
        experts = self.routes[number].experts
        assert experts is not None, self.routes[number].missing
        return experts


def requests(count: int, length: int = 40) -> list[Request]:
    return [Request(k, [5 + (7 * k + 3 * j) % 900 for j in range(length)]) for k in range(count)]


def captured(engine: RoutingEngine, wanted: list[Request], sampling: dict[str, Any] = GREEDY) -> Taken:
    taken = Taken({}, {})

    def sink(answer: Output | Failure) -> None:
        taken.answers[answer.number] = answer

    def take(routed: Routed) -> None:
        taken.routes[routed.number] = routed

    engine.capture(wanted, sampling, sink, take)
    return taken


@dataclass
class Agreement:
    """Captured sets beside those of transformers' router logits."""

    equal: float  # share of token-layer sets
    largest_gap: float  # over the sets that differ
    sets: int


def against_transformers(
    model: Path, dtype: str, taken: Taken, prompts: dict[int, list[int]], *, as_captured: bool = False
) -> Agreement:
    """Run the same tokens through transformers and compare every token's set in every layer.

    With `as_captured`, its layers use the captured experts, so that a near tie decided otherwise in one layer does not
    count against the layers above it.
    """
    import torch
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype)).eval()
    forced: list[Any] = []
    if as_captured:
        for number, layer in enumerate(network.model.layers):
            layer.mlp.gate.register_forward_hook(_choose(forced, number, network.config.norm_topk_prob))
    equal, sets, largest_gap = 0, 0, 0.0
    for number, prompt in prompts.items():
        answer = taken.answers[number]
        assert isinstance(answer, Output)
        chosen = torch.tensor(taken.experts(number).astype(np.int64))
        forced[:] = [chosen]
        with torch.no_grad():
            tokens = torch.tensor([prompt + list(answer.completions[0].token_ids)[:-1]])
            logits = torch.stack([one.float() for one in network(tokens, output_router_logits=True).router_logits], 1)
        assert chosen.shape[:2] == logits.shape[:2], "a row for every token but the last, in every layer"
        best = logits.topk(chosen.shape[-1])
        same = (best.indices.sort().values == chosen.sort().values).all(-1)
        gaps = best.values[..., -1] - logits.gather(-1, chosen).min(-1).values
        equal, sets = equal + int(same.sum()), sets + same.numel()
        largest_gap = max(largest_gap, float(gaps[~same].max())) if not same.all() else largest_gap
    return Agreement(equal / sets, largest_gap, sets)


def _choose(forced: list[Any], layer: int, renormalize: bool) -> Any:
    """A hook on a router of transformers: its logits stay, its choice becomes the captured one."""

    def hook(gate: Any, inputs: Any, outputs: Any) -> Any:
        logits, weights, _ = outputs
        chosen = forced[0][:, layer]
        share = logits.float().softmax(-1).gather(-1, chosen)
        return logits, (share / share.sum(-1, keepdim=True) if renormalize else share).to(weights.dtype), chosen

    return hook


@pytest.fixture(scope="module")
def engine(
    models: dict[str, Path], engine_spec: EngineSpec, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RoutingEngine]:
    """Single precision, so that rounding decides nothing; prompts in chunks; a key-value cache that may overflow."""
    few = {"dtype": "float32", "max_num_batched_tokens": 48, "num_gpu_blocks_override": KV_BLOCKS}
    spec = engine_spec.model_copy(update={"args": {**engine_spec.args, **few}, "in_process": False})
    log = tmp_path_factory.mktemp("routing") / "engine.log"
    with RoutingEngine(spec, models["moe"], GREEDY, log) as started:
        yield started


# -- capture -----------------------------------------------------------------------------------------------------------


@pytest.mark.engine
def test_captured_experts_are_those_of_transformers_on_the_same_tokens(
    engine: RoutingEngine, models: dict[str, Path]
) -> None:
    wanted = requests(24)
    taken = captured(engine, wanted)
    agreement = against_transformers(models["moe"], "float32", taken, {r.number: list(r.token_ids) for r in wanted})
    assert agreement.sets == 24 * (40 + 16 - 1) * 2
    assert agreement.equal >= 0.99, agreement
    assert agreement.largest_gap < LARGEST_GAP, agreement


@pytest.mark.engine
def test_listening_changes_no_output(engine: RoutingEngine) -> None:
    taken, plain = captured(engine, requests(16)), Taken({}, {})
    engine.run(requests(16), GREEDY, lambda answer: plain.answers.__setitem__(answer.number, answer))
    assert tokens_of(taken) == tokens_of(plain)


@pytest.mark.engine
def test_a_preempted_request_is_missing_and_the_others_are_whole(engine: RoutingEngine) -> None:
    """Eight sequences of 220 tokens need 16 blocks: some are thrown out and computed again."""
    taken = captured(engine, requests(8), {**GREEDY, "max_tokens": 180})
    missing = [routed.missing for routed in taken.routes.values() if routed.experts is None]
    assert 0 < len(missing) < 8
    assert all("preempted" in why for why in missing)
    whole = [routed.experts for routed in taken.routes.values() if routed.experts is not None]
    assert all(experts.shape == (40 + 180 - 1, 2, 4) for experts in whole)
    assert all((distinct(bit_sets(experts, 16)) == 4).all() for experts in whole), "no row is left at zeros"


@pytest.mark.engine
def test_a_refused_request_has_a_failure_and_no_routes(engine: RoutingEngine) -> None:
    taken = captured(engine, [*requests(3), Request(9, [7] * 300)])
    assert isinstance(taken.answers[9], Failure)
    assert sorted(taken.routes) == [0, 1, 2]


# -- Opportunistic Expert Activation -----------------------------------------------------------------------------------


@pytest.mark.engine
def test_decoding_tokens_share_experts_and_prompts_keep_theirs(engine: RoutingEngine) -> None:
    """Eight short prompts fit into one step, so that every later step is eight decoding tokens."""
    wanted = requests(8, length=5)
    plain = captured(engine, wanted)
    with engine.opportunistic(k0=1):
        lossy = captured(engine, wanted)
    for k in range(8):
        prefill = [np.sort(taken.experts(k)[:5]) for taken in (lossy, plain)]
        assert np.array_equal(*prefill), "the model's own"
    assert touched(lossy).max() <= 8 < touched(plain).max(), "one expert of each token's own, and no other"
    assert tokens_of(captured(engine, wanted)) == tokens_of(plain), "the next pass is the model's again"


@pytest.mark.engine
def test_with_all_of_a_tokens_experts_kept_nothing_is_lost(engine: RoutingEngine) -> None:
    plain = captured(engine, requests(8))
    with engine.opportunistic(k0=4):
        same = captured(engine, requests(8))
    assert tokens_of(same) == tokens_of(plain)
    assert all(np.array_equal(np.sort(same.experts(k)), np.sort(plain.experts(k))) for k in range(8))


def tokens_of(taken: Taken) -> dict[int, list[int]]:
    return {
        k: list(answer.completions[0].token_ids) for k, answer in taken.answers.items() if isinstance(answer, Output)
    }


def touched(taken: Taken) -> Any:
    """Distinct experts [steps, layers] of the eight sequences' decode steps."""
    steps = np.stack([taken.experts(k)[5:] for k in range(8)])
    return distinct(np.bitwise_or.reduce(bit_sets(steps, 16), axis=0))


@pytest.mark.parametrize("renormalize", [True, False])
def test_each_token_keeps_its_best_and_fills_up_from_what_the_batch_loads(renormalize: bool) -> None:
    import torch

    torch.manual_seed(3)
    logits, decoding = torch.randn(9, 24), torch.arange(9) < 6
    weights, experts = opportunistic(logits, 4, 2, decoding, renormalize)
    own = logits.topk(4).indices
    loaded = {*own[:6, :2].flatten().tolist(), *own[6:].flatten().tolist()}
    for row in range(9):
        pool = sorted(loaded if row < 6 else range(24), key=lambda expert: -float(logits[row, expert]))
        assert experts[row].tolist() == pool[:4]
        share = logits[row].softmax(0)[pool[:4]]
        assert torch.allclose(weights[row], share / share.sum() if renormalize else share)
        assert set(own[row, :2].tolist()) <= set(experts[row].tolist())


def test_a_lone_token_reads_only_what_it_keeps() -> None:
    import torch

    weights, experts = opportunistic(torch.tensor([[0.0, 3.0, 1.0, 2.0]]), 3, 2, torch.tensor([True]), True)
    assert set(experts[0].tolist()) == {1, 3}
    assert weights[0, 2] == 0
    assert weights.sum() == pytest.approx(1)


# -- rows under their requests -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("top_k", "kept"), [(1, [0, 3, 0]), (2, [3])])
def test_a_layer_of_zeros_is_left_out_only_where_nobody_can_have_chosen_it(top_k: int, kept: list[int]) -> None:
    experts = np.zeros((4, 3, top_k), np.uint8)  # of 4 tokens in 3 layers
    experts[:, 1] = 3
    answer = SimpleNamespace(routed_experts=experts, token_ids=[7, 8])
    returned = ReturnedRouting()
    returned.begin({"capture": True})
    routes = returned.take(SimpleNamespace(prompt_token_ids=[4, 5, 6], outputs=[answer]))
    assert routes is not None
    assert routes["shape"] == [4, len(kept), top_k]
    assert list(base64.b64decode(routes["experts"]))[: len(kept) * top_k] == [e for e in kept for _ in range(top_k)]


def rows(count: int) -> Any:
    return np.zeros((count, 2, 4), np.uint8)


def test_a_prompt_computed_in_chunks_is_one_trace() -> None:
    trace = Trace()
    for computed, count in ((0, 30), (30, 10), (40, 1)):
        trace.add(Span("3-abc", computed, count, 40), rows(count))
    assert (trace.tokens, trace.fault) == (41, "")


@pytest.mark.parametrize(
    ("spans", "fault"),
    [
        ([(0, 4), (0, 4)], "preempted"),
        ([(2, 4)], "tokens 0 to 1 were not computed"),
        ([(0, 4), (6, 1)], "tokens 4 to 5 were not computed"),
    ],
)
def test_a_trace_with_a_gap_or_a_repeat_is_at_fault(spans: list[tuple[int, int]], fault: str) -> None:
    trace = Trace()
    for computed, count in spans:
        trace.add(Span("3-abc", computed, count, 4), rows(count))
    assert fault in trace.fault


def test_a_step_that_not_every_layer_reported_is_a_fault() -> None:
    trace = Trace()
    trace.add(Span("3-abc", 0, 4, 4), None)
    assert "not every layer" in trace.fault


@pytest.mark.parametrize("capturing", [False, True])
def test_a_pass_that_captures_nothing_remembers_no_request(capturing: bool) -> None:
    """A lossy batch may have millions of them; its steps still know which rows decode."""
    heard = object.__new__(HookRouting)
    heard.routers, heard.traces, heard.step = [SimpleNamespace()], {}, Step([], [None])
    heard.active, heard.capturing, heard.prepare = True, capturing, lambda scheduled: "prepared"
    for computed, count in ((0, 4), (4, 1), (5, 1)):
        batch = SimpleNamespace(req_ids=["3-abc"], num_computed_tokens_cpu=[computed], num_prompt_tokens=[4])
        scheduled = SimpleNamespace(num_scheduled_tokens={"3-abc": count})
        assert heard.begin_step(SimpleNamespace(input_batch=batch), scheduled, (), {}) == "prepared"
        assert heard.decoding(count).tolist() == [computed >= 4] * count
    assert list(heard.traces) == (["3"] if capturing else [])


# -- the whole demo model ----------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.engine
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_demo_models_routes_are_those_of_transformers(dtype: str, tmp_path: Path) -> None:
    """In single precision set for set. In the job's own bfloat16 many logits tie, so its layers are compared one by
    one, each above the captured choices of the layers below."""
    from transformers import AutoTokenizer

    model = ROOT / "data" / "models" / "demo-moe"
    if not (model / "config.json").exists():
        run_demo("make_prompts.py", "six-domains", "-o", tmp_path / "prompts.jsonl")
        run_demo("train_model.py", tmp_path / "prompts.jsonl", "-o", model := tmp_path / "moe")
    texts = ["Write a function that sorts a list.", "Une lettre à mon voisin", "What is 17 times 24?"] * 16
    tokenizer = AutoTokenizer.from_pretrained(model)
    prompts = {k: tokenizer(f"{text} {k}")["input_ids"] for k, text in enumerate(texts)}
    args = {"max_num_seqs": 16, "max_model_len": 512, "dtype": dtype}
    spec = EngineSpec(args=args, env={"VLLM_CPU_KVCACHE_SPACE": "1"})
    with RoutingEngine(spec, model, GREEDY, tmp_path / "log") as engine:
        taken = captured(engine, [Request(k, ids) for k, ids in prompts.items()], {**GREEDY, "max_tokens": 48})
    single = dtype == "float32"
    agreement = against_transformers(model, dtype, taken, prompts, as_captured=not single)
    print(agreement)
    assert agreement.equal >= (0.99 if single else 0.95), agreement
    assert agreement.largest_gap < LARGEST_GAP, agreement
