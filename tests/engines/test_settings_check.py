"""vLLM's own classes say what they would refuse, in the engine's interpreter and without weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orderproof.engines.protocol import EngineError
from orderproof.engines.settings_check import Refusal, Row, check_settings
from tests.support.trial_maker import make_job

pytestmark = pytest.mark.engine
ENV = {"VLLM_CPU_KVCACHE_SPACE": "1"}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"temprature": 1}, "did you mean 'temperature'"),
    ({"temperature": -1}, "temperature must be non-negative"),
    ({"temperature": "hot"}, "Expected `float`"),
    ({"min_tokens": 9, "max_tokens": 3}, "min_tokens must be less than or equal to"),
    ({"temperature": 0, "n": 4}, "n must be 1"),
    ({"stop": [""]}, "stop cannot contain an empty string"),
    ({"logit_bias": {"5": 1.0, "7": None}}, "logit_bias"),
    ({"logit_bias": {"99999999": 1.0}}, "out-of-vocab"),
    ({"stop_token_ids": [99999999]}, "vocab"),
    ({"allowed_token_ids": [99999999]}, "vocab"),
    ({"structured_outputs": {"regex": "(("}}, "regex"),
]
TAKEN: list[dict[str, Any] | None] = [None, {"max_tokens": 5}, {"logit_bias": {"5": 1.0}}, {"seed": 3, "stop": ["."]}]


def check(models: dict[str, Path], root: Path, rows: list[Row], kind: str = "moe", **changes: Any) -> list[Refusal]:
    engine = {"args": {"max_num_seqs": 8, "max_model_len": 256}, "env": ENV, **changes.pop("engine", {})}
    return check_settings(make_job(root, model=str(models[kind]), engine=engine, **changes), rows)


def test_each_sampling_that_vllm_refuses_is_named_with_its_rows_and_no_other(
    models: dict[str, Path], tmp_path: Path
) -> None:
    samplings = [own for own, _ in REFUSED] + TAKEN + [REFUSED[0][0]] * 2
    refused = check(models, tmp_path, [(k, f"p{k}", own) for k, own in enumerate(samplings, 1)])
    assert [(r.rows[0], r.id) for r in refused] == [(k, f"p{k}") for k in range(1, len(REFUSED) + 1)]
    for refusal, (_, words) in zip(refused, REFUSED, strict=True):
        assert words in refusal.problem, refusal
    assert [len(refusal.rows) for refusal in refused] == [3] + [1] * (len(REFUSED) - 1)
    assert refused[0].message("line").startswith("line 1 (id 'p1') and 2 more: sampling: ")


@pytest.mark.long
def test_rows_that_need_several_structured_output_backends_are_refused(models: dict[str, Path], tmp_path: Path) -> None:
    number = {"structured_outputs": {"json": {"type": "number", "multipleOf": 7}}}
    text = {"structured_outputs": {"json": {"type": "string"}}}
    (refused,) = check(models, tmp_path, [(1, "a", text), (2, "b", text), (3, "c", number)])
    assert (refused.rows, refused.id) == ((3,), "c")
    assert "structured_outputs_config" in refused.problem
    backend = {"args": {"max_num_seqs": 8, "structured_outputs_config": {"backend": "guidance"}}, "env": ENV}
    assert check(models, tmp_path, [(1, "a", text), (3, "c", number)], engine=backend) == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"max_num_seqs": 8, "max_num_seq": 8}, "did you mean 'max_num_seqs'"),
        ({"max_num_seqs": 8, "max_model_len": -3}, "max_model_len"),
        ({"max_num_seqs": 8, "max_model_len": "4k"}, "max_model_len"),
    ],
)
def test_impossible_engine_arguments_are_named(
    models: dict[str, Path], tmp_path: Path, args: dict[str, Any], words: str
) -> None:
    refused = check(models, tmp_path, [], engine={"args": args})
    assert "jobs.six-domains.engine.args" in refused[0].where
    assert words in refused[0].problem


@pytest.mark.long
def test_the_jobs_own_sampling_is_named_and_so_is_each_adapter(models: dict[str, Path], tmp_path: Path) -> None:
    for name, rank in (("large", 512), ("empty", 8)):
        folder = tmp_path / name
        folder.mkdir()
        adapter = {"r": rank, "lora_alpha": 16, "target_modules": ["q_proj"], "peft_type": "LORA"}
        (folder / "adapter_config.json").write_text(json.dumps(adapter))
    (tmp_path / "large" / "adapter_model.safetensors").write_bytes(b"")
    engine = {
        "args": {"max_num_seqs": 8, "enable_lora": True},
        "lora_modules": {"large": "large", "empty": "empty"},
    }
    refused = check(models, tmp_path, [], kind="dense", engine=engine, sampling={"min_tokens": 9, "max_tokens": 3})
    words = {refusal.where.removeprefix("jobs.six-domains."): refusal.problem for refusal in refused}
    assert set(words) == {"sampling", "engine.lora_modules.large", "engine.lora_modules.empty"}
    assert "max_lora_rank" in words["engine.lora_modules.large"]
    assert "no weights" in words["engine.lora_modules.empty"]


def test_a_command_that_does_not_start_or_has_no_vllm_is_an_error(models: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"'/no/such/python' does not start"):
        check(models, tmp_path, [], engine={"command": ["/no/such/python"]})
    with pytest.raises(EngineError, match="could not be asked: No module named 'vllm'"):
        check(models, tmp_path, [], engine={"command": ["/usr/bin/env", "python3", "-I", "-S"]})
