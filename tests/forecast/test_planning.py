"""From a job's files to its advice, with real routes and orders."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from orderproof.forecast import candidates, planning
from orderproof.forecast.job_profile import left_out
from orderproof.forecast.planning import JobForecast, forecast_job, requests_of
from orderproof.forecast.prediction import Prediction, shrink_to_unseen
from orderproof.job.hashing import md5_of
from orderproof.job.spec import Job, OrderSpec
from orderproof.orders.registry import make_order
from orderproof.orders.view import PromptView, view_of
from orderproof.prompts.prompt_file import read_prompts
from orderproof.prompts.tokenization import tokenize
from orderproof.routing.errors import RoutingError
from orderproof.routing.route_source import captured_routes
from orderproof.routing.routes import open_routes
from orderproof.runs import promotion, route_artifacts
from orderproof.signals.served_model import ServedModel
from tests.support.captured_job import calibrated, make_job, model_of, recaptured
from tests.support.trial_maker import trial_folder

WAYS = [OrderSpec(method="file"), OrderSpec(method="label"), OrderSpec(signal="predicted", clusters=2)]


@pytest.fixture(autouse=True)
def few_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ways: test_candidates.py."""

    def specs(job: Job, prompts: PromptView) -> list[OrderSpec]:
        return WAYS

    monkeypatch.setattr(candidates, "_specs", specs)


def seen(root: Path, **how: Any) -> tuple[Job, JobForecast]:
    job = make_job(root, **how)
    calibrated(job)
    return job, forecast_job(job)


def test_a_job_of_two_kinds_is_advised_to_be_measured_in_the_cheapest_order_that_parts_them(tmp_path: Path) -> None:
    _, job_forecast = seen(tmp_path)
    forecast, candidate, worth = job_forecast.forecast, job_forecast.candidate, job_forecast.worth
    assert (job_forecast.advice.answer, job_forecast.advice.candidate) == ("measure", "label")
    assert forecast is not None
    assert candidate is not None
    assert worth is not None
    assert [one.name for one in forecast.candidates] == [one.name for one in forecast.predictions]
    assert forecast.captured == 160
    gain = candidate[1].gain
    assert 0.05 < gain < 0.6
    file_s = forecast.shuffled_s / (1 + forecast.today.gain)
    assert worth.saved_s == pytest.approx(file_s - forecast.shuffled_s / (1 + gain))
    assert worth.trial_s == pytest.approx(job_forecast.rule.looks[-1] * 2 * file_s)
    assert forecast.choices is not None
    assert forecast.choices.headroom > 0.15


def test_what_a_file_that_is_grouped_gains_already_is_not_returned_again(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    prompts = [json.loads(line) for line in job.prompts_path.read_text().splitlines()]
    # Grouped but for the last quarter: the trial's control, and the sorted order still gains over it.
    kinds = sorted(prompts[:120], key=lambda prompt: prompt["label"]) + prompts[120:]
    job.prompts_path.write_text("".join(json.dumps(prompt) + "\n" for prompt in kinds))
    recaptured(job)
    calibrated(job)
    job_forecast = forecast_job(job)
    forecast, candidate = job_forecast.forecast, job_forecast.candidate
    assert not job_forecast.facts.shuffle_like
    assert forecast is not None
    assert candidate is not None
    assert job_forecast.worth is not None
    file = forecast.predictions[0].gain
    assert 0.02 < file < candidate[1].gain
    assert job_forecast.worth.today_s == pytest.approx(forecast.shuffled_s / (1 + file))
    assert job_forecast.worth.saved_s == pytest.approx(
        forecast.shuffled_s / (1 + file) - forecast.shuffled_s / (1 + candidate[1].gain)
    )


def test_a_sample_speaks_for_the_whole_job_but_not_for_what_was_learned_from_it(tmp_path: Path) -> None:
    (_, part), (_, whole) = (
        seen(tmp_path / name, captured=160, others=others) for name, others in (("a", 160), ("b", 0))
    )
    assert part.forecast is not None
    assert whole.forecast is not None
    assert part.forecast.captured == whole.forecast.captured == 160
    assert part.forecast.shuffled_s == pytest.approx(2 * whole.forecast.shuffled_s, rel=0.05)
    _, label, learned = part.forecast.predictions
    assert (label.name, learned.name) == ("label", "cluster by predicted, 2 clusters")
    assert upward(label) == pytest.approx(0, abs=1e-9)
    assert upward(learned) > 1e-4, "less is predicted for prompts that it did not learn from"
    assert all(upward(one) == pytest.approx(0, abs=1e-9) for one in whole.forecast.predictions)


def upward(one: Prediction) -> float:
    """By how much an interval of log gains reaches further up than down."""
    low, gain, high = (math.log1p(value) for value in (one.low, one.gain, one.high))
    return (high - gain) - (gain - low)


def test_a_trial_of_a_sample_costs_what_the_sample_takes(tmp_path: Path) -> None:
    _, job_forecast = seen(tmp_path, measure={"prompts": 128})
    assert job_forecast.forecast is not None
    assert job_forecast.worth is not None
    assert job_forecast.worth.trial_s == pytest.approx(
        job_forecast.rule.looks[-1] * 2 * job_forecast.worth.today_s * 128 / 160
    )


def test_replicas_share_the_job(tmp_path: Path) -> None:
    (_, one), (_, two) = (
        seen(tmp_path / str(replicas), captured=192, engine={"args": {"max_num_seqs": 8}, "replicas": replicas})
        for replicas in (1, 2)
    )
    assert one.forecast is not None
    assert two.forecast is not None
    half_s = one.forecast.shuffled_s / 2
    assert half_s < two.forecast.shuffled_s < 1.05 * half_s, "each has an end at which its batch empties"


def test_a_sample_is_run_by_as_large_a_share_of_the_replicas(tmp_path: Path) -> None:
    """On all of them it would fill no batch, and an order would seem to gain little."""
    args = {"max_num_seqs": 8}
    _, part = seen(tmp_path / "a", captured=96, others=672, engine={"args": args, "replicas": 8})
    _, alone = seen(tmp_path / "b", captured=96, engine={"args": args, "replicas": 1})
    assert part.forecast is not None
    assert alone.forecast is not None
    assert part.forecast.predictions[1].gain > 0.8 * alone.forecast.predictions[1].gain


def test_samples_of_a_prompt_fill_its_batches_and_lengthen_its_passes(tmp_path: Path) -> None:
    (_, one), (_, four) = (
        seen(tmp_path / str(n), sampling={"temperature": 1.0, "max_tokens": 13, "ignore_eos": True, "n": n})
        for n in (1, 4)
    )
    assert one.forecast is not None
    assert four.forecast is not None
    assert four.forecast.choices is not None
    assert one.forecast.choices is not None
    assert (one.facts.batches, four.facts.batches, four.facts.samples) == (20, 80, 4)
    assert four.facts.prefill_share == pytest.approx(one.facts.prefill_share)
    assert 3 * one.forecast.shuffled_s < four.forecast.shuffled_s < 4 * one.forecast.shuffled_s
    assert four.forecast.choices.shuffled < 0.95 * one.forecast.choices.shuffled, "only two prompts run at once"
    assert 0 < four.forecast.predictions[1].gain < one.forecast.predictions[1].gain


def test_what_runs_today_is_the_promoted_order(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    calibrated(job)
    file = forecast_job(job)
    prompts = tokenize(job, read_prompts(job.prompts_path))
    label = make_order(OrderSpec(method="label"), prompts, md5_of(job.prompts_path))
    promotion._write(job, label, prompts.ids, promoted=True, trial="T", mlflow_run=None)
    job_forecast = forecast_job(job)
    assert file.forecast is not None
    assert job_forecast.forecast is not None
    assert job_forecast.worth is not None
    assert (file.facts.today, job_forecast.facts.today) == ("the file's own", "label, promoted by trial T")
    assert not job_forecast.facts.shuffle_like
    promoted = job_forecast.forecast.predictions[1]
    assert job_forecast.forecast.today.gain == promoted.gain > 0.05
    assert job_forecast.advice.answer == "don't"
    assert "but today's order (label, promoted by trial T) has +" in job_forecast.advice.reason
    assert job_forecast.worth.saved_s == pytest.approx(0)


def test_a_promoted_order_that_learned_from_the_sample_is_trusted_no_more_than_the_candidate(tmp_path: Path) -> None:
    job = make_job(tmp_path, others=160)
    calibrated(job)
    prompts = tokenize(job, read_prompts(job.prompts_path))
    learned = make_order(WAYS[-1], view_of(prompts, ServedModel.of_job(job)), md5_of(job.prompts_path))
    promotion._write(job, learned, prompts.ids, promoted=True, trial="T", mlflow_run=None)
    forecast = forecast_job(job).forecast
    assert forecast is not None
    assert upward(forecast.predictions[-1]) > 1e-4
    assert upward(forecast.today) > 1e-4


def test_a_promoted_order_is_asked_what_it_saves_itself_and_not_another_by_its_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(tmp_path, others=160)
    calibrated(job)
    prompts, windowed = tokenize(job, read_prompts(job.prompts_path)), WAYS[-1].model_copy(update={"window": 16})
    learned = make_order(windowed, view_of(prompts, ServedModel.of_job(job)), md5_of(job.prompts_path))
    promotion._write(job, learned, prompts.ids, promoted=True, trial="T", mlflow_run=None)
    shares: list[float] = []

    def watched(one: Prediction, saved: float) -> Prediction:
        shares.append(saved)
        return shrink_to_unseen(one, saved)

    monkeypatch.setattr(planning, "shrink_to_unseen", watched)
    forecast = forecast_job(job).forecast
    assert forecast is not None
    assert forecast.choices is not None
    saved = {choice.spec: choice.saved for choice in forecast.choices.ranked}
    assert shares == [saved[WAYS[-1]], saved[windowed]]
    assert saved[windowed] < 0.9 * saved[WAYS[-1]]


def test_engine_settings_that_predictions_leave_out_are_listed(tmp_path: Path) -> None:
    args: dict[str, Any] = {"max_num_seqs": 8, "enable_prefix_caching": False}
    assert list(left_out(make_job(tmp_path / "a", captured=32, engine={"args": args}))) == []
    more = {"pipeline_parallel_size": 2, "enable_eplb": True, "speculative_config": {"method": "ngram"}}
    job = make_job(tmp_path / "b", captured=32, engine={"args": {"max_num_seqs": 8, **more}})
    assert [item.partition(":")[0] for item in left_out(job)] == [
        "prefix caching", "pipeline parallelism", "expert placement", "speculative decoding",
    ]  # fmt: skip


def test_without_routes_or_costs_a_capture_is_advised(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    advice = forecast_job(job).advice
    assert (advice.answer, "the costs of a step" in advice.reason) == ("capture", True)
    calibrated(job)
    assert forecast_job(job).advice.answer == "measure"
    (job.data_dir / "routes.parquet").unlink()
    job_forecast = forecast_job(job)
    assert (job_forecast.advice.answer, job_forecast.forecast, job_forecast.worth) == ("capture", None, None)
    assert "to predict its size" in job_forecast.advice.reason


def test_a_job_that_no_order_helps_is_refused_without_replaying_anything(tmp_path: Path) -> None:
    _, job_forecast = seen(tmp_path, captured=100, engine={"args": {"max_num_seqs": 128}})
    assert job_forecast.advice.answer == "don't"
    assert "run at once in one batch of 128" in job_forecast.advice.reason
    assert (job_forecast.forecast, job_forecast.worth, job_forecast.candidate) == (None, None, None)


def test_routes_of_other_prompts_are_refused(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    calibrated(job)
    with job.prompts_path.open("a") as file:
        file.write('{"id": "late", "text": "aeio", "label": "aeiou"}\n')
    with pytest.raises(RoutingError, match="captured from other prompts"):
        forecast_job(job)


def test_routes_of_other_prompts_that_a_trial_kept_are_not_put_back(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    calibrated(job)
    learned = make_order(
        WAYS[-1], view_of(tokenize(job, read_prompts(job.prompts_path)), ServedModel.of_job(job)), "md5"
    )
    route_artifacts.keep(job, learned, trial_folder(job))
    (job.data_dir / "routes.parquet").unlink()
    with job.prompts_path.open("a") as file:
        file.write('{"id": "late", "text": "aeio", "label": "aeiou"}\n')
    advice = forecast_job(job).advice
    assert (advice.answer, "to predict its size" in advice.reason) == ("capture", True)


@pytest.mark.parametrize(("ignore_eos", "generated"), [(True, 40), (False, 13)])
def test_lengths_are_those_that_were_seen_unless_the_job_fixes_them(
    tmp_path: Path, ignore_eos: bool, generated: int
) -> None:
    job = make_job(tmp_path, sampling={"max_tokens": 40, "ignore_eos": ignore_eos}, captured=32)
    prompts = tokenize(job, read_prompts(job.prompts_path))
    with open_routes(job.data_dir / "routes.parquet", model_of(job), md5_of(job.prompts_path)) as routes:
        requests = requests_of(job, prompts, captured_routes(routes, prompts.ids))
    assert {request.generated for (request,) in requests} == {generated}
    assert [request.prompt_tokens for (request,) in requests] == prompts.lengths.tolist()
