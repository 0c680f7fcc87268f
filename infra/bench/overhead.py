"""What `orderproof generate` adds to the engine's own time, on a small job and on a large one, part by part.

For each number of prompts it prints the seconds of loading (the command's libraries, then the engine with its
compilation), of the engine at work, and of each other part, with the other parts' share of the engine's time; and which
of them grow with the prompts. against_vllm.py compares the engine's own time with `LLM.generate`.

The job is in a git and DVC project; a first command, which is not reported, creates MLflow's database there.

    python infra/bench/overhead.py --prompts 10000
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from bench import ENGINE, SAMPLING

from orderproof.engines.client import BOOTSTRAP
from orderproof.generate.lock import LOCK_FILE

FEW = 100
LOOK_EVERY_S = 0.05
MAX_MODEL_LEN = 1024  # tokens; of 10,000 prompts one leaves too little room in the benchmark's 512
STAGE = {
    "cmd": "orderproof generate ${key}",
    "deps": ["${item.prompts}", "${item.model}"],
    "params": ["defaults", "jobs.${key}"],
    "outs": [{"data/${key}/outputs.parquet": {"persist": True}}],
}
LIBRARIES, ENGINE_LOAD = "load: the command's libraries", "load and compile: the engine"
WORK = "the engine at work"
# The rest, in the order in which it happens. A part ends when its file is there, or the engine's process comes or goes.
BEFORE, BESIDE = "prompts, order, checkpoint", "the engine's process around its load and work"
OUTPUTS, PICTURE, MLFLOW, DVC = "outputs and their expectations", "picture", "MLflow", "DVC"
END = "the end of the process"

LOAD = (LIBRARIES, ENGINE_LOAD)

Parts = dict[str, float]  # seconds of each


def main() -> None:
    options = _arguments()
    with tempfile.TemporaryDirectory() as folder:
        root = make_project(Path(folder), options.model.resolve(), options.tokens)
        generate(root, FEW)
        few, many = generate(root, FEW), generate(root, options.prompts)
    print(f"\n{'seconds of a command, by prompts':<52}{FEW:>9}{options.prompts:>9}")
    for part in few:
        print(f"{part:<52}{few[part]:>9.2f}{many[part]:>9.2f}")
    rest = [sum(seconds for part, seconds in parts.items() if part not in (*LOAD, WORK)) for parts in (few, many)]
    print(f"{'the rest together':<52}{rest[0]:>9.2f}{rest[1]:>9.2f}")
    print(f"{'... of the engine at work':<52}{rest[0] / few[WORK]:>9.1%}{rest[1] / many[WORK]:>9.1%}")
    grows = rest[1] - rest[0]
    print(f"growing with the prompts: {grows:.2f} s, {grows / many[WORK]:.2%} of the engine's time")


def make_project(root: Path, model: Path, tokens: int) -> Path:
    """A job `it` whose prompts are still to come, in git and DVC."""
    sampling = {**SAMPLING, "max_tokens": tokens}
    engine = {**ENGINE, "args": {**ENGINE["args"], "max_model_len": MAX_MODEL_LEN}}
    job = {"prompts": "prompts.jsonl", "model": str(model), "engine": engine, "sampling": sampling}
    stages = {"stages": {"generate": {"foreach": "${jobs}", "do": STAGE}}}
    (root / "params.yaml").write_text(json.dumps({"defaults": {}, "jobs": {"it": job}}))  # JSON is YAML
    (root / "dvc.yaml").write_text(json.dumps(stages))
    subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)
    subprocess.run([sys.executable, "-m", "dvc", "init", "--quiet"], cwd=root, check=True)
    return root


def generate(root: Path, number: int) -> Parts:
    """One command for so many prompts."""
    maker = [sys.executable, Path(__file__).with_name("make_many.py"), str(number), "-o", root / "prompts.jsonl"]
    subprocess.run(maker, check=True, stdout=subprocess.DEVNULL)
    command = [sys.executable, "-m", "orderproof.cli", "generate", "it", "--json"]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as log:
        began = time.time()
        process = psutil.Popen(command, cwd=root, stdout=out, stderr=log)
        engine_began, engine_ended = _engine_of(process)
        ended = time.time()
        out.seek(0), log.seek(0)
        if process.returncode:
            raise SystemExit(log.read()[-2000:])
        return _parts(root, json.load(out), (began, engine_began, engine_ended, ended))


def _engine_of(process: psutil.Popen) -> tuple[float, float]:
    """When the command's engine was first and last seen, once the command has ended. In seconds since the epoch."""
    times = []
    while process.poll() is None:
        with contextlib.suppress(psutil.NoSuchProcess):
            if any(_is_engine(child) for child in process.children()):
                times.append(time.time())
        time.sleep(LOOK_EVERY_S)
    return (times[0], times[-1]) if times else (time.time(), time.time())  # none where it failed before


def _is_engine(child: psutil.Process) -> bool:
    try:
        return BOOTSTRAP in child.cmdline()
    except psutil.NoSuchProcess:  # a child of another kind that has ended
        return False


def _parts(root: Path, run: dict[str, Any], times: tuple[float, float, float, float]) -> Parts:
    began, engine_began, engine_ended, ended = times
    locked = (root / "data" / "it" / LOCK_FILE).stat().st_mtime  # written first of all
    reports = root / "reports" / "it"
    after = {
        OUTPUTS: reports / "validation" / "outputs_validation.json",
        PICTURE: reports / "generate" / run["id"] / "steps.png",
        MLFLOW: root / ".orderproof" / "mlflow" / "sent" / "it.json",
        DVC: root / "dvc.lock",
    }
    ends = [engine_ended, *(file.stat().st_mtime for file in after.values()), ended]
    load_s, wall_s = run["figures"]["load_s"], run["figures"]["wall_s"]
    return {
        LIBRARIES: locked - began,
        BEFORE: engine_began - locked,
        ENGINE_LOAD: load_s,
        WORK: wall_s,
        BESIDE: engine_ended - engine_began - load_s - wall_s,
        **{part: ends[k + 1] - ends[k] for k, part in enumerate([*after, END])},
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("data/models/demo-moe"))
    parser.add_argument("--prompts", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, default=SAMPLING["max_tokens"], help="that every prompt generates")
    return parser.parse_args()


if __name__ == "__main__":
    main()
