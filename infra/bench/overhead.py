"""What `orderproof generate` adds to the engine's own time, on a small job and on a large one.

In: the demo's mixture of experts. Out: for each number of prompts the seconds of the whole command, of loading and
compiling, of the engine at work, and the rest: once (imports, Prefect's temporary server), and what grows with the
prompts. The engine's own time is compared with `LLM.generate` by against_generate.py.

    python infra/bench/overhead.py --prompts 10000
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FEW = 100
ENGINE = {
    "args": {"max_num_seqs": 16, "max_model_len": 512, "dtype": "bfloat16", "enable_prefix_caching": False},
    "env": {"VLLM_CPU_KVCACHE_SPACE": "1"},
}


def main() -> None:
    options = _arguments()
    rest = {}
    print(f"{'prompts':>8}{'all s':>9}{'load s':>9}{'engine s':>10}{'rest s':>8}{'of engine':>11}")
    for number in (FEW, options.prompts):
        all_s, load_s, engine_s = generate(number, options.model.resolve(), options.tokens)
        rest[number] = all_s - load_s - engine_s
        share = rest[number] / engine_s
        print(f"{number:>8}{all_s:>9.1f}{load_s:>9.1f}{engine_s:>10.1f}{rest[number]:>8.1f}{share:>11.2%}", flush=True)
    grows = rest[options.prompts] - rest[FEW]
    print(f"growing with the prompts: {grows:.1f} s, {grows / engine_s:.2%} of the engine's time")


def generate(number: int, model: Path, tokens: int) -> tuple[float, float, float]:
    """Seconds of the command, of loading, and of the engine at work."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        prompts = root / "prompts.jsonl"
        maker = [sys.executable, Path(__file__).with_name("make_many.py"), str(number), "-o", prompts]
        subprocess.run(maker, check=True, stdout=subprocess.DEVNULL)
        sampling = {"temperature": 0, "max_tokens": tokens, "ignore_eos": True}
        job = {"prompts": "prompts.jsonl", "model": str(model), "engine": ENGINE, "sampling": sampling}
        (root / "params.yaml").write_text(json.dumps({"defaults": {}, "jobs": {"it": job}}))  # JSON is YAML
        environment = {**os.environ, "PREFECT_HOME": str(root / "prefect")}
        command = [sys.executable, "-m", "orderproof.flows.cli", "generate", "it", "--json"]
        began = time.perf_counter()
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
        all_s = time.perf_counter() - began
        if done.returncode:
            raise SystemExit(done.stderr[-2000:])
        told = json.loads(done.stdout)
        return all_s, told["load_s"], told["wall_s"]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("data/models/demo-moe"))
    parser.add_argument("--prompts", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, default=48, help="that every prompt generates")
    return parser.parse_args()


if __name__ == "__main__":
    main()
