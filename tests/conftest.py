"""What several tests share: one tiny model, one started engine, and surroundings that no test leaks into."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from orderproof.engines.client import VllmEngine
from orderproof.job.spec import EngineSpec

pytest_plugins = ["tests.support.dvc_project", "tests.support.object_store", "tests.support.tracker"]

ROOT = Path(__file__).resolve().parents[1]
GREEDY = {"temperature": 0, "max_tokens": 16, "ignore_eos": True}
os.environ.setdefault("HF_HUB_OFFLINE", "1")
hypothesis.settings.register_profile("any-machine", deadline=None)  # a busy machine breaks no claim
hypothesis.settings.load_profile("any-machine")


def run_demo(script: str, *arguments: str | Path) -> None:
    """Run one of the demo's makers."""
    subprocess.run([sys.executable, ROOT / "infra" / "demo" / script, *map(str, arguments)], check=True)


@pytest.fixture(scope="session")
def prompts_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """96 prompts of six domains."""
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    run_demo("make_prompts.py", "six-domains", "--per-label", "16", "-o", path)
    return path


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory, prompts_file: Path) -> dict[str, Path]:
    """A mixture of experts and a dense model, real but hardly trained."""
    folder = tmp_path_factory.mktemp("models")
    small = ("--steps", "2", "--hidden", "64", "--layers", "2", "--experts", "16", "--expert-size", "64")
    run_demo("train_model.py", prompts_file, "-o", folder / "moe", *small)
    run_demo(
        "train_model.py",
        prompts_file,
        "--dense",
        "-o",
        folder / "dense",
        "--steps",
        "2",
        "--hidden",
        "64",
        "--layers",
        "2",
    )
    return {"moe": folder / "moe", "dense": folder / "dense"}


@pytest.fixture(scope="session")
def engine_spec() -> EngineSpec:
    """A CPU engine that starts quickly."""
    args = {
        "max_num_seqs": 8,
        "max_model_len": 256,
        "dtype": "bfloat16",
        "enforce_eager": True,
        "enable_prefix_caching": True,
    }
    return EngineSpec(args=args, env={"VLLM_CPU_KVCACHE_SPACE": "1"})


@pytest.fixture(scope="session")
def engine(
    models: dict[str, Path], engine_spec: EngineSpec, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VllmEngine]:
    """One real vLLM for all tests that only generate."""
    log = tmp_path_factory.mktemp("engine") / "engine.log"
    with VllmEngine(engine_spec, models["moe"], GREEDY, log) as started:
        yield started
