"""What a job asks of its engine: all of it that decides an output, but prompts, order and the engine's versions.

In: a job and its model's facts. Out: a plain mapping as JSON holds it; and of two, what differs, by name. Knows
nothing of the checkpoints, the outputs and the evidence for a lossy routing that carry it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from orderproof.job.model import ModelFacts, fingerprint
from orderproof.job.spec import Job


def asked_of(job: Job, model: ModelFacts) -> dict[str, Any]:
    """Replicas and devices are left out: they say where the work is done and not what is asked.

    They decide, as a crash does, which requests meet in a batch, and a job that lost a device in the night shall go on
    with those that are left. The run's record tells how many replicas it had.
    """
    engine = job.engine
    return {
        "model": model.fingerprint,
        "tokenizer": fingerprint(job.tokenizer_path) if job.tokenizer else None,  # None: the model's
        "engine": {
            "command": engine.command_on_record,
            "in_process": engine.in_process,
            "args": engine.args,
            "env": engine.environment_on_record,
        },
        "sampling": job.sampling,
        "chat_template_args": job.chat_template_args,
    }


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between two mappings, each as "name: then → now"."""
    before, after = dict(_leaves(then)), dict(_leaves(now))
    return [
        f"{name}: {_shown(before.get(name))} → {_shown(after.get(name))}"
        for name in dict.fromkeys([*before, *after])
        if before.get(name) != after.get(name)
    ]


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """An empty mapping has none: it says nothing, like one that is absent."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


def _shown(value: Any) -> str:
    text = "absent" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:59] + "…"
