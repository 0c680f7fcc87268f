"""Where a job stands, and what is absent or broken, in words."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orderproof.job.hashing import md5_of
from orderproof.job.spec import Job
from orderproof.measure.evaluate import judge
from orderproof.measure.outcome import TOY
from orderproof.measure.trial_store import Trial, write_verdict
from orderproof.measure.verdict import Rule, refused
from orderproof.orders.order import Order
from orderproof.runs.promotion import demote, keep_current, promote
from orderproof.status.status import job_status
from orderproof.status.text import status_lines
from tests.support.trial_maker import LABELS, make_job, make_trial

PROMPTS = 48
FIRST, SECOND = "20261129T144640Z-3f9a", "20261130T144640Z-77aa"
KEYS = {"schema", "job", "prompts", "model", "order", "stale", "lossy_k0", "verdict", "toy", "trials", "attempts",
        "alpha_left", "checkpoint", "underway", "last_run", "reproduction", "incomplete", "problems"}  # fmt: skip


@dataclass(frozen=True)
class Project:
    """A job whose prompts and model are there."""

    job: Job
    ids: list[str]

    def order(self) -> Order:
        """The candidate of the synthetic trials, over this job's prompts."""
        grouped = np.argsort(np.arange(PROMPTS) % len(LABELS), kind="stable")
        return Order(grouped, "label", {}, {}, md5_of(self.job.prompts_path))

    def trial(self, name: str = FIRST, *, judged: bool = True, **how: Any) -> Trial:
        order = self.order()
        how = {"candidate": order.record(), "dataset_md5": order.dataset_md5, **how}
        trial = make_trial(self.job.reports_dir / name, prompts=PROMPTS, **how)
        if judged:
            verdict = judge(trial)
            assert verdict is not None
            write_verdict(trial, verdict)
        return trial

    def promoted(self) -> Trial:
        trial = self.trial()
        verdict = judge(trial)
        assert verdict is not None
        promote(self.job, trial, verdict, self.order(), self.ids)
        return trial

    def status(self) -> dict[str, Any]:
        """As a machine reads it: what JSON cannot hold does not come back."""
        told = job_status(self.job)
        back: dict[str, Any] = json.loads(json.dumps(told, allow_nan=False))
        assert back == told
        assert set(told) == KEYS
        return told


@pytest.fixture
def project(tmp_path: Path) -> Project:
    job = make_job(tmp_path)
    ids = [f"p{i:05d}" for i in range(PROMPTS)]
    job.prompts_path.parent.mkdir(parents=True)
    job.prompts_path.write_text("".join(json.dumps({"id": i, "text": "x"}) + "\n" for i in ids))
    job.model_path.mkdir(parents=True)
    (job.model_path / "config.json").write_text("{}")
    return Project(job, ids)


def block(told: dict[str, Any]) -> str:
    return "\n".join(status_lines([told]))


# -- what is told ------------------------------------------------------------------------------------------------------


def test_a_job_that_was_never_measured_says_so(project: Project) -> None:
    told = project.status()
    assert (told["order"], told["verdict"], told["trials"], told["attempts"]) == (None, None, 0, 0)
    assert (told["stale"], told["incomplete"], told["problems"]) == (False, [], [])
    assert told["alpha_left"] == project.job.measure.alpha
    assert "none was ever promoted" in block(told)
    assert "orderproof measure six-domains" in block(told)


def test_a_promoted_order_is_told_with_its_trial_and_gain(project: Project) -> None:
    trial = project.promoted()
    verdict = judge(trial)
    assert verdict is not None
    told = project.status()
    order = told["order"]
    assert (order["method"], order["promoted"], order["trial"]) == ("label", True, FIRST)
    assert (order["gain"], order["gain_low"], order["gain_high"]) == (verdict.gain, verdict.gain_low, verdict.gain_high)
    assert told["stale"] is False
    assert f"the label order, promoted {order['since']} by trial {FIRST} with {verdict.gain:+.1%}" in block(told)


def test_the_last_verdict_is_told_with_its_trial_and_when_that_ended(project: Project) -> None:
    project.trial(FIRST)
    trial = project.trial(SECOND, gain=0.0, seed=1)
    verdict, last = judge(trial), trial.passes[-1]
    assert verdict is not None
    told = project.status()["verdict"]
    assert (told["verdict"], told["reason"], told["blocks"]) == (verdict.verdict, verdict.reason, 5)
    assert told["trial"] == SECOND
    assert told["when"] > last.started_utc[:19]
    assert told["when"].endswith("+00:00")


def test_a_verdict_keeps_its_time_whatever_a_checkout_does_to_the_file(project: Project) -> None:
    project.trial()
    before = project.status()["verdict"]["when"]
    (project.job.reports_dir / "verdict.json").touch()
    assert project.status()["verdict"]["when"] == before


def test_a_refusal_has_no_trial(project: Project) -> None:
    project.job.reports_dir.mkdir(parents=True)
    (project.job.reports_dir / "verdict.json").write_text(
        refused("a dense model", Rule()).model_dump_json(indent=1) + "\n"
    )
    told = project.status()
    assert (told["verdict"]["verdict"], told["verdict"]["trial"], told["verdict"]["gain"]) == ("refused", None, None)
    assert "refused without a trial" in block(told)
    assert told["verdict"]["reason"] in block(told)


def test_attempts_at_the_newest_question_are_counted_and_halve_what_is_left_of_alpha(project: Project) -> None:
    project.trial("20261101T000000Z-0001", question="another")
    project.trial(FIRST, question="this")
    project.trial(SECOND, question="this", seed=1)
    told = project.status()
    assert (told["trials"], told["attempts"], told["alpha_left"]) == (3, 2, 0.025 / 4)


def test_a_trial_that_came_to_no_whole_block_is_no_attempt(project: Project) -> None:
    project.trial(judged=False, blocks=0)
    told = project.status()
    assert (told["trials"], told["attempts"], told["alpha_left"]) == (1, 0, 0.025)


def test_a_trial_that_was_stopped_is_told_and_counts_as_an_attempt(project: Project) -> None:
    project.trial(judged=False, blocks=3)
    told = project.status()
    assert (told["incomplete"], told["attempts"], told["verdict"]) == ([FIRST], 1, None)
    assert f"{FIRST}: stopped, or being measured now" in block(told)


def test_a_toys_gain_is_told_to_be_nobodys(project: Project) -> None:
    project.promoted()
    told = project.status()
    assert told["toy"] is True
    assert TOY in block(told)
    assert "toy model" in status_lines([told, told])[1]


def test_the_gain_of_a_real_model_stands_as_it_is(project: Project) -> None:
    model = {"path": "m", "fingerprint": "f", "architecture": "Qwen3MoeForCausalLM", "toy": False}
    project.trial(model=model)
    assert project.status()["toy"] is False
    assert "toy" not in block(project.status())


def test_placebos_are_not_the_jobs_trials(project: Project) -> None:
    make_trial(project.job.root / "reports" / "placebo" / "six-domains" / FIRST, placebo=True)
    assert project.status()["trials"] == 0


def test_a_demotion_is_told(project: Project) -> None:
    project.promoted()
    demote(project.job, project.ids, "a new model")
    told = project.status()
    assert (told["order"]["method"], told["order"]["promoted"], told["order"]["gain"]) == ("file", False, None)
    assert told["order"]["demoted"] is not None
    assert f"the file's own order, since {told['order']['demoted']}" in block(told)


def test_a_kept_order_is_the_files_own(project: Project) -> None:
    keep_current(project.job, md5_of(project.job.prompts_path), project.ids)
    told = project.status()
    assert (told["order"]["method"], told["order"]["promoted"]) == ("file", False)
    assert "runs in       the file's own order\n" in block(told)


# -- what is absent or broken ------------------------------------------------------------------------------------------


def test_an_order_of_another_version_of_the_prompts_is_stale(project: Project) -> None:
    project.promoted()
    with open(project.job.prompts_path, "a") as prompts:
        prompts.write('{"id": "late", "text": "x"}\n')
    told = project.status()
    assert told["stale"] is True
    assert "another version of the prompts" in block(told)


def test_without_the_prompts_nobody_can_tell_whether_the_order_fits(project: Project) -> None:
    project.promoted()
    project.job.prompts_path.unlink()
    told = project.status()
    assert told["stale"] is None
    assert told["problems"] == ["prompts: data/six-domains/prompts.jsonl is not there"]


def test_a_job_of_which_nothing_is_there_is_told_in_words(tmp_path: Path) -> None:
    told = job_status(make_job(tmp_path / "nowhere"))
    assert [problem.split(":")[0] for problem in told["problems"]] == ["prompts", "model"]


BROKEN = [b"", b"{", b"null", b"[]", b'{"verdict": "promote"}', b"\xff\xfe\x00"]


@pytest.mark.parametrize("content", BROKEN)
def test_a_broken_verdict_is_named_and_the_rest_stands(project: Project, content: bytes) -> None:
    project.promoted()
    (project.job.reports_dir / "verdict.json").write_bytes(content)
    told = project.status()
    assert told["verdict"] is None
    assert told["order"]["promoted"]
    assert len(told["problems"]) == 1
    assert "verdict.json cannot be read" in told["problems"][0]


@pytest.mark.parametrize("content", BROKEN)
def test_a_broken_record_is_named_and_the_rest_stands(project: Project, content: bytes) -> None:
    project.promoted()
    (project.job.data_dir / "order.json").write_bytes(content)
    told = project.status()
    assert told["order"] is None
    assert told["verdict"]["verdict"] == "promote"
    assert len(told["problems"]) == 1
    assert "order.json" in told["problems"][0]


@pytest.mark.parametrize("missing", ["order.json", "order.parquet"])
def test_half_of_an_order_is_named(project: Project, missing: str) -> None:
    project.promoted()
    (project.job.data_dir / missing).unlink()
    told = project.status()
    assert told["order"] is None
    assert "are not a pair" in told["problems"][0]


@pytest.mark.parametrize("content", BROKEN)
@pytest.mark.parametrize("name", ["manifest.json", "passes.jsonl"])
def test_a_broken_trial_is_named_and_the_others_stand(project: Project, name: str, content: bytes) -> None:
    project.trial(FIRST)
    project.trial(SECOND, seed=1)
    (project.job.reports_dir / FIRST / name).write_bytes((content or b"{") + b"\n")
    told = project.status()
    assert told["trials"] == 1
    assert told["verdict"]["trial"] == SECOND
    assert told["problems"][0].startswith(f"trial {FIRST}: ")
    assert all("\n" not in problem for problem in told["problems"])


def test_folders_where_files_should_be_are_told(project: Project) -> None:
    project.trial()
    for path in (project.job.reports_dir / "verdict.json", project.job.data_dir / "order.json"):
        path.unlink(missing_ok=True)
        path.mkdir(parents=True)
    (project.job.data_dir / "order.parquet").write_bytes(b"")
    assert len(project.status()["problems"]) == 2


# -- as lines ----------------------------------------------------------------------------------------------------------


def test_several_jobs_are_one_aligned_line_each(project: Project) -> None:
    project.promoted()
    absent = job_status(make_job(project.job.root, "one-domain", prompts="none.jsonl"))
    heading, first, second = status_lines([project.status(), absent])
    for name in ("RUNS IN", "LAST VERDICT", "TRIALS"):
        at = heading.index(name)
        assert first[at - 1] == " "
        assert first[at] != " "
    assert "label (promoted)" in first
    assert "promote" in first
    assert "not measured" in second
    assert "prompts broken or missing" in second


def test_a_table_of_short_lines_has_no_spaces_at_their_ends(project: Project) -> None:
    lines = status_lines([project.status(), project.status()])
    assert lines == [line.rstrip() for line in lines]


def test_status_imports_nothing_heavy() -> None:
    script = "import sys, orderproof.status.status; print(*sys.modules)"
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"mlflow", "prefect", "torch", "sklearn", "great_expectations", "matplotlib", "pandas"} & set(told)
