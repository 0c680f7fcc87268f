"""`order` and `restore`: any tool's rows in another order and back, byte for byte."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.checkpoint_file import save_tensors
from tests.support.command_line import RunCommand
from tests.support.tiny_tokenizer import save_model


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
def test_what_was_sorted_comes_back_byte_for_byte(run: RunCommand, prompts: Path, how: tuple[str, ...]) -> None:
    method, *options = how
    ordered = run("order", prompts, "-o", "sorted.jsonl", "--method", method, *options)
    assert ordered.code == 0
    rows, changed = prompts.read_text().splitlines(), Path("sorted.jsonl").read_text().splitlines()
    assert sorted(changed) == sorted(rows)
    assert (changed == rows) == (method == "file")
    restored = run("restore", "sorted.jsonl", "--like", prompts, "-o", "back.jsonl")
    assert (restored.code, "20 outputs" in restored.out) == (0, True)
    assert Path("back.jsonl").read_bytes() == prompts.read_bytes()


def test_an_order_for_machines_is_one_object(run: RunCommand, prompts: Path) -> None:
    answer = run("order", prompts, "-o", "sorted.jsonl", "--method", "label", "--json").json
    assert (answer["rows"], answer["order"], answer["output"], len(answer["sha256"])) == (
        20,
        "label",
        "sorted.jsonl",
        64,
    )


@pytest.mark.parametrize(("options", "most"), [((), "20"), (("--window", "10"), "2")])
def test_more_clusters_than_prompts_become_fewer_with_a_note(
    run: RunCommand, prompts: Path, options: tuple[str, ...], most: str
) -> None:
    how = ("order", prompts, "-o", "sorted.jsonl", "--method", "lexical", *options)
    (note,) = run(*how, "--clusters", "21", "--json").json["notes"]
    assert "21" in note
    assert f"at most {most} " in note
    assert f"note: {note}" in run(*how, "--clusters", "21").out
    assert run(*how, "--clusters", "2", "--json").json["notes"] == []


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save_tensors(
        tmp_path / "models" / "it" / "model.safetensors", model__embed_tokens__weight=np.eye(300, 16, dtype=np.float32)
    )
    save_model(tmp_path / "models" / "it")
    return tmp_path / "models" / "it"


def test_a_signals_name_is_short_for_clusters_by_that_signal(run: RunCommand, prompts: Path, model: Path) -> None:
    short = run("order", prompts, "--method", "token", "--model", model, "-o", "sorted.jsonl", "--json").json
    explicit = run("order", prompts, "--signal", "token", "--model", model, "-o", "sorted.jsonl", "--json").json
    assert short == explicit
    assert (short["order"], short["parameters"]) == ("cluster", {"clusters": 16, "signal": "token"})
    assert 0 < short["purity"] <= 1
    run("order", prompts, "--method", "token", "--signal", "lexical", "-o", "x.jsonl").assert_refused(1, "contradict")


def test_the_model_is_that_of_the_job_whose_prompts_these_are(run: RunCommand, prompts: Path, model: Path) -> None:
    run("order", prompts, "--method", "token", "-o", "sorted.jsonl").assert_refused(1, "--model FOLDER")
    job = "{prompts: prompts.jsonl, model: models/it, engine: {args: {max_num_seqs: 4}}}"
    Path("params.yaml").write_text(f"defaults: {{}}\njobs:\n  it: {job}\n")
    assert run("order", prompts, "--method", "token", "-o", "sorted.jsonl").code == 0
    run("order", prompts, "--method", "predicted", "-o", "sorted.jsonl").assert_refused(1, "orderproof capture JOB")


def test_another_tools_params_file_is_not_read_where_no_model_is_needed(run: RunCommand, prompts: Path) -> None:
    Path("params.yaml").write_text("train: {epochs: 3}\n")
    assert run("order", prompts, "--method", "label", "-o", "sorted.jsonl").code == 0
    run("order", prompts, "--method", "token", "-o", "sorted.jsonl").assert_refused(2, "params.yaml")


def test_standard_streams_carry_rows_alone(run: RunCommand, prompts: Path) -> None:
    ordered = run("order", prompts, "-o", "-", "--method", "label")
    Path("sorted.jsonl").write_text(ordered.out)
    restored = run("restore", "sorted.jsonl", "--like", prompts)
    assert (restored.out, restored.err) == (prompts.read_text(), "")


@pytest.mark.parametrize("row", ["", "nothing\n", '{"text": "x"}\n', '{"id": "p0", "text": null}\n'])
def test_rows_that_cannot_be_sorted_are_one_line_and_nothing_half_written_stays(
    run: RunCommand, tmp_path: Path, row: str
) -> None:
    (tmp_path / "bad.jsonl").write_text(row)
    run("order", "bad.jsonl", "-o", "sorted.jsonl", "--method", "length").assert_refused(1, "bad.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.jsonl"]


def test_outputs_that_lack_a_prompt_are_refused_by_name(run: RunCommand, prompts: Path) -> None:
    Path("outputs.jsonl").write_text("".join(prompts.read_text().splitlines(keepends=True)[1:]))
    run("restore", "outputs.jsonl", "--like", prompts, "-o", "back.jsonl").assert_refused(1, "p0")
    assert not Path("back.jsonl").exists()


def test_a_file_that_is_not_there_is_one_line(run: RunCommand) -> None:
    run("order", "none.jsonl", "-o", "sorted.jsonl").assert_refused(1, "none.jsonl")
