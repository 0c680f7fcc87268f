"""What ordering costs: seconds and resident memory at growing numbers of prompts, by signal, whole and in windows.

It prints a Markdown row per case, with the ratio to the time of the smaller number before; with --json it writes the
figures. make_many.py makes the prompts. Each case is the command itself in its own process; its memory is the largest
resident set that the kernel counted for it or for a process that it started. A sentence embedding runs a second model,
so it stops at EMBEDDED_PROMPTS.

    python infra/bench/order_scale.py data/models/demo-moe --prompts 10000 100000 1000000
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

SIGNALS = ("lexical", "token", "embedding")
EMBEDDED_PROMPTS = 10_000
WINDOWS = (None, 256)
COMMAND = [sys.executable, "-c", "from orderproof.cli.main import main; main()", "order"]


def main() -> None:
    options = _arguments()
    print("| signal | window | prompts | seconds | MiB | times the row before |\n|---|---|---|---|---|---|")
    cases = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        files = {number: Path(folder) / f"{number}.jsonl" for number in sorted(options.prompts)}
        for number, path in files.items():
            maker = Path(__file__).with_name("make_many.py")
            words = [sys.executable, str(maker), str(number), "-o", str(path)]
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        for case in cases(files, options.signals, options.model):
            cases.append(case)
            ratio = "" if case["ratio"] is None else f"{case['ratio']:.1f}"
            print(
                f"| {case['signal']} | {case['window'] or 'whole file'} | {case['prompts']:,} | {case['seconds']:.1f} "
                f"| {case['mib']:.0f} | {ratio} |",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(cases, indent=1) + "\n")


def cases(files: Mapping[int, Path], signals: list[str], model: Path) -> Iterator[dict[str, Any]]:
    """Each signal and window, from the smallest file to the largest."""
    for signal in signals:
        for window in WINDOWS:
            earlier = None
            for number, path in files.items():
                if signal == "embedding" and number > EMBEDDED_PROMPTS:
                    continue
                seconds, mib = order(path, path.with_name("sorted.jsonl"), signal, window, model)
                ratio = seconds / earlier if earlier else None
                yield {
                    "signal": signal,
                    "window": window,
                    "prompts": number,
                    "seconds": seconds,
                    "mib": mib,
                    "ratio": ratio,
                }
                earlier = seconds


def order(prompts: Path, output: Path, signal: str, window: int | None, model: Path) -> tuple[float, float]:
    """Run the command; seconds it took, and MiB that were resident at most."""
    arguments = [str(prompts), "--method", signal, "--model", str(model), "-o", str(output)]
    if window:
        arguments += ["--window", str(window)]
    started = time.perf_counter()
    process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    if status:
        raise SystemExit(f"orderproof order failed on {prompts} with {signal}")
    return seconds, usage.ru_maxrss / 1024


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--prompts", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--signals", nargs="+", choices=SIGNALS, default=list(SIGNALS))
    parser.add_argument("--folder", type=Path, help="for the files, about 1 KB a prompt; default: the system's")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    return parser.parse_args()


if __name__ == "__main__":
    main()
