"""The engine's child process compared with vLLM's own `LLM.generate`, in interleaved pairs: throughput and outputs.

It prints a line per pair, the median ratio of throughputs (worker to generate), and whether all outputs are the same.
Both engines are loaded once; a coin decides which runs first in a pair.

    python infra/bench/against_generate.py data/models/demo-moe data/six-domains/prompts.jsonl --pairs 6
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from pathlib import Path

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from orderproof.engines.client import VllmEngine
from orderproof.engines.protocol import Failure, Output, Request
from orderproof.job.spec import EngineSpec

SAMPLING = {"temperature": 0, "max_tokens": 48, "ignore_eos": True}


def main() -> None:
    options = _arguments()
    from transformers import AutoTokenizer
    from vllm import LLM, SamplingParams

    from orderproof.prompts.prompt_file import read_prompts

    tokenizer = AutoTokenizer.from_pretrained(options.model, local_files_only=True)
    prompts = [tokenizer.encode(str(prompt.text)) for prompt in read_prompts(options.prompts)]
    args = {"max_num_seqs": options.batch, "max_model_len": 512, "dtype": "bfloat16", "enable_prefix_caching": False}
    llm = LLM(str(options.model), **args, disable_log_stats=True)
    sampling = SamplingParams(**SAMPLING)
    spec = EngineSpec(args=args, env={"VLLM_CPU_KVCACHE_SPACE": "1"})
    with VllmEngine(spec, options.model, SAMPLING, Path("/dev/null")) as engine:

        def with_generate() -> tuple[float, dict[int, list[int]]]:
            started = time.perf_counter()
            outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], sampling, use_tqdm=False)
            wall_s = time.perf_counter() - started
            return wall_s, {k: list(output.outputs[0].token_ids) for k, output in enumerate(outputs)}

        def with_worker() -> tuple[float, dict[int, list[int]]]:
            answers: list[Output | Failure] = []
            figures = engine.run([Request(k, ids) for k, ids in enumerate(prompts)], SAMPLING, answers.append)
            return figures.wall_s, {
                a.number: list(a.completions[0].token_ids) for a in answers if isinstance(a, Output)
            }

        with_generate(), with_worker()  # warm-up
        coin = random.Random(options.seed)
        ratios, same = [], True
        for pair in range(options.pairs):
            arms = [("generate", with_generate), ("worker", with_worker)]
            if coin.random() < 0.5:
                arms.reverse()
            results = {name: run() for name, run in arms}
            ratios.append(results["generate"][0] / results["worker"][0])
            equal = sum(ids == results["worker"][1].get(k) for k, ids in results["generate"][1].items())
            same = same and equal == len(prompts)
            walls = ", ".join(f"{name} {results[name][0]:.2f} s" for name in ("generate", "worker"))
            print(f"pair {pair + 1}: {walls}, ratio {ratios[-1]:.3f}, same outputs: {equal} of {len(prompts)}")
    spread = f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
    print(f"throughput, worker to generate: median {spread}, {options.pairs} pairs; all outputs the same: {same}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
