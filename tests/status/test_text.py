"""A job's status in words: a line in the table of all jobs, and the block of one."""

from __future__ import annotations

from typing import Any

import pytest

from orderproof.runs.run import TOY
from orderproof.status.status import ActiveStatus, CheckpointStatus, JobStatus, OrderStatus, RunStatus
from orderproof.status.text import status_block, status_table

NOON = "2026-11-29T12:00:00+00:00"
TRIAL = "20261129T144640Z-3f9a"


def make_status(**changes: Any) -> JobStatus:
    """The status of a job that was never run; `changes` replace whole fields."""
    fields: dict[str, Any] = {
        "job": "it",
        "prompts": "data/it/prompts.jsonl",
        "model": "models/m",
        "order": None,
        "lossy_k0": None,
        "runs": {},
        "trials": 0,
        "attempts": 0,
        "alpha_left": 0.025,
        "toy": False,
        "checkpoint": None,
        "active": None,
        "streamed": False,
        "savings": None,
        "incomplete": [],
        "problems": [],
    }
    return JobStatus(**{**fields, **changes})


def make_order(**changes: Any) -> OrderStatus:
    """A promoted label order; `changes` replace whole fields."""
    fields: dict[str, Any] = {
        "method": "label",
        "promoted": True,
        "trial": TRIAL,
        "gain": 0.063,
        "gain_low": 0.05,
        "gain_high": 0.075,
        "since": NOON,
        "demoted": None,
        "stale": False,
    }
    return OrderStatus(**{**fields, **changes})


def make_run(**changes: Any) -> RunStatus:
    """A verdict; `changes` replace whole fields."""
    fields: dict[str, Any] = {
        "id": TRIAL,
        "ended": NOON,
        "answer": "promote",
        "sentence": "it: promote, gain +6.3%",
        "reason": "The whole interval is above zero.",
        "figures": {"gain": 0.063, "gain_low": 0.05, "gain_high": 0.075},
        "current": True,
        "sent": True,
    }
    return RunStatus(**{**fields, **changes})


def facts(status: JobStatus) -> dict[str, str]:
    """The block's lines by their labels; lines without a label belong to the one above."""
    found: dict[str, str] = {}
    label = ""
    for line in status_block(status)[1:]:
        label = line[2:16].strip() or label
        found[label] = " ".join(filter(None, [found.get(label, ""), line[16:].strip()]))
    return found


# -- the block of one job ----------------------------------------------------------------------------------------------


def test_a_job_that_was_never_measured_names_the_command() -> None:
    block = facts(make_status())
    assert status_block(make_status())[0] == "it"
    assert "never" in block["runs in"] or "none" in block["runs in"]
    assert "`orderproof measure it`" in block["last verdict"]


def test_a_promoted_order_has_its_time_trial_and_gain() -> None:
    text = facts(make_status(order=make_order()))["runs in"]
    assert [part for part in ("label", NOON, TRIAL, "+6.3%", "+5.0%", "+7.5%") if part not in text] == []


def test_a_demotion_has_its_time() -> None:
    text = facts(make_status(order=make_order(method="file", promoted=False, gain=None, demoted=NOON)))["runs in"]
    assert "file" in text
    assert NOON in text


def test_an_order_of_other_prompts_is_not_the_one_in_use() -> None:
    text = facts(make_status(order=make_order(stale=True)))["runs in"]
    assert text.startswith("the file's own order")
    assert "another version" in text


def test_a_verdict_has_its_sentence_time_and_reason() -> None:
    text = facts(make_status(runs={"measure": make_run()}))["last verdict"]
    assert [part for part in ("promote, gain +6.3%", NOON, "above zero") if part not in text] == []


def test_the_gain_of_a_toy_model_is_marked_in_block_and_table() -> None:
    toy, real = (make_status(runs={"measure": make_run()}, toy=toy) for toy in (True, False))
    assert any(TOY in line for line in status_block(toy))
    assert not any("toy" in line for line in status_block(real))
    assert "toy model" in status_table([toy])[-1]


def test_attempts_and_what_is_left_of_alpha_are_there() -> None:
    block = facts(make_status(trials=3, attempts=2, alpha_left=0.00625))
    assert block["trials"].startswith("3; 2 ")
    assert block["alpha left"].startswith("0.00625 ")


def test_a_lossy_routing_says_so_first() -> None:
    assert facts(make_status(lossy_k0=2))["routing"].startswith("LOSSY")
    assert "routing" not in facts(make_status())
    assert "LOSSY" in status_table([make_status(lossy_k0=2)])[-1]


def test_the_other_verbs_have_their_last_runs() -> None:
    runs = {
        verb: make_run(sentence=f"it: {verb} done") for verb in ("generate", "reproduce", "plan", "capture", "lossy")
    }
    block = facts(make_status(runs=runs))
    assert [verb for verb in runs if f"it: {verb} done" not in block[f"last {verb}"]] == []


def test_a_run_of_other_prompts_names_the_command_and_one_of_a_stream_its_file() -> None:
    runs = {"generate": make_run(current=False)}
    assert "`orderproof generate it`" in facts(make_status(runs=runs))["last generate"]
    streamed = facts(make_status(runs=runs, streamed=True))["last generate"]
    assert "data/it/streamed.jsonl" in streamed
    assert "`orderproof generate it`" not in streamed


def test_runs_that_mlflow_lacks_name_the_command_once() -> None:
    runs = {"generate": make_run(sent=False), "plan": make_run(sent=False)}
    assert "\n".join(status_block(make_status(runs=runs))).count("`orderproof log it`") == 1
    assert "orderproof log" not in "\n".join(status_block(make_status(runs={"plan": make_run()})))


def test_an_unfinished_generation_names_the_command_that_resumes_it() -> None:
    text = facts(make_status(checkpoint=CheckpointStatus(results=12, prompts=40, when=NOON)))["checkpoint"]
    assert [part for part in ("12 of 40", NOON, "`orderproof generate it`") if part not in text] == []


def test_a_generation_at_work_has_its_rate_and_is_not_to_be_started_again() -> None:
    active = ActiveStatus(
        who="process 7 on host", since=NOON, run="r", prompts=40, done=12, rate_req_s=1.5, seconds_left=120
    )
    checkpoint = CheckpointStatus(results=12, prompts=40, when=NOON)
    block = facts(make_status(active=active, checkpoint=checkpoint))
    parts = ("process 7 on host", "12 of 40", "1.50 req/s", "2 min")
    assert [part for part in parts if part not in block["active now"]] == []
    assert "orderproof generate" not in block["checkpoint"]
    stream = active.model_copy(update={"prompts": None, "seconds_left": None})
    assert "12 prompts" in facts(make_status(active=stream))["active now"]
    idle = ActiveStatus(who="process 7 on host", since=NOON)
    assert "req/s" not in facts(make_status(active=idle))["active now"]


def test_incomplete_trials_and_problems_have_a_line_each() -> None:
    status = make_status(incomplete=["one", "two"], problems=["prompts: p is missing", "order: torn"])
    labels = [line[2:16].strip() for line in status_block(status)]
    assert (labels.count("no verdict"), labels.count("problem")) == (2, 2)


# -- the table of all jobs ---------------------------------------------------------------------------------------------


def test_several_jobs_are_an_aligned_line_each() -> None:
    measured = make_status(order=make_order(), runs={"measure": make_run()}, trials=1)
    absent = make_status(job="one-domain", problems=["prompts: none.jsonl is missing"])
    heading, *rows = status_table([measured, absent])
    first, second = rows[-2:]
    for name in ("runs in", "last verdict", "trials"):
        at = heading.index(name)
        assert first[at - 1] == " "
        assert first[at] != " "
    assert [part for part in ("it", "label (promoted)", "promote", "+6.3%") if part not in first] == []
    assert [part for part in ("one-domain", "not measured", "prompts") if part not in second] == []


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"incomplete": ["a"]}, "1 without a verdict"),
        ({"checkpoint": CheckpointStatus(results=1, prompts=2, when=None)}, "unfinished generation"),
        ({"active": ActiveStatus(who="w", since=NOON)}, "generating now"),
        ({"order": make_order(stale=True)}, "other prompts"),
    ],
)
def test_what_needs_attention_is_noted(changes: dict[str, Any], note: str) -> None:
    assert note in status_table([make_status(**changes)])[-1]


def test_a_stale_order_is_not_the_one_in_use() -> None:
    assert "label (promoted)" not in status_table([make_status(order=make_order(stale=True))])[-1]


def test_lines_have_no_spaces_at_their_ends() -> None:
    lines = [*status_table([make_status(), make_status()]), *status_block(make_status())]
    assert lines == [line.rstrip() for line in lines]
