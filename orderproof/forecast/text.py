"""A `JobForecast` in words, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from orderproof.forecast.advice import interval
from orderproof.forecast.economics import SECONDS_PER_HOUR, break_even_prompts
from orderproof.forecast.planning import JobForecast, OrderForecast
from orderproof.forecast.prediction import over_today
from orderproof.job.formatting import signed
from orderproof.job.spec import OrderSpec
from orderproof.runs.run import TOY

COLUMNS = ("order", "experts", "held out", "predicted gain", "to make", "over today")
WIDTHS = ("36s", ">8s", ">9s", ">27s", ">9s", ">11s")


def lines(job_forecast: JobForecast) -> list[str]:
    """The forecast as lines of text."""
    return [
        f"{job_forecast.job}: {job_forecast.advice.answer.upper()}" + (f"  [{TOY}]" if job_forecast.model.toy else ""),
        f"  {job_forecast.advice.reason}",
        "",
        *(f"{name:10s} {text}" for name, text in describe_job(job_forecast)),
        *(_table_lines(job_forecast.forecast) if job_forecast.forecast else ()),
        *(f"  left out: {item}" for item in job_forecast.left_out if job_forecast.forecast),
        "",
        *(f"{name:10s} {text}" for name, text in describe_worth(job_forecast)),
    ]


def order_in_params(spec: OrderSpec) -> dict[str, Any]:
    """The order as it is written under `order` in params.yaml."""
    return spec.model_dump(exclude_defaults=True) | {"method": spec.method}


def describe_job(job_forecast: JobForecast) -> Iterator[tuple[str, str]]:
    """Model, batch, prompts and today's order of the job, and what a step costs."""
    facts, moe = job_forecast.facts, job_forecast.facts.moe
    if moe is None:
        yield "model", f"{job_forecast.model.path}: {job_forecast.model.architecture}, dense"
    else:
        size = f", {moe.bytes_per_expert / 1e6:.1f} MB each" if moe.bytes_per_expert else ""
        yield "model", f"{moe.moe_layers} layers of {moe.experts} experts, top-{moe.top_k}{size}"
        yield (
            "batch",
            f"{facts.batch} sequences{_spread(job_forecast)}, {facts.batches:.0f} full batches; a step reads "
            f"{facts.touched:.0%} of a layer's experts if all are equally popular, {facts.touched_sorted:.0%} for one "
            "domain as published",
        )
    samples = f" in {facts.samples:g} samples" if facts.samples > 1 else ""
    yield (
        "prompts",
        f"{facts.prompts}, {facts.prompt_tokens:.0f} tokens each, for at most {facts.output_tokens:.0f} "
        f"generated{samples}: {facts.prefill_share:.0%} of all tokens are prefill",
    )
    like = (
        "looks like a shuffle"
        if facts.shuffle_like
        else "is not random: its neighbours are more or less similar than by chance"
    )
    yield "order", f"today {facts.today}, which {like} (p = {facts.neighbours_p:.3f})"
    if job_forecast.forecast:
        yield "a step", _describe_step(job_forecast.forecast)


def _spread(job_forecast: JobForecast) -> str:
    """Replicas and devices of the batches."""
    facts, forecast = job_forecast.facts, job_forecast.forecast
    on = f" on each of {facts.replicas} replicas" if facts.replicas > 1 else ""
    return on + (f", experts over {forecast.devices} devices" if forecast and forecast.devices > 1 else "")


def _describe_step(forecast: OrderForecast) -> str:
    costs = forecast.costs
    ratio = f", {costs.times_bandwidth:.1f} times what reading its bytes takes" if costs.times_bandwidth else ""
    return (
        f"{costs.base_ms[-1]:.2f} ms at batch {costs.batches[-1]:.0f} + {1000 * costs.expert_ms:.1f} ± "
        f"{1000 * costs.expert_ms_error:.1f} µs per expert{ratio} (R² {costs.r_squared:.2f}, {costs.steps} steps)"
    )


def describe_basis(forecast: OrderForecast) -> str:
    """The data behind the table of orders."""
    return f"from the routes of {forecast.captured} prompts, against shuffled and today's order ({forecast.today.name})"


def order_rows(forecast: OrderForecast) -> Iterator[tuple[str, ...]]:
    """A cell for each of COLUMNS: every order, today's, and the greedy order by the real routes."""
    held_out = {choice.spec: choice.saved for choice in forecast.choices.ranked} if forecast.choices else {}
    today = forecast.today
    for candidate, predicted in zip(forecast.candidates, forecast.predictions, strict=True):
        held = signed(-held_out[candidate.spec]) if candidate.spec in held_out else ""
        gain, saved = signed(over_today(predicted, today)[0]), signed(-predicted.experts_saved)
        yield candidate.name, saved, held, interval(predicted), f"{candidate.seconds:.1f} s", gain
    yield "today", signed(-today.experts_saved), "", interval(today), "", ""
    if forecast.choices:
        yield (
            "greedy by the real routes",
            "",
            signed(-forecast.choices.headroom),
            "a yardstick: knows the routes",
            "",
            "",
        )


def _table_lines(forecast: OrderForecast) -> Iterator[str]:
    yield ""
    yield f"{describe_basis(forecast)}:"
    for row in (COLUMNS, *order_rows(forecast)):
        yield "  " + " ".join(f"{cell:{width}}" for cell, width in zip(row, WIDTHS, strict=True)).rstrip()
    for candidate in forecast.impossible:
        yield f"  {candidate.name:28s} not possible: {candidate.problem}"


def describe_worth(job_forecast: JobForecast) -> Iterator[tuple[str, str]]:
    """What a trial costs, what it could return, and what to do next."""
    looks = ", ".join(map(str, job_forecast.rule.looks))
    least = f"; the last detects a gain of {job_forecast.detectable:.1%}" if job_forecast.detectable else ""
    yield "trial", f"looks at {looks} blocks{least}"
    worth = job_forecast.worth
    if worth is None or job_forecast.candidate is None:
        return
    yield (
        "",
        f"{_time(worth.trial_s)} of passes at most; ordering takes {_time(worth.ordering_s)}, "
        f"{worth.ordering_share:.2%} of the generation it serves",
    )
    money = f", {worth.saved_per_month:.2f} {worth.currency} a month at {worth.runs_per_month:.0f} runs"
    yield "worth", f"{_time(worth.saved_s)} of {_time(worth.today_s)} per run" + (money if worth.price_per_hour else "")
    prompts = break_even_prompts(worth, job_forecast.facts.prompts)
    if worth.runs_to_break_even is None:
        yield "", "the trial never pays back: ordering takes at least as long as it saves"
    elif prompts is not None:
        yield (
            "",
            f"the trial pays back after {worth.runs_to_break_even:.0f} runs, or by one run of {prompts:,.0f} prompts",
        )


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 2 * SECONDS_PER_HOUR else f"{seconds / SECONDS_PER_HOUR:.1f} h"
