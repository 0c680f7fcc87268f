"""What a checkpoint's own configuration says of its experts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from orderproof.job.model import SAMPLE_BYTES, ModelError, ModelFacts, MoeFacts, read_model
from tests.support.lfs import POINTER

# As published: only the fields that matter here.
QWEN3_MOE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "decoder_sparse_step": 1,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "torch_dtype": "bfloat16",
}
MIXTRAL = {
    "architectures": ["MixtralForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 32,
    "num_local_experts": 8,
    "torch_dtype": "bfloat16",
}
DEEPSEEK_V2_LITE = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "first_k_dense_replace": 1,
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "moe_layer_freq": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 27,
    "torch_dtype": "bfloat16",
}
GPT_OSS = {
    "architectures": ["GptOssForCausalLM"],
    "experts_per_token": 4,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 36,
    "num_local_experts": 128,
    "quantization_config": {"quant_method": "mxfp4"},
}
LLAMA4_MAVERICK = {
    "architectures": ["Llama4ForConditionalGeneration"],
    "model_type": "llama4",
    "torch_dtype": "bfloat16",
    "text_config": {
        "hidden_size": 5120,
        "interleave_moe_layer_step": 2,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "max_position_embeddings": 1048576,
        "num_experts_per_tok": 1,
        "num_hidden_layers": 48,
        "num_local_experts": 128,
        "torch_dtype": "bfloat16",
    },
    "vision_config": {"hidden_size": 1408, "num_hidden_layers": 34},
}
HUNYUAN = {
    "architectures": ["HunYuanMoEV1ForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 3072,
    "moe_intermediate_size": [3072] * 32,
    "moe_topk": [8] * 32,
    "num_experts": 64,
    "num_hidden_layers": 32,
    "torch_dtype": "bfloat16",
}
QWEN3_DENSE = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "max_position_embeddings": 40960,
    "num_hidden_layers": 28,
    "torch_dtype": "bfloat16",
}


def make_model(folder: Path, config: Any, **files: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_bytes(content)
    return folder


def facts(folder: Path, config: Any) -> ModelFacts:
    return read_model(make_model(folder, config), "models/it")


@pytest.mark.parametrize(
    ("config", "moe"),
    [
        (QWEN3_MOE, MoeFacts(128, 8, 48, 3 * 2048 * 768 * 2)),
        (QWEN3_MOE | {"mlp_only_layers": [0, 5]}, MoeFacts(128, 8, 46, 3 * 2048 * 768 * 2)),
        (QWEN3_MOE | {"decoder_sparse_step": 2}, MoeFacts(128, 8, 24, 3 * 2048 * 768 * 2)),
        (MIXTRAL, MoeFacts(8, 2, 32, 3 * 4096 * 14336 * 2)),
        (DEEPSEEK_V2_LITE, MoeFacts(64, 6, 26, 3 * 2048 * 1408 * 2)),
        (GPT_OSS, MoeFacts(128, 4, 36, None)),
        (LLAMA4_MAVERICK, MoeFacts(128, 1, 24, 3 * 5120 * 8192 * 2)),
        (HUNYUAN, MoeFacts(64, 8, 32, 3 * 4096 * 3072 * 2)),
    ],
    ids=["qwen3", "qwen3-dense-layers", "qwen3-every-second", "mixtral", "deepseek", "gpt-oss", "llama4", "hunyuan"],
)
def test_the_experts_of_published_configurations_are_read(tmp_path: Path, config: Any, moe: MoeFacts) -> None:
    assert facts(tmp_path, config).moe == moe


def test_an_expert_of_qwen3_has_the_published_size(tmp_path: Path) -> None:
    moe = facts(tmp_path, QWEN3_MOE).moe
    assert moe is not None
    assert moe.bytes_per_expert is not None
    assert round(moe.bytes_per_expert / 1e6, 1) == 9.4


@pytest.mark.parametrize("config", [QWEN3_DENSE, QWEN3_DENSE | {"num_experts": 0, "num_experts_per_tok": 0}, {}])
def test_a_model_without_routed_experts_is_dense(tmp_path: Path, config: Any) -> None:
    assert facts(tmp_path, config).moe is None


def test_a_single_expert_is_dense(tmp_path: Path) -> None:
    assert facts(tmp_path, MIXTRAL | {"num_local_experts": 1}).moe is None


@pytest.mark.parametrize("change", [{"quantization_config": {"quant_method": "fp8"}}, {"torch_dtype": "float8_e4m3fn"}])
def test_a_quantised_model_does_not_give_an_experts_size(tmp_path: Path, change: dict[str, Any]) -> None:
    moe = facts(tmp_path, QWEN3_MOE | change).moe
    assert moe == MoeFacts(128, 8, 48, None)


def test_quantisation_of_a_multimodal_model_is_read_beside_its_text_config(tmp_path: Path) -> None:
    moe = facts(tmp_path, LLAMA4_MAVERICK | {"quantization_config": {"quant_method": "compressed-tensors"}}).moe
    assert moe == MoeFacts(128, 1, 24, None)


def test_wider_weights_make_larger_experts(tmp_path: Path) -> None:
    narrow, wide = facts(tmp_path / "a", MIXTRAL).moe, facts(tmp_path / "b", MIXTRAL | {"torch_dtype": "float32"}).moe
    assert narrow is not None
    assert wide is not None
    assert narrow.bytes_per_expert is not None
    assert wide.bytes_per_expert == 2 * narrow.bytes_per_expert


def test_the_architecture_and_length_of_a_multimodal_model_are_read(tmp_path: Path) -> None:
    model = facts(tmp_path, LLAMA4_MAVERICK)
    assert (model.architecture, model.max_position_embeddings) == ("Llama4ForConditionalGeneration", 1048576)


def test_only_the_projects_own_toys_are_toys(tmp_path: Path) -> None:
    assert not facts(tmp_path / "a", QWEN3_MOE).toy
    assert facts(tmp_path / "b", QWEN3_MOE | {"orderproof_toy": True}).toy


def test_the_facts_are_plain_values(tmp_path: Path) -> None:
    message = facts(tmp_path, MIXTRAL).as_dict()
    assert json.loads(json.dumps(message)) == message
    assert message["path"] == "models/it"
    assert message["moe"]["experts"] == 8


# -- what is no model --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make", [lambda path: None, lambda path: path.mkdir(), lambda path: path.write_text("weights")]
)
def test_a_folder_that_holds_no_model_is_named_and_how_to_get_one(tmp_path: Path, make: Any) -> None:
    make(tmp_path / "model")
    with pytest.raises(
        ModelError, match=r"/model is not a model's folder.*--local-dir models/it.*`model` in params.yaml"
    ):
        read_model(tmp_path / "model", "models/it")


@pytest.mark.parametrize("text", ["", "{", "{'a': 1}", "[1, 2]", "null", '"text"', b"\xff\xfe{}".decode("latin-1")])
def test_a_broken_configuration_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(ModelError, match=r"config\.json"):
        facts(tmp_path, text)


@pytest.mark.parametrize(
    "change",
    [
        {"text_config": None},
        {"architectures": None},
        {"num_hidden_layers": None},
        {"mlp_only_layers": None, "decoder_sparse_step": None},
        {"first_k_dense_replace": None},
        {"num_experts": "128"},
        {"hidden_size": "wide"},
    ],
)
def test_an_odd_configuration_still_gives_facts(tmp_path: Path, change: dict[str, Any]) -> None:
    assert facts(tmp_path, QWEN3_MOE | change).architecture


def test_a_weight_file_that_links_to_nothing_is_named(tmp_path: Path) -> None:
    make_model(tmp_path, QWEN3_MOE)
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "emptied-cache")
    with pytest.raises(ModelError, match=r"model\.safetensors cannot be read .*download"):
        read_model(tmp_path, "models/it")


# -- which weights these are -------------------------------------------------------------------------------------------

WEIGHTS = b"\1" * (3 * SAMPLE_BYTES)


def fingerprint(folder: Path, config: Any = QWEN3_MOE, weights: bytes = WEIGHTS, **files: bytes) -> str:
    return read_model(make_model(folder, config, model__safetensors=weights, **files), "it").fingerprint


def test_equal_models_have_equal_fingerprints_wherever_they_lie(tmp_path: Path) -> None:
    assert fingerprint(tmp_path / "a") == fingerprint(tmp_path / "elsewhere" / "b")


@pytest.mark.parametrize(
    "weights",
    [b"\2" + WEIGHTS[1:], WEIGHTS[:-1] + b"\2", WEIGHTS + b"\1", WEIGHTS[:-1], b""],
    ids=["head", "tail", "longer", "shorter", "empty"],
)
def test_other_weights_have_another_fingerprint(tmp_path: Path, weights: bytes) -> None:
    assert fingerprint(tmp_path / "a") != fingerprint(tmp_path / "b", weights=weights)


def test_a_small_weight_file_counts_to_its_last_byte(tmp_path: Path) -> None:
    assert fingerprint(tmp_path / "a", weights=b"abc") != fingerprint(tmp_path / "b", weights=b"abd")


def test_another_configuration_or_tokenizer_has_another_fingerprint(tmp_path: Path) -> None:
    plain = fingerprint(tmp_path / "a")
    assert fingerprint(tmp_path / "b", QWEN3_MOE | {"num_experts_per_tok": 4}) != plain
    assert fingerprint(tmp_path / "c", tokenizer__json=b"{}") != plain
    assert fingerprint(tmp_path / "d", chat_template__jinja=b"{{ x }}") != plain


def test_a_weight_file_under_another_name_has_another_fingerprint(tmp_path: Path) -> None:
    fingerprint(tmp_path / "a")
    (tmp_path / "a" / "model.safetensors").rename(tmp_path / "a" / "other.safetensors")
    assert read_model(tmp_path / "a", "it").fingerprint != fingerprint(tmp_path / "b")


def test_adapters_are_part_of_the_fingerprint_by_name_and_weights(tmp_path: Path) -> None:
    def with_adapters(**weights: bytes) -> str:
        for name, content in weights.items():
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / "adapter_config.json").write_text("{}")
            (tmp_path / name / "adapter_model.safetensors").write_bytes(content)
        return read_model(tmp_path / "a", "it", {name: tmp_path / name for name in weights}).fingerprint

    plain = fingerprint(tmp_path / "a")
    assert with_adapters() == plain
    assert (
        len({plain, with_adapters(x=b"1"), with_adapters(x=b"2"), with_adapters(y=b"1"), with_adapters(x=b"1", y=b"1")})
        == 5
    )


def test_a_folder_that_is_no_adapter_is_named(tmp_path: Path) -> None:
    fingerprint(tmp_path / "a")
    with pytest.raises(ModelError, match=r"nowhere is not a LoRA adapter's folder.*engine\.lora_modules\.x"):
        read_model(tmp_path / "a", "it", {"x": tmp_path / "nowhere"})


def test_a_readme_leaves_the_fingerprint_alone(tmp_path: Path) -> None:
    assert fingerprint(tmp_path / "a") == fingerprint(tmp_path / "b", README__md=b"hello")


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"model__safetensors": POINTER}, "model.safetensors"),
        ({"model__safetensors": b"w", "tokenizer__json": POINTER}, "tokenizer.json"),
        ({"a__bin": POINTER, "b__bin": POINTER}, "a.bin (and 1 more files)"),
    ],
)
def test_weights_and_tokenizers_that_git_lfs_has_not_fetched_are_refused(
    tmp_path: Path, files: dict[str, bytes], named: str
) -> None:
    make_model(tmp_path / "a", QWEN3_MOE, **files)
    with pytest.raises(ModelError, match=re.escape(named) + r" is a Git LFS pointer.*git lfs pull"):
        read_model(tmp_path / "a", "it")


def test_weights_in_a_format_that_is_not_loaded_need_not_be_fetched(tmp_path: Path) -> None:
    make_model(tmp_path / "a", QWEN3_MOE, model__safetensors=b"w", pytorch_model__bin=POINTER)
    (tmp_path / "a" / "consolidated.00.safetensors").write_bytes(POINTER)
    assert read_model(tmp_path / "a", "it").moe


def test_an_adapter_that_git_lfs_has_not_fetched_is_refused(tmp_path: Path) -> None:
    fingerprint(tmp_path / "a")
    make_model(tmp_path / "x", QWEN3_MOE, adapter_model__safetensors=POINTER)
    with pytest.raises(ModelError, match=r"x/adapter_model.safetensors is a Git LFS pointer"):
        read_model(tmp_path / "a", "it", {"x": tmp_path / "x"})
