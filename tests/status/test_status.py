"""A job's status: what is on disk, and what is missing or broken, in words."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orderproof.generate.windowed_ordering import STREAMED_FILE
from orderproof.job.hashing import md5_of
from orderproof.job.params import load_job
from orderproof.job.spec import Job
from orderproof.measure.promote import evidence_of
from orderproof.measure.record import refused_run, trial_run
from orderproof.measure.trial_store import Trial
from orderproof.measure.verdict import Verdict, refused
from orderproof.runs.promotion import demote, keep_current, write_promotion
from orderproof.runs.promotion_record import Evidence
from orderproof.runs.run import Run
from orderproof.runs.run_store import RECORD_FILE, run_folder, write_run
from orderproof.runs.sent import mark_sent
from orderproof.status.status import JobStatus, read_status
from tests.support.measured_job import FIRST, SECOND, MeasuredJob, edit_prompts, make_measured_job, verdict_of
from tests.support.run_maker import make_basis, make_job_run
from tests.support.trial_maker import make_job, make_trial, trial_folder

KEYS = {
    "schema_version", "job", "prompts", "model", "order", "lossy_k0", "runs", "trials", "attempts", "alpha_left", "toy",
    "checkpoint", "active", "streamed", "savings", "incomplete", "problems",
}  # fmt: skip


@dataclass(frozen=True)
class Project:
    """A job whose prompts and model are there."""

    made: MeasuredJob

    @property
    def job(self) -> Job:
        return self.made.job

    @property
    def ids(self) -> list[str]:
        return self.made.plan.prompts.ids

    def measure(self, name: str = FIRST, **fields: Any) -> tuple[Trial, Verdict, Run]:
        """A trial with its verdict on record."""
        trial = self.made.trial(name, **fields)
        verdict = verdict_of(trial)
        run = trial_run(self.made.plan, trial, verdict)
        write_run(self.job, run)
        return trial, verdict, run

    def promote(self) -> Verdict:
        """The same, and its order is promoted."""
        trial, verdict, _ = self.measure()
        write_promotion(self.job, self.made.plan.chosen, self.ids, evidence_of(trial, verdict))
        return verdict

    def status(self) -> JobStatus:
        """As a machine reads it: JSON holds everything."""
        status = read_status(self.job)
        written = json.loads(json.dumps(status.model_dump(mode="json"), allow_nan=False))
        assert JobStatus.model_validate(written) == status
        assert set(written) == KEYS
        return status


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(make_measured_job(tmp_path))


# -- what is there -----------------------------------------------------------------------------------------------------


def test_a_job_that_was_never_measured_has_all_of_alpha(project: Project) -> None:
    status = project.status()
    assert (status.order, status.runs, status.trials, status.attempts) == (None, {}, 0, 0)
    assert (status.incomplete, status.problems) == ([], [])
    assert status.alpha_left == project.job.measure.alpha


def test_a_promoted_order_has_its_trial_and_gain(project: Project) -> None:
    verdict = project.promote()
    order = project.status().order
    assert order is not None
    assert (order.method, order.promoted, order.trial, order.stale) == ("label", True, FIRST, False)
    assert (order.gain, order.gain_low, order.gain_high) == (verdict.gain, verdict.gain_low, verdict.gain_high)


def test_the_last_verdict_has_its_trial_and_when_that_ended(project: Project) -> None:
    project.measure(FIRST)
    trial, verdict, run = project.measure(SECOND, gain=0.0, seed=1)
    last = project.status().runs["measure"]
    assert (last.id, last.answer, last.reason) == (SECOND, verdict.verdict, verdict.reason)
    assert (last.figures["blocks"], last.figures["gain"]) == (5, verdict.gain)
    assert last.ended == run.ended_utc
    assert last.ended > trial.passes[-1].started_utc[:19]
    assert last.ended.endswith("+00:00")


def test_a_verdict_keeps_its_time_whatever_a_checkout_does_to_the_file(project: Project) -> None:
    project.measure()
    before = project.status().runs["measure"].ended
    (trial_folder(project.job, FIRST) / RECORD_FILE).touch()
    assert project.status().runs["measure"].ended == before


def test_a_refusal_is_the_newest_verdict_and_no_trial(project: Project) -> None:
    project.measure()
    run = refused_run(project.job, project.made.inputs, refused("a dense model"))
    write_run(project.job, run)
    status = project.status()
    assert (status.runs["measure"].answer, status.runs["measure"].figures["gain"]) == ("refused", None)
    assert "dense" in status.runs["measure"].reason
    assert status.trials == 1


def test_the_newest_run_of_each_verb_is_there(project: Project) -> None:
    for verb, answer in (("generate", "complete"), ("reproduce", "reproduced"), ("plan", "measure")):
        write_run(project.job, make_job_run(project.job, FIRST, verb, answer="earlier"))
        write_run(project.job, make_job_run(project.job, SECOND, verb, answer=answer))
    runs = project.status().runs
    assert {verb: (run.id, run.answer) for verb, run in runs.items()} == {
        "generate": (SECOND, "complete"),
        "reproduce": (SECOND, "reproduced"),
        "plan": (SECOND, "measure"),
    }


def test_a_run_of_other_prompts_is_not_current(project: Project) -> None:
    own = make_basis(project.job, dataset_md5=md5_of(project.job.prompts_path))
    write_run(project.job, make_job_run(project.job, basis=own))
    assert project.status().runs["generate"].current is True
    edit_prompts(project.job)
    assert project.status().runs["generate"].current is False
    project.job.prompts_path.unlink()
    assert project.status().runs["generate"].current is None


def test_a_run_that_mlflow_has_is_sent(project: Project) -> None:
    run = make_job_run(project.job)
    write_run(project.job, run)
    assert project.status().runs["generate"].sent is False
    mark_sent(project.job, run, "abc")
    assert project.status().runs["generate"].sent is True


def test_outputs_of_a_stream_are_told_from_those_of_the_jobs_own_prompts(project: Project) -> None:
    streamed = project.job.data_dir / STREAMED_FILE
    streamed.parent.mkdir(parents=True, exist_ok=True)
    streamed.write_text('{"id": "a", "text": "x"}\n')
    write_run(project.job, make_job_run(project.job, FIRST, basis=make_basis(project.job)))
    assert project.status().streamed is False
    of_stream = make_basis(project.job, dataset_md5=md5_of(streamed))
    write_run(project.job, make_job_run(project.job, SECOND, basis=of_stream))
    assert project.status().streamed is True


def test_attempts_at_the_newest_question_halve_what_is_left_of_alpha(project: Project) -> None:
    project.measure("20261101T000000Z-0001", question="another")
    project.measure(FIRST, question="the same")
    project.measure(SECOND, question="the same", seed=1)
    status = project.status()
    assert (status.trials, status.attempts, status.alpha_left) == (3, 2, 0.025 / 4)


def test_a_trial_without_a_whole_block_is_no_attempt(project: Project) -> None:
    project.made.trial(blocks=0)
    status = project.status()
    assert (status.trials, status.attempts, status.alpha_left) == (1, 0, 0.025)


def test_a_trial_that_was_stopped_is_incomplete_and_counts_as_an_attempt(project: Project) -> None:
    project.made.trial(blocks=3)
    status = project.status()
    assert (status.incomplete, status.attempts, status.runs) == ([FIRST], 1, {})


@pytest.mark.parametrize("toy", [True, False])
def test_whether_the_newest_trial_was_of_a_toy_model_is_known(project: Project, toy: bool) -> None:
    model = {"path": "m", "fingerprint": "f", "architecture": "Qwen3MoeForCausalLM", "toy": toy}
    project.measure(model=model)
    assert project.status().toy is toy


def test_aa_tests_are_not_the_jobs_trials(project: Project) -> None:
    make_trial(trial_folder(project.job, FIRST, "aa"), aa=True)
    assert project.status().trials == 0


def test_a_demotion_has_its_time(project: Project) -> None:
    project.promote()
    demote(project.job, project.ids, "a new model")
    order = project.status().order
    assert order is not None
    assert (order.method, order.promoted, order.gain) == ("file", False, None)
    assert order.demoted is not None


def test_a_kept_order_is_the_files_own(project: Project) -> None:
    keep_current(project.job, md5_of(project.job.prompts_path), project.ids, Evidence())
    order = project.status().order
    assert order is not None
    assert (order.method, order.promoted) == ("file", False)


def test_an_accepted_lossy_routing_is_there(project: Project) -> None:
    assert project.status().lossy_k0 is None
    accepted = {"prompts": "prompts.jsonl", "model": "model", "accept_lossy": {"k0": 2}}
    params = {"defaults": {"engine": {"args": {"max_num_seqs": 8}}}, "jobs": {project.job.name: accepted}}
    path = project.job.root / "params.yaml"
    path.write_text(json.dumps(params))  # JSON is YAML
    assert read_status(load_job(path, project.job.name)).lossy_k0 == 2


# -- what is missing or broken -----------------------------------------------------------------------------------------


def test_an_order_of_another_version_of_the_prompts_is_stale(project: Project) -> None:
    project.promote()
    edit_prompts(project.job)
    order = project.status().order
    assert order is not None
    assert order.stale is True


def test_without_the_prompts_it_is_unknown_whether_the_order_fits(project: Project) -> None:
    project.promote()
    project.job.prompts_path.unlink()
    status = project.status()
    assert status.order is not None
    assert status.order.stale is None
    assert [problem.split(":")[0] for problem in status.problems] == ["prompts"]
    assert project.job.prompts in status.problems[0]


def test_a_job_without_files_names_each_that_is_missing(tmp_path: Path) -> None:
    status = read_status(make_job(tmp_path / "nowhere"))
    assert [problem.split(":")[0] for problem in status.problems] == ["prompts", "model"]


BROKEN = [b"", b"{", b"null", b"[]", b'{"answer": "promote"}', b"\xff\xfe\x00"]


@pytest.mark.parametrize("content", BROKEN)
@pytest.mark.parametrize("verb", ["measure", "generate"])
def test_a_broken_record_of_a_run_is_named_and_the_rest_is_still_read(
    project: Project, verb: Any, content: bytes
) -> None:
    project.promote()
    folder = run_folder(project.job, verb, SECOND)
    folder.mkdir(parents=True)
    (folder / RECORD_FILE).write_bytes(content)
    status = project.status()
    assert verb not in status.runs
    assert status.order is not None
    assert status.order.promoted
    (problem,) = status.problems
    assert problem.startswith(f"last {verb}: ")
    assert str(folder / RECORD_FILE) in problem


@pytest.mark.parametrize("content", BROKEN)
def test_a_broken_record_of_the_order_is_named_and_the_rest_is_still_read(project: Project, content: bytes) -> None:
    project.promote()
    (project.job.data_dir / "order.json").write_bytes(content)
    status = project.status()
    assert status.order is None
    assert status.runs["measure"].answer == "promote"
    (problem,) = status.problems
    assert "order.json" in problem


@pytest.mark.parametrize("missing", ["order.json", "order.parquet"])
def test_half_of_an_order_is_named(project: Project, missing: str) -> None:
    project.promote()
    (project.job.data_dir / missing).unlink()
    status = project.status()
    assert status.order is None
    (problem,) = status.problems
    assert problem.startswith("order: ")
    assert "dvc checkout" in problem


@pytest.mark.parametrize("content", BROKEN)
@pytest.mark.parametrize("name", ["manifest.json", "passes.jsonl"])
def test_a_broken_trial_is_named_and_the_others_are_still_read(project: Project, name: str, content: bytes) -> None:
    project.measure(FIRST)
    project.measure(SECOND, seed=1)
    (trial_folder(project.job, FIRST) / name).write_bytes((content or b"{") + b"\n")
    status = project.status()
    assert status.trials == 1
    assert status.runs["measure"].id == SECOND
    assert status.problems[0].startswith(f"trial {FIRST}: ")
    assert all("\n" not in problem for problem in status.problems)


def test_a_broken_reproduction_is_named(project: Project) -> None:
    project.job.data_dir.mkdir(parents=True, exist_ok=True)
    (project.job.data_dir / "reproduced.json").write_text("{}")
    (problem,) = project.status().problems
    assert problem.startswith("reproduction: ")


def test_folders_in_the_places_of_files_are_named(project: Project) -> None:
    project.measure()
    for path in (trial_folder(project.job, FIRST) / RECORD_FILE, project.job.data_dir / "order.json"):
        path.unlink(missing_ok=True)
        path.mkdir(parents=True)
    (project.job.data_dir / "order.parquet").write_bytes(b"")
    assert len(project.status().problems) == 2


def test_status_imports_nothing_heavy() -> None:
    script = "import sys, orderproof.status.status, orderproof.status.text; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"mlflow", "prefect", "torch", "sklearn", "great_expectations", "matplotlib", "pandas"} & set(modules)


def test_a_lock_with_conflict_markers_is_a_problem(project: Project) -> None:
    (project.job.root / "dvc.lock").write_text("<<<<<<< HEAD\n=======\n>>>>>>> theirs\n")
    assert any("conflict markers" in problem for problem in read_status(project.job).problems)
