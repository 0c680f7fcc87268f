"""The benchmark, `make bench`: ways to order compared with the published recipe and the greedy oracle, in one run.

The model is the demo's mixture of experts. For `six-domains` and for a harder mix (one language, overlapping topics,
lengths like a chat's) it reports experts saved, predicted gain and measured gain of every order; for many prompts of
the harder mix, how many experts orders save on prompts that the prediction did not learn from; and what ordering costs
at growing numbers of prompts. It prints tables, and writes under --folder a picture, the figures as JSON, and the
projects, whose captured routes the next run uses again.

The published recipe is a sentence embedding, 16 clusters, and the prompts sorted by cluster; recipe.py names the
embeddings, because the study's own needs a hub. The oracle adds the prompt that brings the fewest new experts, by the
real routes: a yardstick. `observed` knows these routes too: it is for the same prompts again.

    python infra/bench/bench.py                                    # 120 minutes on 2 cores, 15 less if routes are there
    python infra/bench/bench.py --blocks 0 --prompts               # by simulation alone, once routes are captured
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from orderproof.job.formatting import signed, with_interval

HERE = Path(__file__).resolve().parent
DEMO = HERE.parent / "demo"
MIXES = {
    "six-domains": ["make_prompts.py", "six-domains"],
    "chat": ["make_chat.py", "768"],
}
# So that intervals are within ± 3 points for `six-domains`, and within ± 1.5 for the harder mix, where gains are small,
# also in a noisy hour of a shared machine.
BLOCKS = {"six-domains": 8, "chat": 16}
LARGE = "chat-large"
ORDERS = {
    "label": "true labels",
    "recipe": "published recipe, English",
    "multilingual": "published recipe, multilingual",
    "embedding": "embedding",
    "lexical": "lexical",
    "token": "token",
    "predictedx64": "predicted, 64 clusters",
    "exchangex64": "… exchanged",
    "exchange-observedx64": "observed, exchanged",
    "oracle": "greedy oracle",
}
ENGINE = {
    "args": {"max_num_seqs": 16, "max_model_len": 512, "dtype": "bfloat16", "enable_prefix_caching": False},
    "env": {"VLLM_CPU_KVCACHE_SPACE": "1"},
}
SAMPLING = {"temperature": 0, "max_tokens": 48, "ignore_eos": True}


def main() -> None:
    options = _arguments()
    folder = options.folder.resolve()
    found = {}
    for mix in options.mixes:
        params = prepare(folder / mix, mix, MIXES[mix], options.model.resolve())
        figures = folder / mix / "orders.json"
        blocks = BLOCKS[mix] if options.blocks is None else options.blocks
        asked = ["--blocks", str(blocks)] if blocks else ["--predict-only"]
        _run("orders.py", mix, "--params", params, "--json", figures, "--orders", *ORDERS, *asked)
        found[mix] = json.loads(figures.read_text())
        print(table(mix, found[mix]), flush=True)
    (folder / "bench.json").write_text(json.dumps(found, indent=1) + "\n")
    draw(found, folder / "bench.png")
    print(f"picture: {folder / 'bench.png'}")
    if options.captured:
        maker = ["make_chat.py", str(options.captured)]
        params = prepare(folder / LARGE, LARGE, maker, options.model.resolve(), options.captured)
        print(flush=True)
        _run("learning.py", LARGE, "--params", params)
    if options.prompts:
        print(flush=True)
        _run("order_scale.py", options.model, "--prompts", *options.prompts, "--json", folder / "scale.json")


def prepare(root: Path, mix: str, maker: list[str], model: Path, captured: int | None = None) -> Path:
    """A project of one job with its prompts and captured routes; existing files are kept. Returns its params.yaml.

    Args:
        maker: script of infra/demo that makes the prompts, and its words.
        captured: prompts; None: as many as `capture` takes.
    """
    prompts, params = root / "data" / mix / "prompts.jsonl", root / "params.yaml"
    prompts.parent.mkdir(parents=True, exist_ok=True)
    if not prompts.exists():
        script, *words = maker
        subprocess.run([sys.executable, DEMO / script, *words, "-o", prompts], check=True)
    job = {"prompts": f"data/{mix}/prompts.jsonl", "model": str(model), "engine": ENGINE, "sampling": SAMPLING}
    params.write_text(json.dumps({"defaults": {}, "jobs": {mix: job}}))  # JSON is YAML
    if not (prompts.parent / "step_costs.json").exists():
        sample = [] if captured is None else ["--prompts", str(captured)]
        command = [sys.executable, "-m", "orderproof.cli", "capture", mix, "--params", params, *sample]
        subprocess.run(command, check=True)
    return params


def table(mix: str, figures: dict[str, Any]) -> str:
    """Markdown, one row per order."""
    rows = [f"| {mix} | experts | of the oracle's | predicted gain | measured gain |", "|---|---|---|---|---|"]
    most = figures["oracle"]["predicted"]["experts_saved"]
    for name, title in ORDERS.items():
        predicted, measured = figures[name]["predicted"], figures[name]["measured"]
        saved = predicted["experts_saved"]
        gain = _interval(measured) if measured and measured["gain"] is not None else ""
        rows.append(f"| {title} | {signed(-saved)} | {saved / most:.0%} | {_interval(predicted)} | {gain} |")
    return "\n".join(rows)


def _interval(figures: dict[str, Any]) -> str:
    return with_interval(figures["gain"], figures["low"], figures["high"])


def draw(found: dict[str, dict[str, Any]], path: Path) -> None:
    """Predicted and measured gain of every order, a panel for each mix."""
    import matplotlib
    from matplotlib.figure import Figure

    from orderproof.runs.style import DPI, STYLE, WIDTH_IN

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_IN, 0.9 + 0.42 * len(ORDERS)), layout="constrained")
        panels = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
        for axes, (mix, figures) in zip(panels, found.items(), strict=True):
            for kind, colour, shift in (("predicted", "#0072B2", 0.15), ("measured", "#D55E00", -0.15)):
                rows = [(k, figures[name][kind]) for k, name in enumerate(reversed(ORDERS))]
                rows = [(k, arm) for k, arm in rows if arm and arm["gain"] is not None]
                if rows:
                    gains = [100 * arm["gain"] for _, arm in rows]
                    errors = [[100 * abs(arm["gain"] - arm[end]) for _, arm in rows] for end in ("low", "high")]
                    places = [k + shift for k, _ in rows]
                    label = "predicted by simulation" if kind == "predicted" else "measured"
                    axes.errorbar(gains, places, xerr=errors, fmt="o", ms=4, color=colour, capsize=2, label=label)
            axes.axvline(0, color="#999999", lw=0.8)
            axes.set_title(mix, loc="left")
            axes.set_xlabel("gain over shuffled, %")
        panels[0].set_yticks(range(len(ORDERS)), list(reversed(ORDERS.values())))
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8)
        figure.suptitle("toy model on 2 CPU cores: not your gain", x=0.99, ha="right", fontsize=8, color="#666666")
        figure.savefig(path, dpi=DPI, facecolor="white")


def _run(script: str, *words: object) -> None:
    subprocess.run([sys.executable, HERE / script, *map(str, words)], check=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("data/models/demo-moe"))
    parser.add_argument("--mixes", nargs="+", choices=list(MIXES), default=list(MIXES))
    parser.add_argument(
        "--blocks", type=int, help=f"of the measured comparison, by default {BLOCKS}; 0: by simulation alone"
    )
    parser.add_argument(
        "--captured", type=int, default=13_056, help="of many prompts of the harder mix; 0: leave it out"
    )
    parser.add_argument(
        "--prompts",
        type=int,
        nargs="*",
        default=[10_000, 100_000, 1_000_000],
        help="numbers for what ordering costs; none: leave it out",
    )
    parser.add_argument("--folder", type=Path, default=Path(".orderproof/bench"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
