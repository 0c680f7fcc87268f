"""What decides a job's outputs, except prompts, order and the engine's versions: the key that checkpoints, outputs and
the evidence for a lossy routing carry."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from orderproof.job.model import ModelFacts, fingerprint
from orderproof.job.redaction import recorded_engine, same_settings
from orderproof.job.spec import Job


def output_key(job: Job, model: ModelFacts) -> dict[str, Any]:
    """Everything about the model, engine and sampling that changes outputs, as JSON holds it.

    Replicas and devices are left out: like a crash they only decide which requests meet in a batch, and a job that
    lost a device must be able to continue on the others. The run's record has the number of replicas.
    """
    return {
        "model": model.fingerprint,
        "tokenizer": fingerprint(job.tokenizer_path) if job.tokenizer else None,  # None: the model's
        "engine": {**recorded_engine(job), "in_process": job.engine.in_process},
        "sampling": job.sampling,
        "chat_template_args": job.chat_template_args,
    }


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The differences between two keys, each as `name: then → now`."""
    before, after = dict(_leaves(then)), dict(_leaves(now))
    return [
        f"{name}: {_shown(before.get(name))} → {_shown(after.get(name))}"
        for name in dict.fromkeys([*before, *after])
        if not same_settings(before.get(name), after.get(name))
    ]


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and values; an empty mapping has none, like one that is absent."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


def _shown(value: Any) -> str:
    text = "absent" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:59] + "…"
