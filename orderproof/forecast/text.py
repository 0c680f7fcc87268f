"""A `Foresight` in words: what its terminal text and its page both say.

In: a `Foresight`. Out: strings. Decides nothing and touches no file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from orderproof.forecast.advice import interval
from orderproof.forecast.economics import SECONDS_PER_HOUR, break_even_prompts
from orderproof.forecast.planning import Forecast, Foresight
from orderproof.forecast.prediction import over
from orderproof.job.formatting import signed
from orderproof.job.spec import OrderSpec
from orderproof.measure.outcome import TOY

COLUMNS = ("order", "experts", "held out", "predicted gain", "to make", "over today")
WIDTHS = ("36s", ">8s", ">9s", ">27s", ">9s", ">11s")


def lines(seen: Foresight) -> list[str]:
    """The page as text."""
    return [
        f"{seen.job}: {seen.advice.answer.upper()}" + (f"  [{TOY}]" if seen.model.toy else ""),
        f"  {seen.advice.reason}",
        "",
        *(f"{name:10s} {said}" for name, said in facts_said(seen)),
        *(_table_lines(seen.forecast) if seen.forecast else ()),
        *(f"  left out: {what}" for what in seen.left_out if seen.forecast),
        "",
        *(f"{name:10s} {said}" for name, said in worth_said(seen)),
    ]


def order_in_params(spec: OrderSpec) -> dict[str, Any]:
    """As it is written under `order` in params.yaml."""
    return spec.model_dump(exclude_defaults=True) | {"method": spec.method}


def facts_said(seen: Foresight) -> Iterator[tuple[str, str]]:
    """What the job is, and what a step of it costs."""
    facts, moe = seen.facts, seen.facts.moe
    if moe is None:
        yield "model", f"{seen.model.path}: {seen.model.architecture}, dense"
    else:
        size = f", {moe.bytes_per_expert / 1e6:.1f} MB each" if moe.bytes_per_expert else ""
        yield "model", f"{moe.moe_layers} layers of {moe.experts} experts, top-{moe.top_k}{size}"
        yield (
            "batch",
            f"{facts.batch} sequences{_spread(seen)}, {facts.batches:.0f} full ones; a step would touch "
            f"{facts.touched:.0%} of a layer's experts if all were equally popular, {facts.touched_sorted:.0%} in one "
            "published domain",
        )
    samples = f" in {facts.samples:g} samples" if facts.samples > 1 else ""
    yield (
        "prompts",
        f"{facts.prompts}, {facts.prompt_tokens:.0f} tokens each, for at most {facts.output_tokens:.0f} "
        f"generated{samples}: {facts.prefill_share:.0%} of all tokens are prefill",
    )
    like = (
        "is like a shuffle"
        if facts.shuffle_like
        else "is no shuffle: its neighbours are more or less alike than chance"
    )
    yield "order", f"today {facts.today}, which {like} (p = {facts.neighbours_p:.3f})"
    if seen.forecast:
        yield "a step", _step_said(seen.forecast)


def _spread(seen: Foresight) -> str:
    """Over what the batches are spread."""
    facts, forecast = seen.facts, seen.forecast
    on = f" on each of {facts.replicas} replicas" if facts.replicas > 1 else ""
    return on + (f", experts over {forecast.devices} devices" if forecast and forecast.devices > 1 else "")


def _step_said(forecast: Forecast) -> str:
    costs = forecast.costs
    near = f", {costs.times_bandwidth:.1f} times what reading its bytes takes" if costs.times_bandwidth else ""
    return (
        f"{costs.base_ms[-1]:.2f} ms at batch {costs.batches[-1]:.0f} + {1000 * costs.expert_ms:.1f} ± "
        f"{1000 * costs.expert_ms_error:.1f} µs per expert{near} (R² {costs.r_squared:.2f}, {costs.steps} steps)"
    )


def basis_said(forecast: Forecast) -> str:
    """What the table of orders rests on."""
    return f"from the routes of {forecast.captured} prompts, against shuffled and today's order ({forecast.today.name})"


def order_rows(forecast: Forecast) -> Iterator[tuple[str, ...]]:
    """A cell for each of COLUMNS: every order, today's, and what hindsight saves."""
    held_out = {choice.spec: choice.saved for choice in forecast.choices.ranked} if forecast.choices else {}
    today = forecast.today
    for one, foretold in zip(forecast.candidates, forecast.predictions, strict=True):
        held = signed(-held_out[one.spec]) if one.spec in held_out else ""
        gained = signed(over(foretold, today)[0])
        yield one.name, signed(-foretold.experts_saved), held, interval(foretold), f"{one.seconds:.1f} s", gained
    yield "today", signed(-today.experts_saved), "", interval(today), "", ""
    if forecast.choices:
        yield (
            "greedy by the real routes",
            "",
            signed(-forecast.choices.headroom),
            "a yardstick: with hindsight",
            "",
            "",
        )


def _table_lines(forecast: Forecast) -> Iterator[str]:
    yield ""
    yield f"{basis_said(forecast)}:"
    for row in (COLUMNS, *order_rows(forecast)):
        yield "  " + " ".join(f"{cell:{width}}" for cell, width in zip(row, WIDTHS, strict=True)).rstrip()
    for one in forecast.impossible:
        yield f"  {one.name:28s} not possible: {one.problem}"


def worth_said(seen: Foresight) -> Iterator[tuple[str, str]]:
    """What a trial costs, what it could return, and what to do next."""
    looks = ", ".join(map(str, seen.rule.looks))
    least = f"; the last detects a gain of {seen.detectable:.1%}" if seen.detectable else ""
    yield "trial", f"looks at {looks} blocks{least}"
    worth = seen.worth
    if worth is None or seen.candidate is None:
        return
    yield (
        "",
        f"{_time(worth.trial_s)} of passes at most; ordering takes {_time(worth.ordering_s)}, "
        f"{worth.ordering_share:.2%} of the generation it serves",
    )
    money = f", {worth.saved_per_month:.2f} {worth.currency} a month at {worth.runs_per_month:.0f} runs"
    yield "worth", f"{_time(worth.saved_s)} of {_time(worth.today_s)} per run" + (money if worth.price_per_hour else "")
    prompts = break_even_prompts(worth, seen.facts.prompts)
    if worth.runs_to_break_even is None:
        yield "", "the trial is never paid back: ordering takes at least as long as it saves"
    elif prompts is not None:
        yield (
            "",
            f"the trial is paid back after {worth.runs_to_break_even:.0f} runs, or by one run of "
            f"{prompts:,.0f} prompts",
        )
    if seen.advice.answer == "measure":
        spec = json.dumps(order_in_params(seen.candidate[0].spec))
        yield "next", f"jobs.{seen.job}.order: {spec} in params.yaml, then `orderproof measure {seen.job}`"


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 2 * SECONDS_PER_HOUR else f"{seconds / SECONDS_PER_HOUR:.1f} h"
