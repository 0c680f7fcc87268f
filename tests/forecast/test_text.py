"""A forecast in words: the answer first, and everything that it rests on."""

from __future__ import annotations

import re
from dataclasses import replace

from orderproof.forecast.planning import JobForecast
from orderproof.forecast.text import describe_job, describe_worth, lines, order_in_params, order_rows
from orderproof.job.spec import Job, OrderSpec


def refused(job_forecast: JobForecast) -> JobForecast:
    """The same of a dense toy model."""
    advice = replace(job_forecast.advice, answer="don't", reason="it is dense", candidate=None)
    model, facts = replace(job_forecast.model, moe=None, toy=True), replace(job_forecast.facts, moe=None)
    return replace(job_forecast, advice=advice, model=model, facts=facts, forecast=None, worth=None)


def test_the_answer_comes_first_and_then_its_reason(planned: tuple[Job, JobForecast]) -> None:
    first, reason, *_ = lines(planned[1])
    assert first == "it: MEASURE"
    assert "label, is predicted to gain +" in reason


def test_everything_that_the_answer_rests_on_is_written_out(planned: tuple[Job, JobForecast]) -> None:
    text = "\n".join(lines(planned[1]))
    facts = (
        r"^model +2 layers of 16 experts, top-2",
        r"^batch +8 sequences\b.*\b20 full",
        r"^order +today the file's own, which looks like a shuffle",
        r"1\.00 ms at batch 8 \+ 100\.0 ± 2\.0 µs per expert",
        r"routes of 160 prompts",
        r"greedy by the real routes",
        r"^  greedy by embedding +not possible: ",
        r"^trial +looks at \d[\d, ]* blocks",
        r"^  label +-\d+\.\d% +-\d+\.\d%   \+\d+\.\d% \(\+\d+\.\d% to \+\d+\.\d%\)",
        r"pays back after \d+ runs",
    )
    assert [fact for fact in facts if not re.search(fact, text, re.MULTILINE)] == []


def test_a_refused_job_has_no_worth_and_no_table(planned: tuple[Job, JobForecast]) -> None:
    first, reason, *rest = lines(refused(planned[1]))
    assert first.startswith("it: DON'T  [toy model")
    assert reason.strip() == "it is dense"
    assert any(re.match("model .*dense", line) for line in rest)
    assert not any("worth" in line or "held out" in line for line in rest)


def test_a_trial_that_is_never_paid_back_is_named_as_such(planned: tuple[Job, JobForecast]) -> None:
    job_forecast = planned[1]
    assert job_forecast.worth is not None
    assert re.search(r"after \d+ runs", str(list(describe_worth(job_forecast))))
    never = replace(job_forecast, worth=replace(job_forecast.worth, ordering_s=1e9))
    text = str(list(describe_worth(never)))
    assert "never pays back" in text
    assert not re.search(r"after \d+ runs", text)


def test_an_order_is_written_as_params_yaml_has_it() -> None:
    assert order_in_params(OrderSpec(method="label")) == {"method": "label"}
    assert order_in_params(OrderSpec(method="label", window=64)) == {"method": "label", "window": 64}


def test_every_order_has_a_row_and_so_has_todays(planned: tuple[Job, JobForecast]) -> None:
    forecast = planned[1].forecast
    assert forecast is not None
    names = [row[0] for row in order_rows(forecast)]
    assert names == ["file", "label", "label, windows of 64", "today", "greedy by the real routes"]


def test_the_engines_replicas_are_among_the_facts(planned: tuple[Job, JobForecast]) -> None:
    two = replace(planned[1], facts=replace(planned[1].facts, replicas=2))
    assert "each of 2 replicas" in dict(describe_job(two))["batch"]
