"""What a job's engine adds to a request that does not say: names of its models, and default sampling.

Defaults are those of vLLM's server, which reads the model's generation_config.json; it is opened when a batch request
needs it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orderproof.job.errors import OrderproofError
from orderproof.job.spec import Job

# Keys of generation_config.json that vLLM's server reads → their names in SamplingParams.
SERVER_DEFAULTS = {
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p")},
    **{name: name for name in ("repetition_penalty", "presence_penalty", "frequency_penalty")},
    "max_new_tokens": "max_tokens",
}


class RequestDefaultsError(OrderproofError):
    """A model's generation_config.json that cannot be read."""


@dataclass(frozen=True)
class RequestDefaults:
    """The models that a request may name and the sampling that it gets by default, as `vllm run-batch` has them."""

    job: Job

    @functools.cached_property
    def models(self) -> tuple[str, ...]:
        """Names of the model itself; the first is the one in responses."""
        given = self.job.engine.args.get("served_model_name") or ()
        names = [given] if isinstance(given, str) else [str(name) for name in given]
        return (*names, self.job.model, str(self.job.model_path), Path(self.job.model).name)

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of the LoRA adapters."""
        return tuple(self.job.engine.lora_modules)

    @functools.cached_property
    def sampling(self) -> Mapping[str, Any]:
        """The model's own SamplingParams, for a batch request that does not set them.

        What the job's `sampling` sets is left out: the engine applies it to every request.
        """
        found = {
            SERVER_DEFAULTS[name]: value for name, value in self._generation_config.items() if name in SERVER_DEFAULTS
        }
        return {name: value for name, value in found.items() if name not in self.job.sampling and value is not None}

    @functools.cached_property
    def max_tokens(self) -> int | None:
        """The server's limit for every request: a `max_new_tokens` that was set by hand; None: no limit."""
        by_hand = self.job.engine.args.get("generation_config", "auto") not in ("auto", "vllm")
        config = self._generation_config if by_hand else self._overrides
        limit = config.get("max_new_tokens")
        return limit if isinstance(limit, int) else None

    @property
    def _overrides(self) -> Mapping[str, Any]:
        return self.job.engine.args.get("override_generation_config") or {}

    @functools.cached_property
    def _generation_config(self) -> Mapping[str, Any]:
        source = str(self.job.engine.args.get("generation_config", "auto"))
        if source == "vllm":
            return self._overrides
        folder = self.job.model_path if source == "auto" else self.job.root / source
        return {**_generation_config(folder), **self._overrides}


def _generation_config(folder: Path) -> dict[str, Any]:
    """The values of a model's generation_config.json that are not defaults of the format."""
    if not (folder / "generation_config.json").is_file():
        return {}
    from transformers import GenerationConfig

    try:
        found: dict[str, Any] = GenerationConfig.from_pretrained(str(folder), local_files_only=True).to_diff_dict()
    except Exception as error:  # transformers raises whatever the broken file causes
        problem = " ".join(str(error).split())[:200]
        raise RequestDefaultsError(
            f"{folder}/generation_config.json cannot be read: {problem}. Download the model again, or set "
            "engine.args.generation_config to vllm, which leaves it out"
        ) from None
    return found
