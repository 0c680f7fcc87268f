"""What a job serves to the rows of its prompts: the names of its models, and the sampling of a request that names none.

In: a job. Out: `Serving`, by which a row is resolved. Reads the model's generation_config.json only when a batch
request needs it. Knows nothing of files of prompts or engines.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orderproof.job.errors import OrderproofError
from orderproof.job.spec import Job

# What vLLM's server takes of generation_config.json, by the names that its SamplingParams have for it.
DEFAULTED = {
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p")},
    **{name: name for name in ("repetition_penalty", "presence_penalty", "frequency_penalty")},
    "max_new_tokens": "max_tokens",
}


class ServingError(OrderproofError):
    """A model's generation_config.json that cannot be read."""


@dataclass(frozen=True)
class Serving:
    """The names that a row may ask for, and a server's defaults. Resolves batch requests as vLLM's run-batch would."""

    job: Job

    @classmethod
    def of(cls, job: Job) -> Serving:
        return cls(job)

    @functools.cached_property
    def models(self) -> tuple[str, ...]:
        """Names of the model itself; the first one stands in responses."""
        given = self.job.engine.args.get("served_model_name") or ()
        names = [given] if isinstance(given, str) else [str(name) for name in given]
        return (*names, self.job.model, str(self.job.model_path), Path(self.job.model).name)

    @property
    def adapters(self) -> tuple[str, ...]:
        return tuple(self.job.engine.lora_modules)

    @functools.cached_property
    def defaults(self) -> Mapping[str, Any]:
        """SamplingParams of a batch request that does not say: the model's own, under the job's `sampling`.

        Where the job says something it is left out here, because the engine has the job's sampling under every request.
        """
        found = {DEFAULTED[name]: value for name, value in self._generation_config.items() if name in DEFAULTED}
        return {name: value for name, value in found.items() if name not in self.job.sampling and value is not None}

    @functools.cached_property
    def most_tokens(self) -> int | None:
        """The server's cap on every request's tokens: a `max_new_tokens` that was set by hand."""
        by_hand = self.job.engine.args.get("generation_config", "auto") not in ("auto", "vllm")
        config = self._generation_config if by_hand else self._overrides
        most = config.get("max_new_tokens")
        return most if isinstance(most, int) else None

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


def nearest(name: str, known: Sequence[str]) -> str:
    """The known name that is most like a wrong one, in words; or those that there are."""
    close = difflib.get_close_matches(name, known, 1)
    if close:
        return f"the nearest is {close[0]!r}"
    return f"there are {', '.join(map(repr, dict.fromkeys(known)))}" if known else "there is none"


def _generation_config(folder: Path) -> dict[str, Any]:
    """What a model's generation_config.json says that is not a default of the format."""
    if not (folder / "generation_config.json").is_file():
        return {}
    from transformers import GenerationConfig

    try:
        found: dict[str, Any] = GenerationConfig.from_pretrained(str(folder), local_files_only=True).to_diff_dict()
    except Exception as error:  # transformers raises whatever the broken file causes
        problem = " ".join(str(error).split())[:200]
        raise ServingError(
            f"{folder}/generation_config.json cannot be read: {problem}. Download the model again, or set "
            "engine.args.generation_config to vllm, which leaves it out"
        ) from None
    return found
