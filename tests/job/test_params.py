"""params.yaml is read strictly: its sections and defaults, and a wrong key with a suggestion."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orderproof.job.params import load_job, load_jobs
from orderproof.job.spec import JobError
from tests.support.params_files import JOB, job_with, refusal, refusal_of_job, write_params

ROOT = Path(__file__).parents[2]


def test_the_projects_own_configuration_is_read() -> None:
    read = load_jobs(ROOT / "params.yaml")
    assert set(read) == {"six-domains", "one-domain", "dense"}


def test_the_file_may_be_named_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job_with(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert load_job(Path("params.yaml"), "it").root == tmp_path


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    text = "defaults: {}\njobs: {it: {prompts: p, model: m, engine: {args: {max_num_seqs: 1}}}}"
    assert list(load_jobs(write_params(tmp_path, "\ufeff" + text))) == ["it"]


def test_defaults_apply_to_every_job_key_by_key_however_deep(tmp_path: Path) -> None:
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
        write_params(
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
    assert load_job(write_params(tmp_path, document), "it").measure.looks == (10, 20, 40)


def test_reporting_has_defaults_and_parts_of_its_own(tmp_path: Path) -> None:
    reporting = {"defaults": {"price_per_hour": 2.5, "publish": "commit"}, "a": {"publish": "push"}}
    read = load_jobs(write_params(tmp_path, {"jobs": {"a": JOB, "b": JOB}, "reporting": reporting}))
    assert (read["a"].reporting.price_per_hour, read["a"].reporting.publish) == (2.5, "push")
    assert (read["b"].reporting.price_per_hour, read["b"].reporting.publish) == (2.5, "commit")


@pytest.mark.parametrize("place", ["jobs", "defaults"])
def test_reporting_inside_a_job_is_refused_with_its_right_place(tmp_path: Path, place: str) -> None:
    reporting = {"reporting": {"publish": "push"}}
    message = refusal(tmp_path, {"defaults": {}, "jobs": {"it": JOB | (reporting if place == "jobs" else {})}}
                   | ({"defaults": reporting} if place == "defaults" else {}))  # fmt: skip
    assert "price, log_text and publish under reporting.it" in message


def test_reporting_on_a_job_that_is_not_there_names_the_nearest(tmp_path: Path) -> None:
    message = refusal(tmp_path, {"jobs": {"six-domains": JOB}, "reporting": {"six-domain": {}}})
    assert "reporting.six-domain is not a key: did you mean 'six-domains'?" in message


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
def test_a_misspelled_key_is_named_with_its_place_and_the_nearest_right_one(
    tmp_path: Path, changes: dict[str, Any], place: str, nearest: str
) -> None:
    assert f"{place} is not a key: did you mean '{nearest}'?" in refusal_of_job(tmp_path, **changes)


def test_a_misspelled_key_of_reporting_is_named_with_its_place(tmp_path: Path) -> None:
    message = refusal(tmp_path, {"jobs": {"it": JOB}, "reporting": {"it": {"prize_per_hour": 2}}})
    assert "reporting.it.prize_per_hour is not a key: did you mean 'price_per_hour'?" in message


@pytest.mark.parametrize(
    ("document", "message"),
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
    tmp_path: Path, document: dict[str, Any], message: str
) -> None:
    own = {"measure": document.pop("own")} if "own" in document else {}
    assert message in refusal(tmp_path, {"jobs": {"it": {**JOB, **own}}, **document})


def test_a_misspelled_part_is_named_with_the_file_whatever_its_name(tmp_path: Path) -> None:
    assert "job is not a key: did you mean 'jobs'?" in refusal(tmp_path, {"job": {"it": JOB}})
    other = write_params(tmp_path, {"job": {"it": JOB}}).rename(tmp_path / "other.yaml")
    with pytest.raises(JobError) as refused:
        load_jobs(other)
    assert str(refused.value).startswith(f"{other}: ")


def test_a_key_like_no_other_brings_the_keys_that_are_known_there(tmp_path: Path) -> None:
    message = refusal_of_job(tmp_path, order={"xyzzy": 1})
    assert "jobs.it.order.xyzzy is not a key: known here: method, window, seed, clusters, signal, embedding" in message


def test_every_wrong_key_is_named_at_once(tmp_path: Path) -> None:
    message = refusal_of_job(tmp_path, promts="p", sampeling={}).splitlines()
    assert len(message) == 2
    assert all("did you mean" in line for line in message)


@pytest.mark.parametrize("key", ["prompts", "model"])
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    message = refusal(tmp_path, {"jobs": {"it": {k: v for k, v in JOB.items() if k != key}}})
    assert f"jobs.it.{key} is missing" in message


def test_a_lossy_routing_is_accepted_job_by_job(tmp_path: Path) -> None:
    message = refusal(tmp_path, {"defaults": {"accept_lossy": {"k0": 2}}, "jobs": {"it": JOB}})
    assert "defaults.accept_lossy is refused" in message


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
    assert sorted(load_jobs(write_params(tmp_path, {"jobs": dict.fromkeys(names, JOB)}))) == sorted(names)


@pytest.mark.parametrize("name", ["2024", "1.5", "true", "null"])
def test_a_name_that_yaml_reads_as_no_text_is_refused_with_what_to_do(tmp_path: Path, name: str) -> None:
    message = refusal(tmp_path, f"defaults: {{}}\njobs:\n  {name}: {{prompts: p, model: m}}\n")
    assert "begin the name with a letter" in message


@pytest.mark.parametrize("key", ["prompts", "model"])
def test_what_dvc_reads_in_the_job_must_not_be_in_the_defaults(tmp_path: Path, key: str) -> None:
    own = {k: v for k, v in JOB.items() if k != key}
    message = refusal(tmp_path, {"defaults": {key: "shared"}, "jobs": {"it": own}})
    assert f"jobs.it.{key} is missing: DVC reads it there and not in `defaults`" in message


def test_a_file_without_defaults_is_refused_with_the_line_to_add(tmp_path: Path) -> None:
    message = refusal(tmp_path, "jobs: {it: {prompts: p, model: m, engine: {args: {max_num_seqs: 1}}}}")
    assert "`defaults` is missing" in message
    assert "add a line `defaults: {}`" in message


def test_an_unknown_job_names_the_nearest(tmp_path: Path) -> None:
    path = write_params(tmp_path, {"jobs": {"six-domains": JOB, "dense": JOB}})
    with pytest.raises(JobError, match=r"has no job 'six-domain': did you mean 'six-domains'\?"):
        load_job(path, "six-domain")
    with pytest.raises(JobError, match="has no job 'xyz': known here: dense, six-domains"):
        load_job(path, "xyz")


@pytest.mark.parametrize("key", ["name", "root"])
def test_what_the_file_itself_determines_is_no_key_of_a_job(tmp_path: Path, key: str) -> None:
    assert f"jobs.it.{key} is not a key" in refusal_of_job(tmp_path, **{key: "/elsewhere"})


def test_a_missing_file_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(
        JobError, match=r"params\.yaml does not exist: run from the project's folder, or name one with --params"
    ):
        load_jobs(tmp_path / "params.yaml")


def test_a_key_that_is_given_twice_is_an_error(tmp_path: Path) -> None:
    text = "jobs:\n  a: {prompts: p}\n  a: {prompts: q}\n"
    message = refusal(tmp_path, text)
    assert "line 3: found duplicate key" in message
    assert "https://" not in message, "advice to programmers"


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "just words", "jobs: [", "jobs: {it: *nothing}", "\ta: 1"])
def test_what_is_no_yaml_mapping_is_one_line(tmp_path: Path, text: str) -> None:
    message = refusal(tmp_path, text)
    assert "params.yaml" in message
    assert len(message.splitlines()) == 1


def test_a_file_that_is_nested_without_end_is_refused(tmp_path: Path) -> None:
    assert "nested too deeply" in refusal(tmp_path, f"jobs: {'[' * 3000}{']' * 3000}")


def test_bytes_that_are_no_utf8_are_refused(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_bytes(b"jobs: {\xe9t\xe9: 1}")
    with pytest.raises(JobError, match="not readable as YAML"):
        load_jobs(tmp_path / "params.yaml")


def test_a_folder_is_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="cannot be read"):
        load_jobs(tmp_path)


@pytest.mark.parametrize("document", [{"jobs": {}}, {"jobs": None}, {"jobs": ["a"]}, {"defaults": {}}])
def test_a_file_without_jobs_is_refused(tmp_path: Path, document: Any) -> None:
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
    message = refusal(tmp_path, document)
    assert place in message
    assert "must be a mapping" in message


def test_an_empty_part_is_as_good_as_none(tmp_path: Path) -> None:
    document = {"jobs": {"it": JOB}, "defaults": None, "reporting": {"defaults": None, "it": None}, "demo": None}
    assert list(load_jobs(write_params(tmp_path, document))) == ["it"]


def test_how_a_batch_behaves_is_set_beside_the_jobs_with_defaults_of_its_own(tmp_path: Path) -> None:
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
