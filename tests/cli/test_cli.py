"""The command line, as a shell would call it: what it says, where it says it, and with which exit code."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from ruamel.yaml import YAML

from orderproof.cli import main
from orderproof.measure.evaluate import judge
from orderproof.measure.trial_store import Trial, write_verdict
from orderproof.prompts.stream import LINGER_S
from tests.support.batches import make_project
from tests.support.captured_job import calibrated, make_job
from tests.support.checkpoint_file import save_tensors
from tests.support.tiny_tokenizer import save_model
from tests.support.trial_maker import make_trial

COMMANDS = sorted(typer.main.get_group(main.app).commands)
JOB = {"prompts": "data/it/prompts.jsonl", "model": "m", "engine": {"args": {"max_num_seqs": 8}}}
FIRST, SECOND = "20261129T144640Z-3f9a", "20261130T144640Z-77aa"


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which must be one document on one line and nothing else."""
        assert self.out.count("\n") == 1
        return json.loads(self.out)

    def refuses(self, code: int, *words: str) -> None:
        """One clear message on standard error, no traceback, nothing on standard output."""
        assert (self.code, self.out) == (code, ""), self
        assert self.err.startswith("orderproof: ")
        assert self.err.count("\n") == 1
        assert all(word in self.err for word in words), self.err


Run = Callable[..., Result]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Run]:
    """Run the command in an empty folder, as the shell would."""
    monkeypatch.chdir(tmp_path)

    def orderproof(*arguments: str | Path) -> Result:
        monkeypatch.setattr(sys, "argv", ["orderproof", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main.main()
        said = capfd.readouterr()
        return Result(int(ended.value.code or 0), said.out, said.err)

    yield orderproof
    logging.captureWarnings(False)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Two jobs, of which nothing is there yet."""
    jobs = {"it": JOB, "other": {**JOB, "prompts": "none.jsonl"}}
    YAML(typ="safe", pure=True).dump({"defaults": {}, "jobs": jobs}, tmp_path / "params.yaml")
    return tmp_path


def measured(project: Path, name: str = FIRST, **how: Any) -> Trial:
    """A trial of the job with its verdict on record."""
    trial = make_trial(project / "reports" / "it" / name, **how)
    verdict = judge(trial)
    assert verdict is not None
    write_verdict(trial, verdict)
    return trial


def python(script: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True, check=False
    )


# -- help --------------------------------------------------------------------------------------------------------------


def test_the_commands_are_the_promised_ones() -> None:
    promised = {
        "measure",
        "generate",
        "reproduce",
        "decide",
        "demote",
        "validate",
        "order",
        "restore",
        "status",
        "doctor",
        "ui",
    }
    assert promised <= set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_an_example(run: Run, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    result = run(command, "--help")
    assert result.code == 0
    assert f"orderproof {command}" in result.out.split("Examples:")[1]


def test_help_imports_none_of_the_heavy_tools() -> None:
    script = """
import sys
from orderproof.cli.main import main
sys.argv = ["orderproof", "--help"]
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""
    done = python(script)
    heavy = {"prefect", "mlflow", "torch", "vllm", "sklearn", "pandas", "great_expectations", "matplotlib", "dvc"}
    assert "Usage" in done.stdout
    assert "orderproof.cli.main" in done.stderr
    assert not heavy & set(done.stderr.split())


def test_the_installed_command_runs() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("orderproof"), "--help"], capture_output=True, text=True, check=True
    )
    assert "Usage" in done.stdout


def test_no_command_at_all_is_wrong_usage(run: Run) -> None:
    assert run().code == 2


# -- wrong usage -------------------------------------------------------------------------------------------------------

OF_A_JOB = ("plan", "measure", "generate", "reproduce", "decide", "demote", "validate", "status", "log")


@pytest.mark.parametrize("command", OF_A_JOB)
def test_an_unknown_job_is_one_line_that_names_the_nearest(run: Run, project: Path, command: str) -> None:
    run(command, "othr").refuses(2, "has no job 'othr': did you mean 'other'?")


@pytest.mark.parametrize("command", OF_A_JOB)
def test_a_missing_params_file_is_one_line_that_says_what_to_do(run: Run, command: str) -> None:
    run(command, "it").refuses(2, "params.yaml does not exist", "--params")


@pytest.mark.parametrize("command", OF_A_JOB)
def test_a_misspelt_key_is_told_before_anything_starts(run: Run, project: Path, command: str) -> None:
    YAML(typ="safe", pure=True).dump({"defaults": {}, "jobs": {"it": {**JOB, "promts": "x"}}}, project / "params.yaml")
    run(command, "it").refuses(2, "jobs.it.promts is not a key: did you mean 'prompts'?")


@pytest.mark.parametrize(
    "arguments",
    [("measure",), ("nonsense",), ("decide", "it", "--nonsense"), ("order", "p", "-o", "q", "--window", "1")],
)
def test_words_that_no_command_knows_are_wrong_usage(run: Run, project: Path, arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert (result.code, result.out) == (2, "")
    assert "Traceback" not in result.err


@pytest.mark.parametrize("option", ["--follow", "--linger"])
def test_what_only_a_stream_has_is_wrong_usage_without_one(run: Run, project: Path, option: str) -> None:
    result = run("generate", "it", option, "5")
    assert (result.code, result.out) == (2, "")
    assert option in result.err
    assert "--prompts" in result.err


def test_help_tells_how_long_a_window_lingers(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert f"[default: ({LINGER_S})]" in run("generate", "--help").out


@pytest.mark.parametrize("command", ["plan", "capture", "lossy", "measure", "reproduce", "validate"])
def test_a_missing_model_is_told_before_anything_starts(run: Run, project: Path, command: str) -> None:
    run(command, "it").refuses(1, "is not a model's folder", "hf download")


def test_a_broken_command_line_starts_no_prefect(project: Path) -> None:
    script = """
import sys
from orderproof.cli.main import main
sys.argv = ["orderproof", "measure", "it"]
try:
    main()
finally:
    print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "prefect" not in done.stdout.split()


# -- decide ------------------------------------------------------------------------------------------------------------


def test_a_job_without_a_trial_has_nothing_to_decide(run: Run, project: Path) -> None:
    run("decide", "it").refuses(1, "holds no trial", "measure the job first")


def test_a_verdict_is_recomputed_bit_for_bit(run: Run, project: Path) -> None:
    trial = measured(project)
    result = run("decide", "it")
    assert result.code == 0
    assert "it: promote, gain" in result.out
    assert "toy model on CPUs: not your gain" in result.out
    assert f"recomputed from {trial.folder}" in result.out
    assert "bit for bit the verdict on record" in result.out


def test_a_verdict_that_was_tampered_with_is_told_and_fails(run: Run, project: Path) -> None:
    trial = measured(project)
    recorded = trial.folder / "verdict.json"
    text = recorded.read_text()
    recorded.write_text(text.replace('"gain":', '"gain" :', 1))
    result = run("decide", "it")
    assert result.code == 1
    assert f"NOT the verdict on record ({recorded})" in result.out


def test_a_verdict_that_is_missing_is_not_the_one_on_record(run: Run, project: Path) -> None:
    (measured(project).folder / "verdict.json").unlink()
    assert run("decide", "it", "--json").json["same_as_recorded"] is False


def test_a_plan_that_was_edited_afterwards_is_told(run: Run, project: Path) -> None:
    manifest = measured(project).folder / "manifest.json"
    manifest.write_text(
        manifest.read_text().replace('"margin": 0.01', '"margin": 0.0').replace('"margin":0.01', '"margin":0.0')
    )
    run("decide", "it").refuses(1, "manifest.json was changed after passes were timed")


def test_a_pass_without_its_tokens_is_told(run: Run, project: Path) -> None:
    (measured(project).folder / "tokens" / "b01-candidate.parquet").unlink()
    run("decide", "it").refuses(1, "b01-candidate.parquet is missing")


@pytest.mark.parametrize("content", [b"", b"PAR1 torn"])
def test_tokens_that_are_not_whole_are_told(run: Run, project: Path, content: bytes) -> None:
    (measured(project).folder / "tokens" / "b01-candidate.parquet").write_bytes(content)
    run("decide", "it").refuses(1, "b01-candidate.parquet cannot be read")


def test_tokens_of_other_prompts_are_told(run: Run, project: Path) -> None:
    trial = measured(project)
    path = trial.folder / "tokens" / "b02-candidate.parquet"
    table = trial.tokens("b02-candidate")
    strange = pa.array([f"strange-{name}" for name in table["prompt_id"].to_pylist()])
    pq.write_table(table.set_column(0, "prompt_id", strange), path)
    run("decide", "it").refuses(1, "b02-candidate", "strange-p")


def test_a_trial_that_did_not_end_has_no_verdict(run: Run, project: Path) -> None:
    make_trial(project / "reports" / "it" / FIRST, blocks=3)
    run("decide", "it").refuses(1, "3 blocks count", "due at 5, 10")


def test_the_newest_trial_is_decided_unless_another_is_named(run: Run, project: Path) -> None:
    measured(project, FIRST)
    measured(project, SECOND, seed=1)
    assert run("decide", "it", "--json").json["trial"] == SECOND
    assert run("decide", "it", "--json", "--trial", FIRST).json["trial"] == FIRST


@pytest.mark.parametrize("name", ["20270101T000000Z-0000", "..", "../it/" + FIRST])
def test_a_trial_that_is_not_there_is_told_with_those_that_are(run: Run, project: Path, name: str) -> None:
    measured(project)
    run("decide", "it", "--trial", name).refuses(1, "has no trial", f"it has {FIRST}")


def test_placebos_are_looked_for_where_they_lie(run: Run, project: Path) -> None:
    trial = make_trial(project / "reports" / "placebo" / "it" / FIRST, placebo=True)
    verdict = judge(trial)
    assert verdict is not None
    write_verdict(trial, verdict)
    run("decide", "it").refuses(1, "holds no trial")
    assert run("decide", "it", "--placebo", "--json").json["placebo"] is True


@pytest.mark.parametrize(("gain", "verdict", "code"), [(0.06, "promote", 0), (-0.05, "keep", 10)])
def test_the_exit_code_is_the_verdicts_own_only_when_asked(
    run: Run, project: Path, gain: float, verdict: str, code: int
) -> None:
    measured(project, gain=gain)
    assert run("decide", "it", "--json").json["verdict"] == verdict
    assert run("decide", "it").code == 0
    assert run("decide", "it", "--exit-code").code == code


def test_a_tampered_verdict_fails_whatever_code_is_asked_for(run: Run, project: Path) -> None:
    (measured(project, gain=-0.05).folder / "verdict.json").write_text("{}")
    assert run("decide", "it", "--exit-code").code == 1


def test_a_decision_for_machines_is_one_object_of_a_stable_shape(run: Run, project: Path) -> None:
    trial = measured(project)
    told = run("decide", "it", "--json").json
    assert told["schema"] == "orderproof/outcome/1"
    assert (told["job"], told["trial"], told["verdict"], told["blocks"]) == ("it", FIRST, "promote", 5)
    assert (told["same_as_recorded"], told["folder"]) == (True, str(trial.folder))
    assert told["gain_low"] < told["gain"] < told["gain_high"]


# -- status, demote, doctor --------------------------------------------------------------------------------------------


def test_the_status_of_all_jobs_is_a_line_each(run: Run, project: Path) -> None:
    measured(project)
    result = run("status")
    assert result.code == 0
    assert [line.split()[0] for line in result.out.splitlines()] == ["JOB", "it", "other"]


def test_the_status_of_one_job_is_one_object(run: Run, project: Path) -> None:
    measured(project)
    told = run("status", "it", "--json").json
    assert (told["schema"], told["job"], told["verdict"]["verdict"]) == ("orderproof/status/1", "it", "promote")


def test_the_status_of_all_jobs_is_one_document(run: Run, project: Path) -> None:
    assert [told["job"] for told in run("status", "--json").json] == ["it", "other"]


def test_nothing_promoted_is_nothing_to_demote(run: Run, project: Path) -> None:
    (project / "data" / "it").mkdir(parents=True)
    (project / "data" / "it" / "prompts.jsonl").write_text('{"id": "a", "text": "x"}\n')
    run("demote", "it").refuses(1, "nothing to demote")


def test_a_doctor_for_machines_is_one_document(run: Run, project: Path) -> None:
    result = run("doctor", "--json")
    assert result.code == 1  # the jobs' prompts are not there
    assert {"name", "state", "says", "do"} == set(result.json[0])


def test_a_doctor_says_one_line_a_check_and_what_to_do(run: Run, project: Path) -> None:
    result = run("doctor")
    assert all(line.split()[0] in ("ok", "warn", "fail") for line in result.out.splitlines())
    assert any(line.startswith("fail  job other") and "→" in line for line in result.out.splitlines())


def test_a_doctor_without_a_project_still_looks_at_the_rest(run: Run) -> None:
    result = run("doctor")
    assert result.code == 1
    assert "params.yaml does not exist" in result.out
    assert "ok    Python" in result.out


# -- plan --------------------------------------------------------------------------------------------------------------


def test_a_plan_without_a_job_is_the_inventory(run: Run, project: Path) -> None:
    assert run("plan").out == run("status").out
    assert run("plan", "--json").out == run("status", "--json").out


def test_a_plan_says_what_to_do_and_where_it_is_kept(run: Run, tmp_path: Path) -> None:
    make_job(tmp_path, captured=32)
    result = run("plan", "it")
    assert result.code == 0
    assert result.out.startswith("it: CAPTURE\n")
    assert "orderproof capture it" in result.out.splitlines()[1]
    assert f"page: {tmp_path / 'reports' / 'plan' / 'it' / 'plan.html'}" in result.out
    assert "the experiment orderproof/it, run " in result.out


def test_a_plan_stands_without_its_tracker(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_job(tmp_path, captured=32)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    result = run("plan", "it", "--json")
    assert (result.code, result.json["advice"]["answer"], result.json["mlflow_run"]) == (0, "capture", None)
    assert "did not take plan" in result.err
    assert "`orderproof log it` sends it later" in result.err


def test_a_plan_for_machines_is_the_document_that_is_kept(run: Run, tmp_path: Path) -> None:
    make_job(tmp_path, captured=32, engine={"args": {"max_num_seqs": 512}})
    told = run("plan", "it", "--json").json
    assert (told["schema"], told["advice"]["answer"]) == ("orderproof/plan/1", "don't")
    assert json.loads((tmp_path / "reports" / "plan" / "it" / "plan.json").read_text()) == told


def test_a_plan_with_routes_of_another_model_is_told(run: Run, tmp_path: Path) -> None:
    job = make_job(tmp_path, captured=32)
    calibrated(job)
    config = job.model_path / "config.json"
    config.write_text(config.read_text() + "\n")
    run("plan", "it").refuses(1, "of another model", "orderproof capture it")


def test_a_plan_with_damaged_routes_is_told(run: Run, tmp_path: Path) -> None:
    job = make_job(tmp_path, captured=32)
    calibrated(job)
    routes = job.data_dir / "routes.parquet"
    routes.write_bytes(routes.read_bytes()[: routes.stat().st_size // 2])
    run("plan", "it").refuses(1, "routes.parquet", "orderproof capture")


# -- order and restore -------------------------------------------------------------------------------------------------


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """Rows with odd spacing and a field of their own, none of which may change."""
    path = tmp_path / "prompts.jsonl"
    rows = [
        f'{{"id":"p{k}",  "text": "{"word " * (1 + 7 * k % 11)}\\u2028é", "label": "l{k % 3}", "mine": {k}}}\n'
        for k in range(20)
    ]
    path.write_text("".join(rows))
    return path


@pytest.mark.parametrize("how", [("label",), ("length", "--window", "5"), ("shuffled", "--seed", "3"), ("file",)])
def test_what_was_sorted_comes_back_byte_for_byte(run: Run, prompts: Path, how: tuple[str, ...]) -> None:
    method, *options = how
    ordered = run("order", prompts, "-o", "sorted.jsonl", "--method", method, *options)
    assert ordered.code == 0
    rows, changed = prompts.read_text().splitlines(), Path("sorted.jsonl").read_text().splitlines()
    assert sorted(changed) == sorted(rows)
    assert (changed == rows) == (method == "file")
    restored = run("restore", "sorted.jsonl", "--like", prompts, "-o", "back.jsonl")
    assert (restored.code, "20 outputs in the order of" in restored.out) == (0, True)
    assert Path("back.jsonl").read_bytes() == prompts.read_bytes()


def test_an_order_for_machines_is_one_object(run: Run, prompts: Path) -> None:
    told = run("order", prompts, "-o", "sorted.jsonl", "--method", "label", "--json").json
    assert (told["rows"], told["order"], told["output"], len(told["sha256"])) == (20, "label", "sorted.jsonl", 64)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), "of 20 prompts at most 20 are made"),
        (("--window", "10"), "of 20 prompts in windows of 10 at most 2 are made"),
    ],
)
def test_more_clusters_than_prompts_are_made_fewer_and_it_is_said(
    run: Run, prompts: Path, options: tuple[str, ...], told: str
) -> None:
    how = ("order", prompts, "-o", "sorted.jsonl", "--method", "lexical", "--clusters", "21", *options)
    assert f"note: 21 clusters were asked for, and {told}" in run(*how).out
    assert [told in note for note in run(*how, "--json").json["notes"]] == [True]
    assert (
        run("order", prompts, "-o", "sorted.jsonl", "--method", "lexical", "--clusters", "2", "--json").json["notes"]
        == []
    )


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save_tensors(
        tmp_path / "models" / "it" / "model.safetensors", model__embed_tokens__weight=np.eye(300, 16, dtype=np.float32)
    )
    save_model(tmp_path / "models" / "it")
    return tmp_path / "models" / "it"


def test_a_signals_name_is_short_for_clusters_by_that_signal(run: Run, prompts: Path, model: Path) -> None:
    short = run("order", prompts, "--method", "token", "--model", model, "-o", "sorted.jsonl", "--json").json
    long = run("order", prompts, "--signal", "token", "--model", model, "-o", "sorted.jsonl", "--json").json
    assert short == long
    assert (short["order"], short["parameters"]) == ("cluster", {"clusters": 16, "signal": "token"})
    assert 0 < short["purity"] <= 1
    run("order", prompts, "--method", "token", "--signal", "lexical", "-o", "x.jsonl").refuses(1, "contradict")


def test_the_model_is_that_of_the_job_whose_prompts_these_are(run: Run, prompts: Path, model: Path) -> None:
    run("order", prompts, "--method", "token", "-o", "sorted.jsonl").refuses(1, "--model FOLDER")
    job = "{prompts: prompts.jsonl, model: models/it, engine: {args: {max_num_seqs: 4}}}"
    Path("params.yaml").write_text(f"defaults: {{}}\njobs:\n  it: {job}\n")
    assert run("order", prompts, "--method", "token", "-o", "sorted.jsonl").code == 0
    run("order", prompts, "--method", "predicted", "-o", "sorted.jsonl").refuses(1, "orderproof capture JOB")


def test_another_tool_s_params_file_is_none_of_an_order_s_business(run: Run, prompts: Path) -> None:
    Path("params.yaml").write_text("train: {epochs: 3}\n")
    assert run("order", prompts, "--method", "label", "-o", "sorted.jsonl").code == 0
    run("order", prompts, "--method", "token", "-o", "sorted.jsonl").refuses(2, "params.yaml")


def test_standard_streams_carry_rows_alone(run: Run, prompts: Path) -> None:
    ordered = run("order", prompts, "-o", "-", "--method", "label")
    Path("sorted.jsonl").write_text(ordered.out)
    restored = run("restore", "sorted.jsonl", "--like", prompts)
    assert (restored.out, restored.err) == (prompts.read_text(), "")


@pytest.mark.parametrize("row", ["", "nothing\n", '{"text": "x"}\n', '{"id": "p0", "text": null}\n'])
def test_rows_that_cannot_be_sorted_are_one_line_and_nothing_half_written_stays(
    run: Run, tmp_path: Path, row: str
) -> None:
    (tmp_path / "bad.jsonl").write_text(row)
    run("order", "bad.jsonl", "-o", "sorted.jsonl", "--method", "length").refuses(1, "bad.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.jsonl"]


def test_outputs_that_lack_a_prompt_are_refused_by_name(run: Run, prompts: Path) -> None:
    Path("outputs.jsonl").write_text("".join(prompts.read_text().splitlines(keepends=True)[1:]))
    run("restore", "outputs.jsonl", "--like", prompts, "-o", "back.jsonl").refuses(1, "p0")
    assert not Path("back.jsonl").exists()


def test_a_file_that_is_not_there_is_one_line(run: Run) -> None:
    run("order", "none.jsonl", "-o", "sorted.jsonl").refuses(1, "none.jsonl")


def test_a_reader_that_goes_away_is_no_traceback(prompts: Path) -> None:
    command = f"{sys.executable} -m orderproof.cli order {prompts} -o - --method label | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/api", "nonsense"])
def test_a_prefect_server_that_is_not_there_is_one_message_before_anything_begins(tmp_path: Path, url: str) -> None:
    job = make_project(tmp_path / "p", 3)
    command = [sys.executable, "-m", "orderproof.cli", "generate", job.name]
    env = {**os.environ, "PREFECT_API_URL": url, "PREFECT_HOME": str(tmp_path / "prefect")}
    done = subprocess.run(command, cwd=job.root, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert f"orderproof: Prefect says: Failed to reach API at {url}" in done.stderr
    assert "unset PREFECT_API_URL" in done.stderr
    assert [path.name for path in job.data_dir.iterdir()] == ["prompts.jsonl"]


@pytest.mark.parametrize(
    "becomes", [KeyboardInterrupt, ImportError, FileNotFoundError(2, "gone", "a file"), SystemExit(130)]
)
def test_an_interrupt_is_one_message_whatever_a_library_makes_of_it(
    becomes: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise becomes from None

    monkeypatch.setattr(main, "app", interrupted)
    monkeypatch.setattr(main, "interrupts", [])
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(SystemExit) as ended:
            main.main()
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.value.code == 130
    assert capsys.readouterr().err.startswith("orderproof: interrupted")


def test_a_file_that_no_room_expected_to_fail_is_still_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").touch()
    monkeypatch.setattr(main, "app", (tmp_path / "data" / "prompts").mkdir)
    monkeypatch.setattr(main, "interrupts", [])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith(f"orderproof: {tmp_path / 'data' / 'prompts'}: Not a directory. Mend")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("order - -o sorted.jsonl --method label <&-", "standard input: is closed"),
        ("order {prompts} -o /dev/full --method label", "/dev/full: cannot be written: No space left on device"),
        ("order {prompts} -o sorted.jsonl --method label --json > /dev/full", "answer cannot be written"),
        ("--help > /dev/full", "answer cannot be written"),
    ],
)
def test_a_standard_stream_that_cannot_be_used_is_one_message(
    prompts: Path, tmp_path: Path, words: str, message: str
) -> None:
    command = f"{sys.executable} -m orderproof.cli {words.format(prompts=prompts)}"
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(command, cwd=tmp_path, env=buffered, shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert message in done.stderr


def test_a_closed_standard_input_is_nothing_to_a_command_that_reads_files(prompts: Path, tmp_path: Path) -> None:
    command = f"{sys.executable} -m orderproof.cli order {prompts} -o sorted.jsonl --method label <&-"
    subprocess.run(command, cwd=tmp_path, shell=True, check=True)
    assert (tmp_path / "sorted.jsonl").read_bytes()


def test_a_prefect_home_that_cannot_be_written_is_told_at_once(tmp_path: Path) -> None:
    job = make_project(tmp_path / "p", 3)
    (tmp_path / "file").touch()
    command = [sys.executable, "-m", "orderproof.cli", "generate", job.name]
    env = {**os.environ, "PREFECT_HOME": str(tmp_path / "file" / "prefect")}
    done = subprocess.run(command, cwd=job.root, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"orderproof: PREFECT_HOME, {tmp_path / 'file' / 'prefect'}: Not a directory. Mend")
