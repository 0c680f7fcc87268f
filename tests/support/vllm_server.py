"""`vllm serve` as a process on loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx

START_S = 240.0


@contextmanager
def vllm_server(model: Path, log: Path, args: Mapping[str, object]) -> Iterator[str]:
    """Serve a model with vLLM's own arguments. Gives the URL that ends in /v1."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = [word for name, value in args.items() for word in _option(name, value)]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "toy", *options]
    env = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    with open(log, "wb") as sink:
        process = subprocess.Popen(command, env=env, stdout=sink, stderr=sink, start_new_session=True)
    try:
        _wait(process, f"http://127.0.0.1:{port}/health", log)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _option(name: str, value: object) -> list[str]:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    return [f"--{flag}", str(value)]


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text(errors="replace")[-4000:]
        try:
            if httpx.get(url, timeout=2).is_success:
                return
        except httpx.HTTPError:
            time.sleep(0.5)
    raise AssertionError(f"no server after {START_S:.0f} s:\n{log.read_text(errors='replace')[-4000:]}")
