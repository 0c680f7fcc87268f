"""Fields of a job have documented defaults and strict types."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from orderproof.job.spec import Method, SignalName
from orderproof.measure.verdict import Rule
from tests.support.params_files import JOB, engine_with, job_with, refusal, refusal_of_job


def test_a_job_does_not_change(tmp_path: Path) -> None:
    with pytest.raises(ValidationError):
        job_with(tmp_path).outputs = "proven"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"order": {"window": -4}}, "jobs.it.order.window"),
        ({"order": {"window": 1}}, "jobs.it.order.window"),
        ({"order": {"window": "many"}}, "jobs.it.order.window"),
        ({"order": {"method": "sorted"}}, "jobs.it.order.method"),
        ({"order": {"seed": -1}}, "jobs.it.order.seed"),
        ({"order": "label"}, "jobs.it.order"),
        ({"measure": {"alpha": 0.5}}, "jobs.it.measure.alpha"),
        ({"measure": {"margin": "1 %"}}, "jobs.it.measure.margin"),
        ({"measure": {"prompts": 1}}, "jobs.it.measure.prompts"),
        ({"measure": {"validity": {"repeats": 9}}}, "jobs.it.measure.validity.repeats"),
        ({"outputs": "identical"}, "jobs.it.outputs"),
        ({"prompts": ["a", 1]}, "jobs.it.prompts"),
        ({"prompts": []}, "jobs.it.prompts"),
        ({"columns": {"text": ""}}, "jobs.it.columns.text"),
        ({"sampling": [1]}, "jobs.it.sampling"),
        ({"prompts": None}, "jobs.it.prompts"),
        (engine_with(command="python"), "jobs.it.engine.command"),
        (engine_with(env={"A": {"b": 1}}), "jobs.it.engine.env.A"),
        (engine_with(start_timeout_s=0), "jobs.it.engine.start_timeout_s"),
    ],
)
def test_a_wrong_value_is_named_with_its_place_and_itself(tmp_path: Path, changes: dict[str, Any], place: str) -> None:
    message = refusal_of_job(tmp_path, **changes)
    assert f"{place}: " in message
    assert ", not " in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"measure": {"seed": True}}, "jobs.it.measure.seed"),
        ({"measure": {"alpha": "0.01"}}, "jobs.it.measure.alpha"),
        ({"measure": {"margin": True}}, "jobs.it.measure.margin"),
        ({"measure": {"prompts": "2000"}}, "jobs.it.measure.prompts"),
        ({"measure": {"prompts": 2000.0}}, "jobs.it.measure.prompts"),
        ({"measure": {"looks": [5, True]}}, "jobs.it.measure.looks.1"),
        ({"measure": {"looks": ["5", 10]}}, "jobs.it.measure.looks.0"),
        ({"order": {"window": "256"}}, "jobs.it.order.window"),
        ({"prompts": 7}, "jobs.it.prompts"),
        ({"tokenizer": 1.5}, "jobs.it.tokenizer"),
        (engine_with(in_process="no"), "jobs.it.engine.in_process"),
        (engine_with(in_process=0), "jobs.it.engine.in_process"),
        (engine_with(env={"A": True}), "jobs.it.engine.env.A"),
    ],
)
def test_a_wrong_type_is_an_error_and_never_converted(tmp_path: Path, changes: dict[str, Any], place: str) -> None:
    assert f"{place}: " in refusal_of_job(tmp_path, **changes)


@pytest.mark.parametrize("value", ["yes", "true", 1])
def test_what_may_be_published_is_never_guessed(tmp_path: Path, value: Any) -> None:
    message = refusal(tmp_path, {"jobs": {"it": JOB}, "reporting": {"it": {"log_text": value}}})
    assert "reporting.it.log_text: " in message


def test_a_whole_number_is_good_where_a_fraction_may_be(tmp_path: Path) -> None:
    job = job_with(tmp_path, measure={"min_effect": 1, "validity": {"repeats": 5}}, **engine_with(start_timeout_s=60))
    assert (job.measure.min_effect, job.measure.validity.repeats, job.engine.start_timeout_s) == (1.0, 5, 60.0)


def test_a_word_of_the_command_may_be_a_number(tmp_path: Path) -> None:
    assert job_with(tmp_path, **engine_with(command=["run", "--port", 8000, "python"])).engine.command[2] == "8000"


def test_a_variable_may_be_written_as_a_number(tmp_path: Path) -> None:
    env = {"VLLM_CPU_KVCACHE_SPACE": 1}
    assert job_with(tmp_path, **engine_with(env=env)).engine.env == {"VLLM_CPU_KVCACHE_SPACE": "1"}


@pytest.mark.parametrize("looks", [[10, 5], [5, 5], [1, 5], [], [5, "x"], 5, [5, 10.5], [5, 65]])
def test_looks_that_no_rule_could_use_are_refused(tmp_path: Path, looks: Any) -> None:
    assert "jobs.it.measure.looks" in refusal_of_job(tmp_path, measure={"looks": looks})


@pytest.mark.parametrize("looks", [[5], [2], [2, 3, 5, 8, 12], [2, 4, 8, 16, 32], [4, 8, 64]])
def test_looks_that_are_taken_make_a_rule(tmp_path: Path, looks: list[int]) -> None:
    taken = job_with(tmp_path, measure={"looks": looks}).measure.looks
    assert taken is not None
    assert Rule(looks=taken).looks == tuple(looks)


def test_batch_invariance_is_an_environment_variable_of_the_engine(tmp_path: Path) -> None:
    job = job_with(tmp_path, **engine_with(batch_invariant=True, env={"A": "1"}), sampling={"temperature": 0})
    assert job.engine.environment == {"A": "1", "VLLM_BATCH_INVARIANT": "1"}
    assert job_with(tmp_path, **engine_with(env={"A": "1"})).engine.environment == {"A": "1"}


def test_a_number_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    for key in ("margin", "min_effect"):
        message = refusal_of_job(tmp_path, measure={key: float("inf")})
        assert f"jobs.it.measure.{key}: Input should be a finite number" in message


@pytest.mark.parametrize("value", [float("nan"), float("inf"), datetime.date(2026, 1, 1), {"of": [b"bytes"]}])
def test_what_cannot_be_passed_to_vllm_is_refused_by_its_name(tmp_path: Path, value: Any) -> None:
    assert "jobs.it.sampling: temperature has a value that JSON lacks" in refusal_of_job(
        tmp_path, sampling={"temperature": value}
    )
    args = {"max_num_seqs": 1, "seed": value}
    assert "jobs.it.engine.args: seed has a value that JSON lacks" in refusal_of_job(tmp_path, engine={"args": args})


def test_an_alias_of_itself_is_refused(tmp_path: Path) -> None:
    job = "{prompts: p, model: m, engine: {args: {max_num_seqs: 1}}, sampling: {x: &x [*x]}}"
    assert "x has a value that JSON lacks" in refusal(tmp_path, f"{{defaults: {{}}, jobs: {{it: {job}}}}}")


def test_token_numbers_are_taken_as_yaml_reads_them(tmp_path: Path) -> None:
    assert job_with(tmp_path, sampling={"logit_bias": {123: -1.5}}).sampling == {"logit_bias": {123: -1.5}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env": {"A": "a\0b"}}, "jobs.it.engine.env.A: must be text without NUL"),
        ({"env": {"A": "\ud800"}}, "jobs.it.engine.env.A: must be text without NUL"),
        ({"env": {"A=B": "1"}}, "the name of a variable must not be empty or contain `=`"),
        ({"env": {"": "1"}}, "the name of a variable must not be empty or contain `=`"),
        ({"command": ["a\0b"]}, "jobs.it.engine.command.0: must be text without NUL"),
    ],
)
def test_what_cannot_be_passed_to_a_process_is_refused(tmp_path: Path, changes: dict, message: str) -> None:
    document = {"defaults": {}, "jobs": {"it": {**JOB, **engine_with(**changes)}}}
    assert message in refusal(tmp_path, json.dumps(document))  # JSON is YAML


def test_replicas_and_their_devices_are_read_as_yaml_writes_them(tmp_path: Path) -> None:
    job = job_with(tmp_path, **engine_with(replicas=2, devices=[[0, 1], ["GPU-5f0c", 3]]))
    assert (job.engine.replicas, job.engine.devices) == (2, (("0", "1"), ("GPU-5f0c", "3")))
    assert (job_with(tmp_path).engine.replicas, job_with(tmp_path).engine.devices) == (1, None)


def test_a_replica_takes_a_device_for_each_of_vllm_s_ranks(tmp_path: Path) -> None:
    args = {"max_num_seqs": 16, "tensor_parallel_size": 4, "pipeline_parallel_size": 2, "enable_expert_parallel": True}
    assert job_with(tmp_path, engine={"args": args}).engine.ranks == 8


def test_what_a_job_leaves_out_has_the_documented_default(tmp_path: Path) -> None:
    job = job_with(tmp_path)
    assert (job.order.method, job.order.window, job.outputs) == ("cluster", None, "not_worse")
    assert (job.measure.looks, job.measure.alpha, job.measure.margin, job.measure.min_effect) == (
        None,
        0.025,
        0.01,
        0.03,
    )
    assert (job.reporting.publish, job.reporting.log_text) == ("none", False)
    assert (job.engine.command, job.engine.max_num_seqs) == ((), 16)


def test_relative_paths_start_at_the_folder_of_the_file(tmp_path: Path) -> None:
    job = job_with(tmp_path, prompts="in/p.jsonl", model="/models/m")
    assert job.prompts_path == tmp_path / "in" / "p.jsonl"
    assert job.model_path == job.tokenizer_path == Path("/models/m")
    assert job.data_dir == tmp_path / "data" / "it"
    assert job.reports_dir == tmp_path / "reports" / "it"


def test_a_tokenizer_of_its_own_is_taken(tmp_path: Path) -> None:
    assert job_with(tmp_path, tokenizer="t").tokenizer_path == tmp_path / "t"


def test_vllms_own_names_pass_through_untouched(tmp_path: Path) -> None:
    args = {"max_num_seqs": 16, "compilation_config": {"level": 3}, "no_such_argument_yet": [1, None]}
    sampling = {"temperature": 0, "stop": ["\n"], "logit_bias": {"1": 2.5}}
    job = job_with(tmp_path, engine={"args": args}, sampling=sampling)
    assert job.engine.args == args
    assert job.sampling == sampling


def test_a_lossy_routing_is_off_until_somebody_accepts_it(tmp_path: Path) -> None:
    assert job_with(tmp_path).lossy_k0 is None
    assert job_with(tmp_path, accept_lossy={"k0": 2}).lossy_k0 == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"k": 2}, "jobs.it.accept_lossy.k is not a key: did you mean 'k0'?"),
        ({}, "jobs.it.accept_lossy.k0 is missing"),
        ({"k0": 0}, "jobs.it.accept_lossy.k0: Input should be greater than or equal to 1"),
        ({"k0": "2"}, "jobs.it.accept_lossy.k0: Input should be a valid integer"),
        (True, "jobs.it.accept_lossy: Input should be"),
    ],
)
def test_a_wrong_acceptance_is_an_error(tmp_path: Path, given: Any, message: str) -> None:
    assert message in refusal_of_job(tmp_path, accept_lossy=given)


def test_no_signal_has_the_name_of_a_method() -> None:
    """`orderproof order --method token` is short for a method with that signal."""
    assert not set(get_args(Method)) & set(get_args(SignalName))
