"""The engine's child process compared with vLLM's own ways, interleaved: `LLM.generate`, and a `vllm serve` if given.

It prints a line per round, the median ratios of throughput (worker to each), and how many outputs are the same. All
engines are loaded once; each round runs every one, in an order that is drawn anew.

    python infra/bench/against_vllm.py data/models/demo-moe data/six-domains/prompts.jsonl --rounds 6
    vllm serve data/models/demo-moe --port 8123 --max-num-seqs 16 --max-model-len 512 --dtype bfloat16 \\
        --no-enable-prefix-caching                     # in another terminal; asynchronous scheduling is its default
    python infra/bench/against_vllm.py data/models/demo-moe data/six-domains/prompts.jsonl --server http://127.0.0.1:8123/v1
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from orderproof.engines.client import VllmEngine
from orderproof.engines.protocol import Engine, Failure, Output, Request
from orderproof.engines.server import ServerEngine
from orderproof.job.spec import EngineSpec

Outputs = dict[int, list[int]]
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

    def generate() -> tuple[float, Outputs]:
        started = time.perf_counter()
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], sampling, use_tqdm=False)
        wall_s = time.perf_counter() - started
        return wall_s, {k: list(output.outputs[0].token_ids) for k, output in enumerate(outputs)}

    def through(engine: Engine) -> tuple[float, Outputs]:
        answers: list[Output | Failure] = []
        stats = engine.run([Request(k, ids) for k, ids in enumerate(prompts)], SAMPLING, answers.append)
        return stats.wall_s, {a.number: list(a.completions[0].token_ids) for a in answers if isinstance(a, Output)}

    with ExitStack() as held:
        spec = EngineSpec(args=args, env={"VLLM_CPU_KVCACHE_SPACE": "1"})
        worker = held.enter_context(VllmEngine(spec, options.model, SAMPLING, Path("/dev/null")))
        arms: dict[str, Callable[[], tuple[float, Outputs]]] = {"worker": lambda: through(worker), "generate": generate}
        if options.server:
            spec = EngineSpec(
                server=options.server, concurrency=options.concurrency, args={"max_num_seqs": options.batch}
            )
            server = held.enter_context(ServerEngine(spec))
            arms["server"] = lambda: through(server)
        compare(arms, options.rounds, len(prompts), random.Random(options.seed))


def compare(
    arms: Mapping[str, Callable[[], tuple[float, Outputs]]], rounds: int, prompts: int, draws: random.Random
) -> None:
    """Run every arm in each round, in an order drawn anew, and print how the first compares with the others."""
    first, *others = arms
    for run in arms.values():
        run()  # warm-up
    ratios, same = {name: list[float]() for name in others}, {name: list[int]() for name in others}
    for number in range(1, rounds + 1):
        names = draws.sample(list(arms), len(arms))
        results = {name: arms[name]() for name in names}
        for name in others:
            ratios[name].append(results[name][0] / results[first][0])
            same[name].append(sum(ids == results[first][1].get(k) for k, ids in results[name][1].items()))
        print(f"round {number}:", ", ".join(f"{name} {results[name][0]:.2f} s" for name in arms), flush=True)
    for name in others:
        seen = ratios[name]
        spread = f"{statistics.median(seen):.3f} ({min(seen):.3f} to {max(seen):.3f})"
        print(f"throughput, {first} to {name}: median {spread}; same outputs: {min(same[name])} of {prompts} at least")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--server", help="URL of a `vllm serve` of the same model and settings, ending in /v1")
    parser.add_argument("--concurrency", type=int, default=32, help="requests in flight on the server")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
