"""params.yaml is read strictly: defaults, vLLM's own names, and a wrong key with the nearest right one."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from ruamel.yaml import YAML

from orderproof.job.params import load_job, load_jobs
from orderproof.job.spec import Job, JobError
from orderproof.measure.verdict import Rule

ROOT = Path(__file__).parents[2]
JOB = {"prompts": "p.jsonl", "model": "m", "engine": {"args": {"max_num_seqs": 16}}}


def written(folder: Path, document: Any) -> Path:
    """A params.yaml; with empty defaults where a document of jobs does not say any, because DVC wants the key."""
    path = folder / "params.yaml"
    if isinstance(document, dict) and "jobs" in document:
        document = {"defaults": {}, **document}
    if isinstance(document, str):
        path.write_text(document, "utf-8")
    else:
        YAML(typ="safe", pure=True).dump(document, path)
    return path


def one(folder: Path, name: str = "it", **changes: Any) -> Job:
    """A job with some of its keys replaced."""
    return load_job(written(folder, {"jobs": {name: {**JOB, **changes}}}), name)


def refusal(folder: Path, document: Any) -> str:
    with pytest.raises(JobError) as refused:
        load_jobs(written(folder, document))
    return str(refused.value)


def refusal_of(folder: Path, **changes: Any) -> str:
    return refusal(folder, {"jobs": {"it": {**JOB, **changes}}})


def engine(**changes: Any) -> dict[str, Any]:
    return {"engine": {"args": {"max_num_seqs": 16}, **changes}}


# -- what is read ------------------------------------------------------------------------------------------------------


def test_the_projects_own_configuration_is_read() -> None:
    read = load_jobs(ROOT / "params.yaml")
    assert set(read) == {"six-domains", "one-domain", "dense"}


def test_what_a_job_leaves_out_has_the_documented_default(tmp_path: Path) -> None:
    job = one(tmp_path)
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
    job = one(tmp_path, prompts="in/p.jsonl", model="/models/m")
    assert job.prompts_path == tmp_path / "in" / "p.jsonl"
    assert job.model_path == job.tokenizer_path == Path("/models/m")
    assert job.data_dir == tmp_path / "data" / "it"
    assert job.reports_dir == tmp_path / "reports" / "it"


def test_a_tokenizer_of_its_own_is_taken(tmp_path: Path) -> None:
    assert one(tmp_path, tokenizer="t").tokenizer_path == tmp_path / "t"


def test_the_file_may_be_named_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert load_job(Path("params.yaml"), "it").root == tmp_path


def test_vllms_own_names_pass_through_untouched(tmp_path: Path) -> None:
    args = {"max_num_seqs": 16, "compilation_config": {"level": 3}, "no_such_argument_yet": [1, None]}
    sampling = {"temperature": 0, "stop": ["\n"], "logit_bias": {"1": 2.5}}
    job = one(tmp_path, engine={"args": args}, sampling=sampling)
    assert job.engine.args == args
    assert job.sampling == sampling


def test_a_job_does_not_change(tmp_path: Path) -> None:
    with pytest.raises(ValidationError):
        one(tmp_path).outputs = "proven"  # type: ignore[misc]


def test_a_byte_order_mark_is_read_over(tmp_path: Path) -> None:
    text = "defaults: {}\njobs: {it: {prompts: p, model: m, engine: {args: {max_num_seqs: 1}}}}"
    assert list(load_jobs(written(tmp_path, "\ufeff" + text))) == ["it"]


# -- defaults and reporting --------------------------------------------------------------------------------------------


def test_defaults_lie_under_every_job_key_by_key_however_deep(tmp_path: Path) -> None:
    defaults = {
        "tokenizer": "shared",
        "engine": {"args": {"max_num_seqs": 16, "dtype": "bfloat16"}, "env": {"A": "1"}},
        "measure": {"validity": {"probe_mib": 64, "repeats": 1}, "seed": 7},
    }
    own = {
        "prompts": "p",
        "model": "m",
        "engine": {"args": {"dtype": "float16"}},
        "measure": {"validity": {"repeats": 0}},
    }
    read = load_jobs(
        written(
            tmp_path,
            {"defaults": defaults, "jobs": {"a": own, "b": {"prompts": "q", "model": "m", "tokenizer": "mine"}}},
        )
    )
    a, b = read["a"], read["b"]
    assert a.engine.args == {"max_num_seqs": 16, "dtype": "float16"}
    assert a.engine.env == {"A": "1"}
    assert (a.measure.validity.probe_mib, a.measure.validity.repeats, a.measure.seed) == (64, 0, 7)
    assert (a.tokenizer, b.tokenizer) == ("shared", "mine")
    assert b.engine.args["dtype"] == "bfloat16"
    assert b.measure.validity.repeats == 1


def test_a_list_is_replaced_and_not_merged(tmp_path: Path) -> None:
    document = {
        "defaults": {"measure": {"looks": [5, 10]}},
        "jobs": {"it": {**JOB, "measure": {"looks": [10, 20, 40]}}},
    }
    assert load_job(written(tmp_path, document), "it").measure.looks == (10, 20, 40)


def test_reporting_has_defaults_and_parts_of_its_own(tmp_path: Path) -> None:
    reporting = {"defaults": {"price_per_hour": 2.5, "publish": "commit"}, "a": {"publish": "push"}}
    read = load_jobs(written(tmp_path, {"jobs": {"a": JOB, "b": JOB}, "reporting": reporting}))
    assert (read["a"].reporting.price_per_hour, read["a"].reporting.publish) == (2.5, "push")
    assert (read["b"].reporting.price_per_hour, read["b"].reporting.publish) == (2.5, "commit")


@pytest.mark.parametrize("place", ["jobs", "defaults"])
def test_reporting_inside_a_job_is_sent_where_it_belongs(tmp_path: Path, place: str) -> None:
    reporting = {"reporting": {"publish": "push"}}
    told = refusal(tmp_path, {"defaults": {}, "jobs": {"it": JOB | (reporting if place == "jobs" else {})}}
                   | ({"defaults": reporting} if place == "defaults" else {}))  # fmt: skip
    assert "price, log_text and publish under reporting.it" in told


def test_reporting_on_a_job_that_is_not_there_names_the_nearest(tmp_path: Path) -> None:
    told = refusal(tmp_path, {"jobs": {"six-domains": JOB}, "reporting": {"six-domain": {}}})
    assert "reporting.six-domain is not a key: did you mean 'six-domains'?" in told


# -- misspelt keys -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "place", "nearest"),
    [
        ({"promts": "p"}, "jobs.it.promts", "prompts"),
        ({"sampeling": {}}, "jobs.it.sampeling", "sampling"),
        ({"measure": {"marign": 0.01}}, "jobs.it.measure.marign", "margin"),
        ({"measure": {"validity": {"repaets": 1}}}, "jobs.it.measure.validity.repaets", "repeats"),
        ({"order": {"methd": "label"}}, "jobs.it.order.methd", "method"),
        ({"engine": {"args": {"max_num_seqs": 1}, "comand": []}}, "jobs.it.engine.comand", "command"),
    ],
)
def test_a_misspelt_key_is_named_with_its_place_and_the_nearest_right_one(
    tmp_path: Path, changes: dict[str, Any], place: str, nearest: str
) -> None:
    assert f"{place} is not a key: did you mean '{nearest}'?" in refusal_of(tmp_path, **changes)


def test_a_misspelt_key_of_reporting_is_named_with_its_place(tmp_path: Path) -> None:
    told = refusal(tmp_path, {"jobs": {"it": JOB}, "reporting": {"it": {"prize_per_hour": 2}}})
    assert "reporting.it.prize_per_hour is not a key: did you mean 'price_per_hour'?" in told


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({"defaults": {"measure": {"lokks": [5, 10]}}}, ": defaults.measure.lokks is not a key: did you mean 'looks'?"),
        ({"defaults": {"measure": {"looks": [5, 5]}}}, ": defaults.measure.looks: "),
        ({"defaults": {"order": None}}, ": defaults.order: "),
        ({"defaults": {"name": "it"}}, ": defaults.name is not a key of a job"),
        ({"reporting": {"defaults": {"prize_per_hour": 2}}}, ": reporting.defaults.prize_per_hour is not a key"),
        ({"generate": {"defaults": {"tolerated_failures": 2}}}, ": generate.defaults.tolerated_failures: "),
        ({"defaults": {"measure": {"looks": [5, 5]}}, "own": {"looks": [7, 7]}}, ": jobs.it.measure.looks: "),
    ],
)
def test_a_mistake_in_the_defaults_is_named_there_and_not_in_the_job(
    tmp_path: Path, document: dict[str, Any], told: str
) -> None:
    own = {"measure": document.pop("own")} if "own" in document else {}
    assert told in refusal(tmp_path, {"jobs": {"it": {**JOB, **own}}, **document})


def test_a_misspelt_part_is_named_with_the_file_whatever_its_name(tmp_path: Path) -> None:
    assert "job is not a key: did you mean 'jobs'?" in refusal(tmp_path, {"job": {"it": JOB}})
    other = written(tmp_path, {"job": {"it": JOB}}).rename(tmp_path / "other.yaml")
    with pytest.raises(JobError) as refused:
        load_jobs(other)
    assert str(refused.value).startswith(f"{other}: ")


def test_a_key_like_no_other_brings_the_keys_that_are_known_there(tmp_path: Path) -> None:
    told = refusal_of(tmp_path, order={"xyzzy": 1})
    assert "jobs.it.order.xyzzy is not a key: known here: method, window, seed, clusters, signal, embedding" in told


def test_every_wrong_key_is_told_at_once(tmp_path: Path) -> None:
    told = refusal_of(tmp_path, promts="p", sampeling={}).splitlines()
    assert len(told) == 2
    assert all("did you mean" in line for line in told)


@pytest.mark.parametrize("key", ["prompts", "model"])
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    told = refusal(tmp_path, {"jobs": {"it": {k: v for k, v in JOB.items() if k != key}}})
    assert f"jobs.it.{key} is missing" in told


# -- wrong values ------------------------------------------------------------------------------------------------------


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
        ({"prompts": ["a", "b"]}, "jobs.it.prompts"),
        ({"sampling": [1]}, "jobs.it.sampling"),
        ({"prompts": None}, "jobs.it.prompts"),
        (engine(command="python"), "jobs.it.engine.command"),
        (engine(env={"A": {"b": 1}}), "jobs.it.engine.env.A"),
        (engine(start_timeout_s=0), "jobs.it.engine.start_timeout_s"),
    ],
)
def test_a_wrong_value_is_named_with_its_place_and_itself(tmp_path: Path, changes: dict[str, Any], place: str) -> None:
    told = refusal_of(tmp_path, **changes)
    assert f"{place}: " in told
    assert ", not " in told
    assert len(told.splitlines()) == 1


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
        (engine(in_process="no"), "jobs.it.engine.in_process"),
        (engine(in_process=0), "jobs.it.engine.in_process"),
        (engine(env={"A": True}), "jobs.it.engine.env.A"),
    ],
)
def test_a_wrong_type_is_an_error_and_never_converted(tmp_path: Path, changes: dict[str, Any], place: str) -> None:
    assert f"{place}: " in refusal_of(tmp_path, **changes)


@pytest.mark.parametrize("value", ["yes", "true", 1])
def test_what_may_be_published_is_never_guessed(tmp_path: Path, value: Any) -> None:
    told = refusal(tmp_path, {"jobs": {"it": JOB}, "reporting": {"it": {"log_text": value}}})
    assert "reporting.it.log_text: " in told


def test_a_whole_number_is_good_where_a_fraction_may_stand(tmp_path: Path) -> None:
    job = one(tmp_path, measure={"min_effect": 1, "validity": {"repeats": 5}}, **engine(start_timeout_s=60))
    assert (job.measure.min_effect, job.measure.validity.repeats, job.engine.start_timeout_s) == (1.0, 5, 60.0)


def test_a_word_of_the_command_may_be_a_number(tmp_path: Path) -> None:
    assert one(tmp_path, **engine(command=["run", "--port", 8000, "python"])).engine.command[2] == "8000"


def test_a_variable_may_be_written_as_a_number(tmp_path: Path) -> None:
    assert one(tmp_path, **engine(env={"VLLM_CPU_KVCACHE_SPACE": 1})).engine.env == {"VLLM_CPU_KVCACHE_SPACE": "1"}


@pytest.mark.parametrize("looks", [[10, 5], [5, 5], [2, 5], [], [5, "x"], 5, [5, 10.5], [5, 41], [3, 4]])
def test_looks_that_no_rule_could_use_are_refused(tmp_path: Path, looks: Any) -> None:
    assert "jobs.it.measure.looks" in refusal_of(tmp_path, measure={"looks": looks})


@pytest.mark.parametrize("looks", [[5], [5, 10], [10, 20, 40], [3, 5], [4, 8, 12]])
def test_looks_that_are_taken_make_a_rule(tmp_path: Path, looks: list[int]) -> None:
    taken = one(tmp_path, measure={"looks": looks}).measure.looks
    assert taken is not None
    assert Rule(looks=taken).looks == tuple(looks)


@pytest.mark.parametrize(
    "args", [{}, {"max_num_seqs": None}, {"max_num_seqs": 0}, {"max_num_seqs": "16"}, {"max_num_seqs": True}]
)
def test_a_job_must_state_its_batch_size(tmp_path: Path, args: dict[str, Any]) -> None:
    assert "jobs.it.engine.args.max_num_seqs must be given" in refusal_of(tmp_path, engine={"args": args})


def test_a_job_without_an_engine_is_told_what_it_must_state(tmp_path: Path) -> None:
    told = refusal(tmp_path, {"jobs": {"it": {"prompts": "p", "model": "m"}}})
    assert "jobs.it.engine" in told
    assert "max_num_seqs" in told


@pytest.mark.parametrize("key", ["model", "trust_remote_code"])
def test_what_the_engine_is_told_by_the_project_cannot_be_set_in_its_args(tmp_path: Path, key: str) -> None:
    told = refusal_of(tmp_path, engine={"args": {"max_num_seqs": 16, key: True}})
    assert f"jobs.it.engine.args.{key} cannot be set here" in told


@pytest.mark.parametrize("samples", [0, -1, 2.0, True, None, "4", 2**31])
def test_samples_are_counted_in_whole_numbers_from_one(tmp_path: Path, samples: Any) -> None:
    assert "jobs.it.sampling.n must be a whole number" in refusal_of(tmp_path, sampling={"n": samples})


@pytest.mark.parametrize("key", ["prompt_logprobs", "output_kind"])
def test_sampling_that_would_be_dropped_is_refused(tmp_path: Path, key: str) -> None:
    assert f"jobs.it.sampling.{key} is not supported" in refusal_of(tmp_path, sampling={key: 1})


def test_adapters_lie_beside_the_project_and_need_an_engine_that_takes_them(tmp_path: Path) -> None:
    modules = {"tone": "adapters/tone", "far": "/adapters/far"}
    args = {"max_num_seqs": 16, "enable_lora": True}
    job = one(tmp_path, engine={"args": args, "lora_modules": modules})
    assert job.adapters == {"tone": tmp_path / "adapters/tone", "far": Path("/adapters/far")}
    told = refusal_of(tmp_path, engine={"args": {"max_num_seqs": 16}, "lora_modules": modules})
    assert "jobs.it.engine.args.enable_lora must be true" in told


def test_batch_invariance_is_an_environment_variable_of_the_engine(tmp_path: Path) -> None:
    job = one(tmp_path, **engine(batch_invariant=True, env={"A": "1"}), sampling={"temperature": 0})
    assert job.engine.environment == {"A": "1", "VLLM_BATCH_INVARIANT": "1"}
    assert one(tmp_path, **engine(env={"A": "1"})).engine.environment == {"A": "1"}


def test_batch_invariance_of_random_draws_without_a_seed_is_refused(tmp_path: Path) -> None:
    asked = engine(batch_invariant=True)
    assert "set sampling.temperature to 0, or give sampling.seed" in refusal_of(tmp_path, **asked)
    assert one(tmp_path, **asked, sampling={"temperature": 0.7, "seed": 1}).engine.batch_invariant


# -- a lossy routing ---------------------------------------------------------------------------------------------------


def test_a_lossy_routing_is_off_until_somebody_accepts_it(tmp_path: Path) -> None:
    assert one(tmp_path).lossy_k0 is None
    assert one(tmp_path, accept_lossy={"k0": 2}).lossy_k0 == 2


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"k": 2}, "jobs.it.accept_lossy.k is not a key: did you mean 'k0'?"),
        ({}, "jobs.it.accept_lossy.k0 is missing"),
        ({"k0": 0}, "jobs.it.accept_lossy.k0: Input should be greater than or equal to 1"),
        ({"k0": "2"}, "jobs.it.accept_lossy.k0: Input should be a valid integer"),
        (True, "jobs.it.accept_lossy: Input should be"),
    ],
)
def test_a_wrong_acceptance_is_an_error(tmp_path: Path, given: Any, told: str) -> None:
    assert told in refusal_of(tmp_path, accept_lossy=given)


def test_a_lossy_routing_is_accepted_job_by_job(tmp_path: Path) -> None:
    told = refusal(tmp_path, {"defaults": {"accept_lossy": {"k0": 2}}, "jobs": {"it": JOB}})
    assert "defaults.accept_lossy is refused" in told


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "a/b",
        "..",
        ".",
        "",
        "A",
        "a b",
        "-a",
        "été",
        "a" * 65,
        "models",
        "defaults",
    ],
)
def test_a_name_that_cannot_be_a_folder_is_refused(tmp_path: Path, name: str) -> None:
    assert "cannot name a job" in refusal(tmp_path, {"jobs": {name: JOB}})


def test_names_of_numbers_letters_and_dashes_are_taken(tmp_path: Path) -> None:
    names = ["2024", "a_b-c", "a" * 64, "validation", "plan"]
    assert sorted(load_jobs(written(tmp_path, {"jobs": dict.fromkeys(names, JOB)}))) == sorted(names)


@pytest.mark.parametrize("name", ["2024", "1.5", "true", "null"])
def test_a_name_that_yaml_reads_as_no_text_is_refused_with_what_to_do(tmp_path: Path, name: str) -> None:
    told = refusal(tmp_path, f"defaults: {{}}\njobs:\n  {name}: {{prompts: p, model: m}}\n")
    assert "begin the name with a letter" in told


@pytest.mark.parametrize("key", ["prompts", "model"])
def test_what_dvc_reads_in_the_job_does_not_stand_in_the_defaults(tmp_path: Path, key: str) -> None:
    own = {k: v for k, v in JOB.items() if k != key}
    told = refusal(tmp_path, {"defaults": {key: "shared"}, "jobs": {"it": own}})
    assert f"jobs.it.{key} is missing: DVC reads it there and not in `defaults`" in told


def test_a_file_without_defaults_is_told_the_line_to_add(tmp_path: Path) -> None:
    told = refusal(tmp_path, "jobs: {it: {prompts: p, model: m, engine: {args: {max_num_seqs: 1}}}}")
    assert "`defaults` is missing" in told
    assert "add a line `defaults: {}`" in told


def test_an_unknown_job_names_the_nearest(tmp_path: Path) -> None:
    path = written(tmp_path, {"jobs": {"six-domains": JOB, "dense": JOB}})
    with pytest.raises(JobError, match=r"has no job 'six-domain': did you mean 'six-domains'\?"):
        load_job(path, "six-domain")
    with pytest.raises(JobError, match="has no job 'xyz': known here: dense, six-domains"):
        load_job(path, "xyz")


@pytest.mark.parametrize("key", ["name", "root"])
def test_what_the_file_itself_tells_is_no_key_of_a_job(tmp_path: Path, key: str) -> None:
    assert f"jobs.it.{key} is not a key" in refusal_of(tmp_path, **{key: "/elsewhere"})


# -- files that are no configuration -----------------------------------------------------------------------------------


def test_a_number_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    for key in ("margin", "min_effect"):
        told = refusal_of(tmp_path, measure={key: float("inf")})
        assert f"jobs.it.measure.{key}: Input should be a finite number" in told


@pytest.mark.parametrize("value", [float("nan"), float("inf"), datetime.date(2026, 1, 1), {"of": [b"bytes"]}])
def test_what_cannot_be_handed_on_to_vllm_is_refused_by_its_name(tmp_path: Path, value: Any) -> None:
    assert "jobs.it.sampling: temperature has a value that JSON lacks" in refusal_of(
        tmp_path, sampling={"temperature": value}
    )
    args = {"max_num_seqs": 1, "seed": value}
    assert "jobs.it.engine.args: seed has a value that JSON lacks" in refusal_of(tmp_path, engine={"args": args})


def test_an_alias_of_itself_is_refused(tmp_path: Path) -> None:
    job = "{prompts: p, model: m, engine: {args: {max_num_seqs: 1}}, sampling: {x: &x [*x]}}"
    assert "x has a value that JSON lacks" in refusal(tmp_path, f"{{defaults: {{}}, jobs: {{it: {job}}}}}")


def test_token_numbers_are_taken_as_yaml_reads_them(tmp_path: Path) -> None:
    assert one(tmp_path, sampling={"logit_bias": {123: -1.5}}).sampling == {"logit_bias": {123: -1.5}}


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
def test_what_no_process_can_be_given_is_refused(tmp_path: Path, changes: dict, message: str) -> None:
    document = {"defaults": {}, "jobs": {"it": {**JOB, **engine(**changes)}}}
    assert message in refusal(tmp_path, json.dumps(document))  # JSON is YAML


def test_a_missing_file_is_told_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(
        JobError, match=r"params\.yaml does not exist: run from the project's folder, or name one with --params"
    ):
        load_jobs(tmp_path / "params.yaml")


def test_a_key_that_stands_twice_is_an_error(tmp_path: Path) -> None:
    text = "jobs:\n  a: {prompts: p}\n  a: {prompts: q}\n"
    told = refusal(tmp_path, text)
    assert "line 3: found duplicate key" in told
    assert "https://" not in told, "advice to programmers"


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "just words", "jobs: [", "jobs: {it: *nothing}", "\ta: 1"])
def test_what_is_no_yaml_mapping_is_one_line(tmp_path: Path, text: str) -> None:
    told = refusal(tmp_path, text)
    assert "params.yaml" in told
    assert len(told.splitlines()) == 1


def test_a_file_that_is_nested_without_end_is_told(tmp_path: Path) -> None:
    assert "nested too deeply" in refusal(tmp_path, f"jobs: {'[' * 3000}{']' * 3000}")


def test_bytes_that_are_no_utf8_are_told(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_bytes(b"jobs: {\xe9t\xe9: 1}")
    with pytest.raises(JobError, match="not readable as YAML"):
        load_jobs(tmp_path / "params.yaml")


def test_a_folder_is_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="cannot be read"):
        load_jobs(tmp_path)


@pytest.mark.parametrize("document", [{"jobs": {}}, {"jobs": None}, {"jobs": ["a"]}, {"defaults": {}}])
def test_a_file_without_jobs_is_told(tmp_path: Path, document: Any) -> None:
    assert "`jobs` must map at least one name to a job" in refusal(tmp_path, document)


@pytest.mark.parametrize(
    ("document", "place"),
    [
        ({"jobs": {"it": "p.jsonl"}}, "jobs.it"),
        ({"jobs": {"it": None}}, "jobs.it"),
        ({"jobs": {"it": JOB}, "defaults": ["a"]}, "defaults"),
        ({"jobs": {"it": JOB}, "reporting": "none"}, "reporting"),
        ({"jobs": {"it": JOB}, "reporting": {"defaults": 3}}, "reporting.defaults"),
        ({"jobs": {"it": JOB}, "reporting": {"it": [1]}}, "reporting.it"),
    ],
)
def test_a_part_that_is_no_mapping_is_named(tmp_path: Path, document: Any, place: str) -> None:
    told = refusal(tmp_path, document)
    assert place in told
    assert "must be a mapping" in told


def test_an_empty_part_is_as_good_as_none(tmp_path: Path) -> None:
    document = {"jobs": {"it": JOB}, "defaults": None, "reporting": {"defaults": None, "it": None}, "demo": None}
    assert list(load_jobs(written(tmp_path, document))) == ["it"]


def test_how_a_batch_behaves_stands_beside_the_jobs_with_defaults_of_its_own(tmp_path: Path) -> None:
    body = {"prompts": "p.jsonl", "model": "m", "engine": {"args": {"max_num_seqs": 8}}}
    path = tmp_path / "params.yaml"
    generate = {"defaults": {"tolerated_failures": 0.1}, "it": {"when_running": "refuse"}}
    path.write_text(json.dumps({"defaults": {}, "jobs": {"it": body, "other": body}, "generate": generate}))
    jobs = load_jobs(path)
    assert (jobs["it"].generate.tolerated_failures, jobs["it"].generate.when_running) == (0.1, "refuse")
    assert (jobs["other"].generate.tolerated_failures, jobs["other"].generate.when_running) == (0.1, "wait")


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (
            {"generate": {"it": {"tolerated_failure": 0}}},
            r"generate\.it\.tolerated_failure is not a key.*tolerated_failures",
        ),
        (
            {"generate": {"it": {"tolerated_failures": 2}}},
            r"generate\.it\.tolerated_failures: .*less than or equal to 1",
        ),
        ({"generate": {"its": {}}}, "generate.its is not a key: did you mean 'it'"),
        ({"generate": 3}, "generate must be a mapping"),
        ({"defaults": {"generate": {}}}, r"defaults\.generate is not a key of a job: write .* under generate\.it"),
    ],
)
def test_a_wrong_key_of_generate_is_named_with_its_place(tmp_path: Path, document: dict, message: str) -> None:
    body = {"prompts": "p.jsonl", "model": "m", "engine": {"args": {"max_num_seqs": 8}}}
    path = tmp_path / "params.yaml"
    path.write_text(json.dumps({"defaults": {}, "jobs": {"it": body}, **document}))
    with pytest.raises(JobError, match=message):
        load_jobs(path)


# -- replicas ----------------------------------------------------------------------------------------------------------


def test_replicas_and_their_devices_are_read_as_yaml_writes_them(tmp_path: Path) -> None:
    job = one(tmp_path, **engine(replicas=2, devices=[[0, 1], ["GPU-5f0c", 3]]))
    assert (job.engine.replicas, job.engine.devices) == (2, (("0", "1"), ("GPU-5f0c", "3")))
    assert (one(tmp_path).engine.replicas, one(tmp_path).engine.devices) == (1, None)


def test_a_replica_takes_a_device_for_each_of_vllm_s_ranks(tmp_path: Path) -> None:
    args = {"max_num_seqs": 16, "tensor_parallel_size": 4, "pipeline_parallel_size": 2, "enable_expert_parallel": True}
    assert one(tmp_path, engine={"args": args}).engine.ranks == 8


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"replicas": 0}, "jobs.it.engine.replicas: Input should be greater than or equal to 1"),
        ({"replicas": 2, "devices": [[0]]}, "jobs.it.engine.devices must list the devices of each of the 2 replicas"),
        ({"replicas": 2, "devices": [[0], []]}, "jobs.it.engine.devices must list the devices of each"),
        ({"replicas": 2, "devices": [[0], [1, 0]]}, "jobs.it.engine.devices: 0 is listed twice"),
        ({"args": {"max_num_seqs": 1, "tensor_parallel_size": "2"}}, "tensor_parallel_size must be a whole number"),
        ({"args": {"max_num_seqs": 1, "data_parallel_size": 2}}, "set engine.replicas"),
    ],
)
def test_devices_that_cannot_be_shared_are_told_before_anything_starts(
    tmp_path: Path, changes: Any, message: str
) -> None:
    assert message in refusal_of(tmp_path, engine={"args": {"max_num_seqs": 16}, **changes})
