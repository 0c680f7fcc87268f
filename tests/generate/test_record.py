"""A generation as the record of a run: its figures are of what it did itself. The engine is the stand-in."""

from __future__ import annotations

from pathlib import Path

import pytest

from orderproof.engines.protocol import EngineError
from orderproof.generate.picture import draw_generation
from orderproof.job.hashing import md5_of
from orderproof.job.model import read_model
from orderproof.job.spec import Job
from orderproof.runs.run_store import RECORD_FILE, RunError, read_runs, verb_folder
from tests.support.batches import TRIAL, count, generate, generate_and, make_project, promote_label_order, write_prompts
from tests.support.interrupted import kill
from tests.support.trial_maker import logging_text

PROMPTS = 120


@pytest.fixture
def job(tmp_path: Path) -> Job:
    project = make_project(tmp_path / "p", PROMPTS, step_ms=1)
    promote_label_order(project)
    return project.model_copy(update={"reporting": project.reporting.model_copy(update={"price_per_hour": 3.6})})


def tolerant(job: Job) -> Job:
    return job.model_copy(update={"generate": job.generate.model_copy(update={"tolerated_failures": 1.0})})


def block_records(job: Job) -> None:
    """A file where the folder of the runs belongs."""
    verb_folder(job, "generate").parent.mkdir(parents=True)
    verb_folder(job, "generate").write_text("in the way")


def test_a_run_is_recorded_with_the_figures_of_its_work(job: Job) -> None:
    run = generate(job)
    assert count(run, "prompts", "generated", "resumed", "failed") == (PROMPTS, PROMPTS, 0, 0)
    assert count(run, "output_tokens", "preempted", "inversions") == (PROMPTS * 8, 0, 0)
    wall_s, median_ms, p95_ms, running = (
        run.figure(name) for name in ("wall_s", "time_per_batch_ms", "time_per_batch_p95_ms", "running_mean")
    )
    assert wall_s
    assert median_ms
    assert p95_ms
    assert running
    assert run.figure("throughput_tok_s") == pytest.approx(PROMPTS * 8 / wall_s)
    assert run.figure("cost_per_1k_requests") == pytest.approx(1000 * 3.6 / 3600 * wall_s / PROMPTS)
    assert 1 <= median_ms <= p95_ms
    assert 0 < running <= 16
    assert run.figure("imbalance") is None, "a single engine has none"
    assert (run.job, run.verb, run.answer, run.exit_code) == ("it", "generate", "complete", 0)
    assert run.details["outputs_md5"] == md5_of(job.root / run.files["outputs"])


def test_a_run_says_what_it_rests_on(job: Job) -> None:
    basis = generate(job).basis
    assert (basis.prompts, basis.dataset_md5, basis.prompts_total) == (job.prompts, md5_of(job.prompts_path), PROMPTS)
    assert basis.model_fingerprint == read_model(job.model_path, job.model).fingerprint
    assert basis.order is not None
    assert (basis.order.method, TRIAL in basis.order_reason) == ("label", True)
    assert basis.engine["args"] == job.engine.args
    assert (basis.sampling, basis.versions["vllm"], basis.lossy_k0) == (job.sampling, "stand-in", None)


def test_a_record_is_in_a_folder_of_its_run_and_comes_back_as_it_was(job: Job) -> None:
    runs = {run.id: run for run in (generate(job), generate(job))}
    assert {run.id: run for run in read_runs(job, "generate")} == runs
    assert len(runs) == 2


@pytest.mark.usefixtures("no_tracker")
def test_a_record_that_cannot_be_written_says_where_the_outputs_are(job: Job) -> None:
    block_records(job)
    with pytest.raises(RunError, match=f"{RECORD_FILE} cannot be written") as refused:
        generate(job)
    assert "outputs.parquet" in str(refused.value)


def test_figures_are_of_what_was_generated_and_not_of_what_was_refused(job: Job) -> None:
    write_prompts(job, ["x" * (200 if k % 3 else 5) for k in range(PROMPTS)])  # two of three do not fit
    run, answered = generate(tolerant(job)), PROMPTS // 3
    wall_s = run.figure("wall_s") or 0
    assert count(run, "prompts", "generated", "failed") == (PROMPTS, answered, PROMPTS - answered)
    assert count(run, "prompt_tokens", "output_tokens") == (5 * answered, 8 * answered)
    assert run.figure("throughput_req_s") == pytest.approx(answered / wall_s)
    assert run.figure("cost_per_1k_requests") == pytest.approx(1000 * 3.6 / 3600 * wall_s / answered)


def test_some_failures_are_named_and_the_others_counted(job: Job) -> None:
    write_prompts(job, ["x" * (200 if k < 7 else 5) for k in range(20)])
    closed = generate(tolerant(job))
    assert "maximum" not in closed.model_dump_json()
    assert closed.details["failure_kinds"] == {"refused": 7}
    assert closed.lines[-1] == "failed: 7 refused: the column `error` of data/it/outputs.parquet has the reasons"
    run = generate(logging_text(tolerant(job)))
    failures = run.details["failures"]
    assert isinstance(failures, list)
    assert [failure[0] for failure in failures if isinstance(failure, list)] == [f"p{k}" for k in range(5)]
    assert [line for line in run.lines if line.startswith("failed: ")][-1] == "failed: and 2 more"


def test_where_every_prompt_was_refused_there_is_no_rate(job: Job) -> None:
    write_prompts(job, ["x" * 200] * 3)
    run = generate(tolerant(job))
    assert count(run, "generated", "failed") == (0, 3)
    assert (run.figure("throughput_req_s"), run.figure("cost_per_1k_requests")) == (None, None)


def test_a_run_on_replicas_says_how_evenly_they_ended(tmp_path: Path) -> None:
    run = generate(make_project(tmp_path / "r", PROMPTS, step_ms=1, replicas=2))
    walls = run.details["replica_wall_s"]
    assert isinstance(walls, list)
    each_s = [float(str(wall)) for wall in walls]
    assert (run.details["replicas"], len(each_s), count(run, "generated")) == (2, 2, (PROMPTS,))
    assert run.figure("wall_s") == max(each_s)
    imbalance, running = run.figure("imbalance"), run.figure("running_mean")
    assert imbalance == pytest.approx(max(each_s) / (sum(each_s) / 2))
    assert f"on 2 replicas, the slowest took {imbalance:.2f} times their mean" in run.sentence
    assert running is not None
    assert running > 16, "of both replicas together"


def test_a_generation_is_resumed_with_another_number_of_replicas(tmp_path: Path) -> None:
    job = make_project(tmp_path / "r", PROMPTS, step_ms=1, replicas=3)
    with pytest.raises(EngineError, match="replica 2 of 3"):
        generate_and(job, lambda engine: kill(engine.engines[1]), after=40)
    run = generate(job.model_copy(update={"engine": job.engine.model_copy(update={"replicas": 1})}))
    resumed, generated = count(run, "resumed", "generated")
    assert (resumed >= 40, resumed + generated) == (True, PROMPTS)
    assert (run.details["replicas"], run.figure("imbalance")) == (1, None)


def test_a_resumed_run_has_the_figures_of_its_own_part(job: Job) -> None:
    with pytest.raises(EngineError) as died:
        generate_and(job, kill, after=40)
    assert died.value.words[0].startswith("without an answer then, in the order of sending: 'p")
    assert died.value.words[0].endswith(" more")
    resumed, generated, tokens = count(generate(job), "resumed", "generated", "output_tokens")
    assert resumed >= 40
    assert (generated, tokens) == (PROMPTS - resumed, 8 * generated)


@pytest.mark.usefixtures("no_tracker")
def test_a_run_that_found_everything_generated_starts_no_engine_and_has_no_rate(job: Job) -> None:
    block_records(job)
    with pytest.raises(RunError, match="cannot be written"):
        generate(job)
    verb_folder(job, "generate").unlink()
    (job.root / ".orderproof" / "logs" / "it.log").unlink()
    run = generate(job)
    assert count(run, "resumed", "generated", "load_s") == (PROMPTS, 0, 0)
    assert (run.figure("throughput_req_s"), run.basis.versions) == (None, {})
    assert not (job.root / ".orderproof" / "logs" / "it.log").exists()


def test_a_picture_shows_the_steps_and_nothing_is_drawn_of_none(job: Job, tmp_path: Path) -> None:
    run = generate(job)
    draw_generation(run, tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    draw_generation(run.model_copy(update={"details": {**run.details, "curve": []}}), tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()
