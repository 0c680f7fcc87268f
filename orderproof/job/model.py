"""What a checkpoint's own files say: whether it is a mixture of experts, the size of an expert, the fingerprint.

Reads config.json and the ends of the weight files; loads no weights and runs no code of the model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orderproof.job.errors import OrderproofError
from orderproof.job.lfs import POINTER_PROBLEM, POINTER_REMEDY, is_pointer
from orderproof.job.stored_experts import stored_bytes_per_expert

# The names that published configurations use for the same three numbers, most specific first.
EXPERTS = (
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "moe_num_experts",
    "num_moe_experts",
    "num_routed_experts",
)
TOP_K = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "moe_top_k",
    "moe_topk",
    "moe_k",
    "top_k_experts",
)
EXPERT_SIZE = (
    "moe_intermediate_size",
    "expert_intermediate_size",
    "expert_ffn_hidden_size",
    "ffn_hidden_size",
    "intermediate_size",
)
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
READ_WHOLE = (".json", ".jinja", ".model")  # suffixes of configuration, tokenizer and templates
WEIGHTS = (".safetensors", ".bin", ".gguf")  # as vLLM prefers them
MISTRALS_OWN = "consolidated"  # weights beside the same ones in the usual format
SAMPLE_BYTES = 1 << 20  # at each end of a weight file: a whole checkpoint is too large to hash for every trial


class ModelError(OrderproofError):
    """A folder without a readable model."""


@dataclass(frozen=True)
class MoeFacts:
    """The routed experts of a model."""

    experts: int  # per layer
    top_k: int  # that a token uses per layer
    moe_layers: int
    bytes_per_expert: int | None  # with what quantisation stores beside the weights; None: not known


@dataclass(frozen=True)
class ModelFacts:
    """A model as its own files describe it."""

    path: str
    fingerprint: str  # sha256 of configuration, tokenizer, and names, sizes, heads and tails of the weight files
    architecture: str
    max_position_embeddings: int | None
    moe: MoeFacts | None  # None: dense
    toy: bool  # made by this project's demo: its gain says nothing about another model

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def read_model(folder: Path, shown_as: str, adapters: Mapping[str, Path] | None = None) -> ModelFacts:
    """Read a model's facts.

    Args:
        adapters: folders of LoRA adapters, by name: they change outputs, so they are part of the fingerprint.

    Raises:
        ModelError: no folder, no config.json, one that is not a JSON object, a Git LFS pointer in the place of
            a file, or a file that cannot be read.
    """
    _refuse_pointers(folder)
    config = _read_config(folder, shown_as)
    # Multimodal models keep the language model's settings one level down, but its quantisation beside them.
    text = {**config, **(config.get("text_config") or {})}
    try:
        digest = _add_adapters(fingerprint(folder), adapters or {})
    except OSError as error:  # such as a link into a cache that was emptied, or missing permissions
        raise ModelError(f"{error.filename} cannot be read ({error.strerror}): download the model again") from None
    return ModelFacts(
        path=shown_as,
        fingerprint=digest,
        architecture=", ".join(config.get("architectures") or [str(config.get("model_type", "unknown"))]),
        max_position_embeddings=_first(text, ("max_position_embeddings",)),
        moe=_moe(text, folder),
        toy=bool(config.get("orderproof_toy")),
    )


def _read_config(folder: Path, shown_as: str) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ModelError(
            f"{folder} is not a model's folder: it has no config.json. Download the model there "
            f"(`hf download ORG/NAME --local-dir {shown_as}`), or correct `model` in params.yaml"
        ) from None
    except OSError as error:
        raise ModelError(f"{folder}/config.json cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ModelError(f"{folder}/config.json is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise ModelError(f"{folder}/config.json is not a model's configuration: it holds no JSON object")
    return config


def _first(config: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    for name in names:
        value = config.get(name)
        if isinstance(value, list) and value:  # one number per layer
            value = max(value, key=lambda number: number if isinstance(number, int) else 0)
        if isinstance(value, int):
            return value
    return None


def _moe(config: Mapping[str, Any], folder: Path) -> MoeFacts | None:
    experts, top_k = _first(config, EXPERTS), _first(config, TOP_K)
    if not experts or experts < 2 or not top_k:
        return None
    layers = _first(config, ("num_hidden_layers",)) or 0
    size = _bytes_per_expert(config) or _stored_size(folder, experts)
    return MoeFacts(experts, top_k, _moe_layers(config, layers), size)


def _moe_layers(config: Mapping[str, Any], layers: int) -> int:
    """How many layers have routed experts, by the conventions of Qwen, DeepSeek and Llama 4."""
    sparse_step = config.get("decoder_sparse_step") or config.get("interleave_moe_layer_step") or 1
    dense = set(config.get("mlp_only_layers") or ()) | set(range(config.get("first_k_dense_replace") or 0))
    return sum(1 for layer in range(layers) if layer not in dense and (layer + 1) % sparse_step == 0)


def _bytes_per_expert(config: Mapping[str, Any]) -> int | None:
    hidden, inner = _first(config, ("hidden_size",)), _first(config, EXPERT_SIZE)
    width = BYTES.get(str(config.get("dtype") or config.get("torch_dtype") or "bfloat16"))
    if config.get("quantization_config") or not (hidden and inner and width):
        return None
    return 3 * hidden * inner * width  # gate, up and down projections


def _stored_size(folder: Path, experts: int) -> int | None:
    """For MXFP4, FP8, AWQ, GPTQ and the like: a configuration does not say what they store beside the weights."""
    try:
        return stored_bytes_per_expert(folder, experts)
    except (OSError, ValueError):  # a prediction from bytes is left out then; an engine names broken weights itself
        return None


def _add_adapters(model: str, adapters: Mapping[str, Path]) -> str:
    """The fingerprint of a model together with its adapters."""
    for name, folder in adapters.items():
        _refuse_pointers(folder)
        if not (folder / "adapter_config.json").is_file():
            raise ModelError(
                f"{folder} is not a LoRA adapter's folder: it has no adapter_config.json. Correct "
                f"engine.lora_modules.{name} in params.yaml"
            )
    parts = [f"{name}\0{fingerprint(folder)}" for name, folder in sorted(adapters.items())]
    return hashlib.sha256("\0".join([model, *parts]).encode()).hexdigest() if parts else model


def find_pointers(folder: Path) -> list[Path]:
    """The files of a model, a tokenizer or an adapter that Git LFS has not fetched, by name.

    Weights in a second format are often left out on purpose: they count only where no .safetensors file is there.
    """
    read = [path for path in sorted(folder.glob("*")) if path.suffix in READ_WHOLE + WEIGHTS]
    pointers = [path for path in read if is_pointer(path)]
    if any(path.suffix == WEIGHTS[0] and path not in pointers for path in read):
        pointers = [path for path in pointers if path.suffix not in WEIGHTS[1:]]
    return [path for path in pointers if not path.name.startswith(MISTRALS_OWN)]


def _refuse_pointers(folder: Path) -> None:
    if pointers := find_pointers(folder):
        more = f" (and {len(pointers) - 1} more files)" if pointers[1:] else ""
        raise ModelError(f"{pointers[0]}{more} {POINTER_PROBLEM}. {POINTER_REMEDY}")


def fingerprint(folder: Path) -> str:
    """sha256 of configuration, tokenizer, and names, sizes, heads and tails of the weight files. Raises OSError."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix in READ_WHOLE and path.is_file():
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
        elif path.suffix in WEIGHTS:
            size = path.stat().st_size
            digest.update(f"{path.name}\0{size}\0".encode())
            with open(path, "rb") as weights:
                digest.update(weights.read(SAMPLE_BYTES))
                weights.seek(max(0, size - SAMPLE_BYTES))
                digest.update(weights.read(SAMPLE_BYTES))
    return digest.hexdigest()
