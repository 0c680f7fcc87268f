"""What a person and a machine see of a `Foresight`: lines for a terminal, JSON, and reports/plan/<job>/.

In: a `Foresight`. Out: text and files. Decides nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from orderproof.tasks.files import atomic_file, write_atomically
from orderproof.tasks.foresight.advice import interval
from orderproof.tasks.foresight.economics import SECONDS_PER_HOUR, break_even_prompts
from orderproof.tasks.foresight.foretold import PLAN_FILE, plan_dir
from orderproof.tasks.foresight.planning import Forecast, Foresight
from orderproof.tasks.foresight.prediction import over
from orderproof.tasks.jobs import Job, OrderSpec
from orderproof.tasks.outcome import TOY

SCHEMA = "orderproof/plan/1"
PICTURE_FILE = "plan.png"


def write_foresight(job: Job, seen: Foresight) -> Path:
    """plan.json, and plan.png where there are predictions. Returns the folder."""
    folder = plan_dir(job)
    write_atomically(folder / PLAN_FILE, json.dumps(as_json(seen), indent=1, ensure_ascii=False) + "\n")
    if seen.forecast:
        draw(seen, folder / PICTURE_FILE)
    return folder


def as_json(seen: Foresight) -> dict[str, Any]:
    """The stable shape of `--json`. Gains and shares are fractions, times seconds; absent things are null."""
    forecast, facts = seen.forecast, seen.facts
    return {
        "schema": SCHEMA,
        "job": seen.job,
        "toy": seen.model.toy,
        "dataset_md5": seen.dataset_md5,
        "sampling": seen.sampling,
        "left_out": list(seen.left_out),
        "model": seen.model.as_dict(),
        "facts": {**asdict(facts), "prefill_share": facts.prefill_share},
        "looks": list(seen.rule.looks),
        "detectable_gain": seen.detectable,
        "advice": asdict(seen.advice),
        "order": _order(seen.candidate[0].spec) if seen.candidate else None,
        "worth": asdict(seen.worth) if seen.worth else None,
        "forecast": _forecast_json(forecast) if forecast else None,
    }


def _order(spec: OrderSpec) -> dict[str, Any]:
    """As it is written under `order` in params.yaml."""
    return spec.model_dump(exclude_defaults=True) | {"method": spec.method}


def _forecast_json(forecast: Forecast) -> dict[str, Any]:
    held_out = {choice.spec: choice.saved for choice in forecast.choices.ranked} if forecast.choices else {}
    return {
        "captured": forecast.captured,
        "shuffled_s": forecast.shuffled_s,
        "today": asdict(forecast.today),
        "costs": forecast.costs.model_dump(mode="json"),
        "oracle_saves": forecast.choices.headroom if forecast.choices else None,
        "orders": [
            {
                **asdict(foretold),
                "gain_over_today": over(foretold, forecast.today)[0],
                "order": _order(one.spec),
                "experts_saved_held_out": held_out.get(one.spec),
                "seconds": one.seconds,
            }
            for one, foretold in zip(forecast.candidates, forecast.predictions, strict=True)
        ],
        "impossible": {one.name: one.problem for one in forecast.impossible},
    }


def lines(seen: Foresight) -> list[str]:
    """The page as text."""
    return [
        f"{seen.job}: {seen.advice.answer.upper()}" + (f"  [{TOY}]" if seen.model.toy else ""),
        f"  {seen.advice.reason}",
        "",
        *_fact_lines(seen),
        *(_forecast_lines(seen.forecast) if seen.forecast else ()),
        *(f"  left out: {what}" for what in seen.left_out if seen.forecast),
        *_trial_lines(seen),
    ]


def _fact_lines(seen: Foresight) -> Iterator[str]:
    facts, moe = seen.facts, seen.facts.moe
    if moe is None:
        yield f"model      {seen.model.path}: {seen.model.architecture}, dense"
    else:
        size = f", {moe.bytes_per_expert / 1e6:.1f} MB each" if moe.bytes_per_expert else ""
        yield f"model      {moe.moe_layers} layers of {moe.experts} experts, top-{moe.top_k}{size}"
        yield (
            f"batch      {facts.batch} sequences{_spread(seen)}, {facts.batches:.0f} full ones; a step would touch "
            f"{facts.touched:.0%} of a layer's experts if all were equally popular, {facts.touched_sorted:.0%} in one "
            "published domain"
        )
    samples = f" in {facts.samples:g} samples" if facts.samples > 1 else ""
    yield (
        f"prompts    {facts.prompts}, {facts.prompt_tokens:.0f} tokens each, for at most {facts.output_tokens:.0f} "
        f"generated{samples}: {facts.prefill_share:.0%} of all tokens are prefill"
    )
    like = (
        "is like a shuffle"
        if facts.shuffle_like
        else "is no shuffle: its neighbours are more or less alike than chance"
    )
    yield f"order      today {facts.today}, which {like} (p = {facts.neighbours_p:.3f})"


def _spread(seen: Foresight) -> str:
    """Over what the batches are spread."""
    facts, forecast = seen.facts, seen.forecast
    on = f" on each of {facts.replicas} replicas" if facts.replicas > 1 else ""
    return on + (f", experts over {forecast.devices} devices" if forecast and forecast.devices > 1 else "")


def _forecast_lines(forecast: Forecast) -> Iterator[str]:
    costs, today = forecast.costs, forecast.today
    near = f", {costs.times_bandwidth:.1f} times what reading its bytes takes" if costs.times_bandwidth else ""
    yield (
        f"a step     {costs.base_ms[-1]:.2f} ms at batch {costs.batches[-1]:.0f} + {1000 * costs.expert_ms:.1f} ± "
        f"{1000 * costs.expert_ms_error:.1f} µs per expert{near} (R² {costs.r_squared:.2f}, {costs.steps} steps)"
    )
    yield ""
    yield f"from the routes of {forecast.captured} prompts, against shuffled and today's order ({today.name}):"
    yield f"  {'order':28s} {'experts':>8s} {'held out':>9s}   {'predicted gain':28s}{'to make':>8s}  over today"
    held_out = {choice.spec: choice.saved for choice in forecast.choices.ranked} if forecast.choices else {}
    for one, foretold in zip(forecast.candidates, forecast.predictions, strict=True):
        held = f"{-held_out[one.spec]:+9.1%}" if one.spec in held_out else f"{'':9s}"
        yield (
            f"  {one.name:28s} {-foretold.experts_saved:+8.1%} {held}   {interval(foretold):28s}{one.seconds:6.1f} s "
            f"{over(foretold, today)[0]:+11.1%}"
        )
    yield f"  {'today':28s} {-today.experts_saved:+8.1%} {'':9s}   {interval(today)}"
    if forecast.choices:
        most = f"{-forecast.choices.headroom:+9.1%}"
        yield f"  {'greedy by the real routes':28s} {'':8s} {most}   (the most that an order could save)"
    for one in forecast.impossible:
        yield f"  {one.name:28s} not possible: {one.problem}"


def _trial_lines(seen: Foresight) -> Iterator[str]:
    looks = ", ".join(map(str, seen.rule.looks))
    least = f"; the last detects a gain of {seen.detectable:.1%}" if seen.detectable else ""
    yield ""
    yield f"trial      looks at {looks} blocks{least}"
    worth = seen.worth
    if worth is None or seen.candidate is None:
        return
    yield (
        f"           {_time(worth.trial_s)} of passes at most; ordering takes {_time(worth.ordering_s)}, "
        f"{worth.ordering_share:.2%} of the generation it serves"
    )
    yield f"worth      {_time(worth.saved_s)} of {_time(worth.today_s)} per run" + (
        f", {worth.saved_per_month:.2f} {worth.currency} a month at {worth.runs_per_month:.0f} runs"
        if worth.price_per_hour
        else ""
    )
    prompts = break_even_prompts(worth, seen.facts.prompts)
    if prompts is not None and worth.runs_to_break_even is not None:
        yield (
            f"           the trial is paid back after {worth.runs_to_break_even:.0f} runs, or by one run of "
            f"{prompts:,.0f} prompts"
        )
    if seen.advice.answer == "measure":
        spec = json.dumps(_order(seen.candidate[0].spec))
        yield f"next       jobs.{seen.job}.order: {spec} in params.yaml, then `orderproof measure {seen.job}`"


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 2 * SECONDS_PER_HOUR else f"{seconds / SECONDS_PER_HOUR:.1f} h"


def draw(seen: Foresight, path: Path) -> None:
    """Predicted gain of every order, with its interval."""
    import matplotlib
    from matplotlib.figure import Figure

    from orderproof.tasks.report.figures import DPI, FAINT, STYLE, WIDTH_IN

    forecast = seen.forecast
    assert forecast is not None
    shown = list(forecast.predictions)[::-1]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_IN, 1.4 + 0.32 * len(shown)), layout="constrained")
        axes = figure.subplots()
        for row, one in enumerate(shown):
            colour = "#D55E00" if one.name == seen.advice.candidate else "#0072B2"
            axes.errorbar(100 * one.gain, row, xerr=[[100 * (one.gain - one.low)], [100 * (one.high - one.gain)]],
                          fmt="o", color=colour, capsize=3)  # fmt: skip
        axes.axvline(0, color=FAINT, lw=0.8)
        axes.axvline(100 * seen.rule.worthwhile, color=FAINT, lw=0.8, ls="--")
        axes.text(100 * seen.rule.worthwhile, -0.9, " worth while", color=FAINT, fontsize=9, va="center")
        axes.set_yticks(range(len(shown)), [one.name for one in shown])
        axes.set(xlabel="predicted gain over shuffled, %")
        axes.set_ylim(-1.2, len(shown) - 0.4)
        toy = "; toy model: not your gain" if seen.model.toy else ""
        axes.set_title(f"{seen.job}: {seen.advice.answer}{toy}", loc="left", pad=8)
        with atomic_file(path) as sink:
            figure.savefig(sink, format="png", dpi=DPI, facecolor="white")
