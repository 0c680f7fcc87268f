"""A project that `doctor` looks at, and the checks of one name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from orderproof.doctor.check import Check
from orderproof.doctor.examine import examine

MOE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 4,
    "orderproof_toy": True,
}
DENSE = {"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 4}
ANSWER = 'echo starting; echo \'{"vllm": "0.33.0", "torch": "2.13.0"}\''


def make_model(folder: Path, config: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))


def write_params(root: Path, reporting: Mapping[str, Any] | None = None, **changes: Any) -> None:
    job = {"prompts": "data/p.jsonl", "model": "m", "engine": {"args": {"max_num_seqs": 8}}, **changes}
    YAML(typ="safe", pure=True).dump(
        {"defaults": {}, "jobs": {"it": job}, "reporting": dict(reporting or {})}, root / "params.yaml"
    )


def engine(*command: str, **env: str) -> dict[str, Any]:
    return {"engine": {"args": {"max_num_seqs": 8}, "command": list(command), "env": env}}


def checks_named(root: Path, name: str) -> list[Check]:
    return [check for check in examine(root / "params.yaml") if check.name == name]


def only(root: Path, name: str) -> Check:
    (check,) = checks_named(root, name)
    return check
