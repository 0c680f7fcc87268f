"""A measurement as a story: what is refused before anything is spent, what runs on the engine, and what is kept."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from orderproof.engines.protocol import Engine, EngineError
from orderproof.job.params import load_job
from orderproof.job.spec import Job
from orderproof.measure import steps, story
from orderproof.measure.plan import Plan
from orderproof.measure.story import Steps, measure
from orderproof.measure.trial_progress import TrialProgress
from orderproof.measure.trial_store import Trial, read_trials
from orderproof.prompts.tokenization import TokenizedPrompts
from orderproof.runs import ledger
from orderproof.runs.promotion import read_promotion
from orderproof.runs.run_store import newest_run
from tests.support.fake_engine import FakeEngine, Trouble, mixed, prompts_of
from tests.support.measured_job import without_trackers

SIZE = 192  # 24 for each of 8 sequences: the smallest trial of natural lengths
MOE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "moe_intermediate_size": 64,
    "torch_dtype": "bfloat16",
}
DENSE = {"architectures": ["Qwen3ForCausalLM"], "hidden_size": 64}
SMALL_TRIAL = {"looks": [3, 5], "validity": {"repeats": 0}}


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    without_trackers(monkeypatch)
    (tmp_path / "m").mkdir()
    write_model(tmp_path, MOE)
    prompts = prompts_of(mixed(SIZE))
    rows = [{"id": name, "text": text} for name, text in zip(prompts.ids, prompts.rendered, strict=True)]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    fixed_lengths = {"temperature": 0, "max_tokens": 16, "ignore_eos": True}  # slices are timed one by one
    engine = {"args": {"max_num_seqs": 8}}
    files = {"prompts": "p.jsonl", "model": "m"}
    job = {**files, "engine": engine, "order": {"method": "label"}, "sampling": fixed_lengths}
    params = {"defaults": {"measure": SMALL_TRIAL}, "jobs": {"it": job}}
    (tmp_path / "params.yaml").write_text(json.dumps(params))
    return load_job(tmp_path / "params.yaml", "it")


def write_model(root: Path, config: dict[str, Any]) -> None:
    (root / "m" / "config.json").write_text(json.dumps(config))


@dataclass
class Surroundings:
    """Steps of a measurement without tokenizer and lock, and what happened in them."""

    engine: FakeEngine = field(default_factory=FakeEngine)
    happened: list[str] = field(default_factory=list)

    def steps(self, **others: Any) -> Steps:
        seen = {
            name: self._logged(name, getattr(steps, name))
            for name in ("make_plan", "warm_up", "run_block", "report", "refuse", "promote")
        }
        return Steps(**{"validate": self.validate, "accelerator": self.accelerator, **seen, **others})

    def validate(self, job: Job) -> TokenizedPrompts:
        self.happened.append("validate")
        return prompts_of(mixed(SIZE))

    @contextlib.contextmanager
    def accelerator(self) -> Iterator[None]:
        self.happened.append("accelerator")
        try:
            yield
        finally:
            self.happened.append("released")

    @contextlib.contextmanager
    def start(self, job: Job) -> Iterator[Engine]:
        self.happened.append("engine")
        try:
            yield self.engine
        finally:
            self.happened.append("engine ended")

    def _logged(self, name: str, step: Any) -> Any:
        def run(*given: Any) -> Any:
            self.happened.append(name)
            return step(*given)

        return run


@pytest.fixture
def surroundings(monkeypatch: pytest.MonkeyPatch) -> Surroundings:
    around = Surroundings()
    monkeypatch.setattr(story, "start_engine", around.start)
    return around


def test_the_accelerator_is_held_from_the_plan_until_all_is_recorded(job: Job, surroundings: Surroundings) -> None:
    run = measure(job, run_with=surroundings.steps())
    happened = surroundings.happened
    blocks = happened.count("run_block")
    assert blocks in SMALL_TRIAL["looks"]
    trial = ["engine", "warm_up", *["run_block"] * blocks, "engine ended"]
    assert happened == ["validate", "accelerator", "make_plan", *trial, "report", "promote", "released"]
    assert run.figure("blocks") == blocks


def test_rows_that_were_left_out_stand_with_the_verdict_and_the_trial_in_the_ledger(
    job: Job, surroundings: Surroundings
) -> None:
    usable = replace(prompts_of(mixed(SIZE)), rows_left_out=2)
    run = measure(job, run_with=surroundings.steps(validate=lambda _: usable))
    assert "left out: 2 rows that cannot be used: `orderproof validate` names them" in run.lines
    (entry,) = ledger.read(job.data_dir / ledger.FILE)
    (trial,) = read_trials(job.paths.verb_dir("measure"))
    assert (entry.run, entry.question, entry.attempt) == (run.id, trial.manifest.question, 1)
    assert (entry.answer, entry.gain, entry.alpha) == (run.answer, run.figure("gain"), 0.025)
    assert entry.seconds >= sum(timed.block_s for timed in trial.passes) / 2
    assert (job.root / "reports" / "it" / "ledger.png").exists()


def test_a_measurement_is_kept_with_its_evidence_and_decides_the_order(job: Job, surroundings: Surroundings) -> None:
    run = measure(job, run_with=surroundings.steps(prefect_run=lambda: "flow-1"))
    (trial,) = read_trials(job.paths.verb_dir("measure"))
    kept = newest_run(job, "measure")
    assert kept is not None
    assert (kept.id, kept.answer, kept.prefect_run) == (trial.manifest.trial, run.answer, "flow-1")
    assert (run.mlflow_run, run.verb) == ("run-1", "measure")
    assert (job.root / run.files["page"]).is_file()
    promotion = read_promotion(job)
    assert promotion is not None
    assert promotion.trial == trial.manifest.trial
    assert promotion.promoted == (run.answer == "promote")


def test_a_dense_model_is_refused_before_the_prompts_are_read(job: Job, surroundings: Surroundings) -> None:
    write_model(job.root, DENSE)
    run = measure(job, run_with=surroundings.steps())
    assert surroundings.happened == ["refuse"]
    assert (run.answer, run.exit_code) == ("refused", 12)


def test_what_a_plan_refuses_starts_no_engine(job: Job, surroundings: Surroundings) -> None:
    few = surroundings.steps(validate=lambda _: prompts_of(["maths"]))
    run = measure(job, run_with=few)
    assert surroundings.happened == ["accelerator", "make_plan", "refuse", "released"]
    assert run.answer == "refused"
    assert newest_run(job, "measure") is not None


def test_an_aa_test_is_measured_on_any_model_and_decides_no_order(job: Job, surroundings: Surroundings) -> None:
    write_model(job.root, DENSE)
    run = measure(job, aa=True, run_with=surroundings.steps())
    assert "run_block" in surroundings.happened
    assert run.verb == "aa"
    assert read_promotion(job) is None
    assert newest_run(job, "measure") is None


def test_nothing_is_measured_where_nothing_changed_if_that_is_asked_for(job: Job, surroundings: Surroundings) -> None:
    first = measure(job, run_with=surroundings.steps())
    surroundings.happened.clear()
    again = measure(job, only_if_changed=True, run_with=surroundings.steps())
    assert surroundings.happened == ["validate", "accelerator", "make_plan", "report", "promote", "released"]
    assert (again.id, again.answer, again.figures) == (first.id, first.answer, first.figures)
    assert first.id in again.notes[0]
    measure(job, run_with=surroundings.steps())
    assert len(read_trials(job.paths.verb_dir("measure"))) == 2


def test_an_engine_that_fails_ends_the_measurement_and_what_was_timed_is_kept(
    job: Job, surroundings: Surroundings
) -> None:
    def fails(plan: Plan, engine: Engine, so_far: Trial, number: int, progress: TrialProgress) -> Trial:
        if number == 2:
            raise EngineError("the engine died")
        return steps.run_block(plan, engine, so_far, number, progress)

    with pytest.raises(EngineError, match="died"):
        measure(job, run_with=surroundings.steps(run_block=fails))
    assert surroundings.happened[-2:] == ["engine ended", "released"]
    (trial,) = read_trials(job.paths.verb_dir("measure"))
    assert len(trial.blocks()) == 1
    assert (newest_run(job, "measure"), read_promotion(job)) == (None, None)


def test_blocks_that_stay_invalid_end_the_trial_as_invalid(job: Job, surroundings: Surroundings) -> None:
    surroundings.engine = FakeEngine({number: Trouble(failed=3) for number in range(1, 40)})
    run = measure(job, run_with=surroundings.steps())
    assert (run.answer, run.exit_code) == ("invalid", 13)
    promotion = read_promotion(job)
    assert promotion is not None
    assert not promotion.promoted
