"""The size of an expert from the headers of checkpoints in the layouts that are published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from orderproof.job.model import read_model
from orderproof.job.stored_experts import stored_bytes_per_expert, tensor_sizes

EXPERTS, HIDDEN, INNER = 4, 64, 32


def mxfp4(layer: int) -> dict[str, torch.Tensor]:
    """As gpt-oss: all experts of a layer in a tensor, 4 bits a weight, a scale for 32 of them, a bias."""
    prefix = f"model.layers.{layer}.mlp.experts."
    return {
        f"{prefix}gate_up_proj_blocks": torch.zeros(EXPERTS, 2 * INNER, HIDDEN // 32, 16, dtype=torch.uint8),
        f"{prefix}gate_up_proj_scales": torch.zeros(EXPERTS, 2 * INNER, HIDDEN // 32, dtype=torch.uint8),
        f"{prefix}gate_up_proj_bias": torch.zeros(EXPERTS, 2 * INNER, dtype=torch.bfloat16),
        f"{prefix}down_proj_blocks": torch.zeros(EXPERTS, HIDDEN, INNER // 32, 16, dtype=torch.uint8),
        f"{prefix}down_proj_scales": torch.zeros(EXPERTS, HIDDEN, INNER // 32, dtype=torch.uint8),
        f"{prefix}down_proj_bias": torch.zeros(EXPERTS, HIDDEN, dtype=torch.bfloat16),
        f"model.layers.{layer}.mlp.router.weight": torch.zeros(EXPERTS, HIDDEN, dtype=torch.bfloat16),
    }


MXFP4_BYTES = 2 * INNER * HIDDEN // 2 + 2 * INNER * HIDDEN // 32 + 4 * INNER + HIDDEN * INNER // 2 + HIDDEN + 2 * HIDDEN


def of_each_expert(layer: int, kind: str) -> dict[str, torch.Tensor]:
    """As DeepSeek's FP8 (a scale for each block) and as AWQ (eight weights in an int32, zero points and scales)."""
    tensors = {}
    for expert in [*map(str, range(EXPERTS)), "shared"]:
        where = "shared_experts" if expert == "shared" else f"experts.{expert}"
        for name in ("gate_proj", "up_proj", "down_proj"):
            prefix = f"model.layers.{layer}.mlp.{where}.{name}."
            if kind == "fp8":
                tensors[f"{prefix}weight"] = torch.zeros(INNER, HIDDEN).to(torch.float8_e4m3fn)
                tensors[f"{prefix}weight_scale_inv"] = torch.zeros(1, 1)
            else:
                tensors[f"{prefix}qweight"] = torch.zeros(HIDDEN, INNER // 8, dtype=torch.int32)
                tensors[f"{prefix}qzeros"] = torch.zeros(HIDDEN // 32, INNER // 8, dtype=torch.int32)
                tensors[f"{prefix}scales"] = torch.zeros(HIDDEN // 32, INNER, dtype=torch.float16)
    return tensors


FP8_BYTES = 3 * (HIDDEN * INNER + 4)
AWQ_BYTES = 3 * (HIDDEN * INNER // 2 + HIDDEN // 32 * INNER // 2 + HIDDEN // 32 * INNER * 2)


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ([mxfp4(0), mxfp4(1)], MXFP4_BYTES),
        ([of_each_expert(k, "fp8") for k in (1, 2, 3)], FP8_BYTES),
        ([of_each_expert(k, "awq") for k in (0, 1)], AWQ_BYTES),
    ],
)
def test_an_experts_tensors_are_counted_with_what_belongs_to_them(
    tmp_path: Path, layers: list[dict[str, torch.Tensor]], expected: int
) -> None:
    for number, tensors in enumerate(layers):
        save_file(tensors, tmp_path / f"model-0000{number}.safetensors")
    assert stored_bytes_per_expert(tmp_path, EXPERTS) == expected


def test_the_size_is_a_fact_of_a_quantised_model_and_unknown_without_its_weights(tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "architectures": ["GptOssForCausalLM"],
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 1,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "quantization_config": {"quant_method": "mxfp4"},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "damaged.safetensors").write_bytes(b"\xff" * 64)
    assert size_in(tmp_path) is None
    (tmp_path / "damaged.safetensors").unlink()
    save_file(mxfp4(0), tmp_path / "model.safetensors")
    assert size_in(tmp_path) == MXFP4_BYTES


def size_in(folder: Path) -> int | None:
    moe = read_model(folder, "it").moe
    assert moe is not None
    return moe.bytes_per_expert


@pytest.mark.parametrize("content", [b"", b"\x02" + b"\0" * 7 + b"[]", b"\x08" + b"\0" * 7 + b'{"a": 1}'])
def test_what_is_no_header_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=r"JSON|header|Expecting"):
        tensor_sizes(tmp_path / "x.safetensors")
