"""What a request may ask of real vLLM: samples, constraints, stops, probabilities, adapters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orderproof.engines.client import VllmEngine
from orderproof.engines.protocol import EngineError, Failure, Output, Request
from orderproof.job.spec import EngineSpec
from tests.conftest import GREEDY
from tests.engines.test_client import generate

pytestmark = pytest.mark.engine
IDS = [5, 6, 7, 8]


def one(engine: VllmEngine, **sampling: Any) -> Output | Failure:
    asked = {"temperature": 0, "max_tokens": 12, **sampling}
    return generate(engine, [Request(0, IDS, asked)], GREEDY)[0]


def output(engine: VllmEngine, **sampling: Any) -> Output:
    answer = one(engine, **sampling)
    assert isinstance(answer, Output), answer
    return answer


@pytest.mark.parametrize(
    ("constraint", "holds"),
    [
        ({"choice": ["yes", "no"]}, lambda text: text in ("yes", "no")),
        ({"regex": "[ab]{3}"}, lambda text: len(text) == 3 and set(text) <= {"a", "b"}),
        ({"json": {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"],
                   "additionalProperties": False}},
         lambda text: json.loads(text)["a"] in (1, 2)),
    ],
)  # fmt: skip
def test_a_constraint_holds(engine: VllmEngine, constraint: dict[str, Any], holds: Any) -> None:
    asked = {"structured_outputs": {**constraint, "disable_any_whitespace": True}, "ignore_eos": False}
    made = output(engine, max_tokens=40, **asked).completions[0]
    assert made.finish_reason == "stop"
    assert holds(made.text)


def test_a_stop_string_and_a_stop_token_end_an_output_and_say_so(engine: VllmEngine) -> None:
    whole = output(engine).completions[0]
    token = whole.token_ids[5]
    first = list(whole.token_ids).index(token)
    by_token = output(engine, stop_token_ids=[token]).completions[0]
    assert (by_token.finish_reason, by_token.stop_reason) == ("stop", token)
    assert list(by_token.token_ids) == list(whole.token_ids)[: first + 1]
    late = output(engine, stop_token_ids=[token], min_tokens=first + 2).completions[0]
    assert len(late.token_ids) >= first + 2
    same = output(engine, logit_bias={"70": 100}).completions[0].text  # one character, twelve times
    by_text = output(engine, logit_bias={"70": 100}, stop=[same[:3]], include_stop_str_in_output=True).completions[0]
    assert (by_text.finish_reason, by_text.stop_reason, by_text.text) == ("stop", same[:3], same[:3])


def test_biases_and_forbidden_words_decide_tokens(engine: VllmEngine) -> None:
    whole = output(engine).completions[0]
    biased = output(engine, logit_bias={"9": 100}).completions[0]
    assert set(biased.token_ids) == {9}
    allowed = output(engine, allowed_token_ids=[10, 11]).completions[0]
    assert set(allowed.token_ids) <= {10, 11}
    assert whole.token_ids != allowed.token_ids


def test_probabilities_come_with_each_token_and_with_the_likeliest(engine: VllmEngine) -> None:
    made = output(engine, logprobs=2).completions[0]
    assert made.logprobs is not None
    assert [likely[0][0] for likely in made.logprobs] == list(made.token_ids)
    assert all(len(likely) in (2, 3) and likely[0][1] <= 0 for likely in made.logprobs)
    assert output(engine).completions[0].logprobs is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"structured_outputs": {"regex": "("}}, ""),
        ({"n": 2}, "n must be 1 when using greedy sampling"),
        ({"top_p": 3}, "top_p must be in"),
        ({"temprature": 1}, "did you mean 'temperature'"),
        ({"allowed_token_ids": [10**6]}, "token"),
        ({"logprobs": 10**4}, "logprobs"),
    ],
)
def test_wrong_sampling_fails_its_own_request_with_vllms_message(engine: VllmEngine, wrong: Any, message: str) -> None:
    answers = generate(engine, [Request(0, IDS, wrong), Request(1, IDS)], GREEDY)
    refused = answers[0]
    assert isinstance(refused, Failure)
    assert message in refused.reason
    assert isinstance(answers[1], Output)


def test_an_adapter_that_the_engine_does_not_have_fails_its_own_request(engine: VllmEngine) -> None:
    answers = generate(engine, [Request(0, IDS, lora="tone"), Request(1, IDS)], GREEDY)
    assert isinstance(answers[0], Failure)
    assert "no adapter 'tone'" in answers[0].reason
    assert isinstance(answers[1], Output)


@pytest.mark.long
def test_a_job_s_sampling_that_does_not_fit_the_model_is_refused_when_the_engine_loads(
    models: dict[str, Path], engine_spec: EngineSpec, tmp_path: Path
) -> None:
    with (
        pytest.raises(EngineError, match="the job's sampling does not fit the model"),
        VllmEngine(engine_spec, models["moe"], {**GREEDY, "allowed_token_ids": [10**6]}, tmp_path / "log"),
    ):
        pass


def make_adapter(folder: Path, model: Path, scale: float, seed: int) -> Path:
    """A LoRA of rank 4 on the attention's queries and outputs, in the format of PEFT."""
    from safetensors import safe_open
    from safetensors.numpy import save_file

    rng, tensors = np.random.default_rng(seed), {}
    with safe_open(model / "model.safetensors", "np") as weights:
        for name in weights.keys():  # noqa: SIM118  (no mapping)
            if name.endswith(("self_attn.q_proj.weight", "self_attn.o_proj.weight")):
                rows, columns = weights.get_slice(name).get_shape()
                layer = f"base_model.model.{name.removesuffix('.weight')}"
                tensors[f"{layer}.lora_A.weight"] = rng.normal(0, scale, (4, columns)).astype(np.float32)
                tensors[f"{layer}.lora_B.weight"] = rng.normal(0, scale, (rows, 4)).astype(np.float32)
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none", "task_type": "CAUSAL_LM",
              "target_modules": ["q_proj", "o_proj"], "base_model_name_or_path": str(model)}  # fmt: skip
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.long
def test_an_adapter_changes_the_outputs_of_the_requests_that_name_it_and_of_no_other(
    models: dict[str, Path], engine_spec: EngineSpec, engine: VllmEngine, tmp_path: Path
) -> None:
    adapters = {
        "strong": make_adapter(tmp_path / "strong", models["dense"], 1.0, seed=1),
        "none": make_adapter(tmp_path / "none", models["dense"], 0.0, seed=2),
    }
    args = {**engine_spec.args, "enable_lora": True, "max_lora_rank": 8, "max_loras": 2}
    names = [None, "strong", "none"]
    wanted = [Request(k, [5 + (k // 3 * 7 + j) % 200 for j in range(12)], lora=names[k % 3]) for k in range(30)]
    with VllmEngine(
        EngineSpec(args=args, env=engine_spec.env), models["dense"], GREEDY, tmp_path / "log", adapters
    ) as it:
        answers = generate(it, wanted, GREEDY)
    texts = [answers[k].completions[0].token_ids for k in range(30)]  # type: ignore[union-attr]
    assert texts[0::3] == texts[2::3], "an adapter of zeros is the model itself"
    assert sum(a != b for a, b in zip(texts[0::3], texts[1::3], strict=True)) >= 8


@pytest.mark.long
def test_an_adapter_that_is_none_is_named_when_the_engine_loads(
    models: dict[str, Path], engine_spec: EngineSpec, tmp_path: Path
) -> None:
    folder = make_adapter(tmp_path / "broken", models["dense"], 1.0, seed=1)
    (folder / "adapter_model.safetensors").write_bytes(b"")
    args = {**engine_spec.args, "enable_lora": True, "lora_target_modules": ["q_proj", "o_proj"]}
    spec = EngineSpec(args=args, env=engine_spec.env)
    with (
        pytest.raises(EngineError, match=r"engine\.lora_modules\.tone cannot be loaded"),
        VllmEngine(spec, models["dense"], GREEDY, tmp_path / "log", {"tone": folder}),
    ):
        pass


@pytest.mark.long
def test_adapters_of_a_mixture_of_experts_are_refused_where_vllm_has_no_kernels_for_them(
    models: dict[str, Path], engine_spec: EngineSpec, tmp_path: Path
) -> None:
    folder = make_adapter(tmp_path / "tone", models["moe"], 1.0, seed=1)
    args = {**engine_spec.args, "enable_lora": True, "lora_target_modules": ["q_proj", "o_proj"]}
    with (
        pytest.raises(EngineError, match="no Triton here"),
        VllmEngine(EngineSpec(args=args, env=engine_spec.env), models["moe"], GREEDY, tmp_path / "log", {"t": folder}),
    ):
        pass
