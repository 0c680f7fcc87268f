"""What ordering costs: seconds and resident memory at N and 10 N prompts, by signal, whole and in windows.

In: a served model's folder and a number of prompts (infra/bench/make_many.py makes them). Out: a line per case, and how
many times longer ten times the prompts took. Each case is the command itself in a process of its own; its memory is
the largest resident set that the kernel counted for it, or for a process that it started.

    python infra/bench/order_scale.py data/models/demo-moe --prompts 1000000
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SIGNALS = ("lexical", "token")
WINDOWS = (None, 256)
TENFOLD = 10
COMMAND = [sys.executable, "-c", "from orderproof.flows.cli import main; main()", "order"]


def main() -> None:
    options = _arguments()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        files = {}
        for number in (options.prompts // TENFOLD, options.prompts):
            files[number] = Path(folder) / f"{number}.jsonl"
            maker = Path(__file__).with_name("make_many.py")
            subprocess.run([sys.executable, str(maker), str(number), "-o", str(files[number])], check=True)
        print(f"{'signal':<10}{'window':>8}{'prompts':>10}{'seconds':>9}{'MiB':>7}{'ratio':>7}")
        for signal in options.signals:
            for window in WINDOWS:
                earlier = None
                for number, path in files.items():
                    seconds, mib = order(path, Path(folder) / "sorted.jsonl", signal, window, options.model)
                    ratio = f"{seconds / earlier:.1f}" if earlier else ""
                    print(
                        f"{signal:<10}{window or 'whole':>8}{number:>10}{seconds:>9.1f}{mib:>7.0f}{ratio:>7}",
                        flush=True,
                    )
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
    parser.add_argument("--prompts", type=int, default=1_000_000)
    parser.add_argument("--signals", nargs="+", choices=SIGNALS, default=SIGNALS)
    parser.add_argument("--folder", type=Path, help="for the files, about 1 KB a prompt; default: the system's")
    return parser.parse_args()


if __name__ == "__main__":
    main()
