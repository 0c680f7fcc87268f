"""Nothing is spent on prompts that cannot run, and no output goes missing unnoticed."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from orderproof.job.spec import EngineSpec, GenerateSpec, Job, JobError, OrderSpec
from orderproof.prompts.prompt import PromptError
from orderproof.prompts.tokenization import TokenizedPrompts
from orderproof.validation.validate import ValidationFailed, validate_outputs, validate_prompts
from tests.support.tiny_tokenizer import MODEL_TOKENS, TEMPLATE, job_of, save_model

MAX_TOKENS = 16  # vLLM's default
LONGEST = MODEL_TOKENS - MAX_TOKENS - 1  # bytes of text that fit: a byte is a token, and one marks the beginning


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made once, and Great Expectations imported once, for all tests of this file."""
    import great_expectations  # noqa: F401

    folder = tmp_path_factory.mktemp("model")
    save_model(folder, TEMPLATE)
    return folder


@pytest.fixture
def validate(tmp_path: Path, model: Path) -> Callable[..., TokenizedPrompts]:
    """Write rows, validate them; findings go to tmp_path / "found"."""

    def call(rows: Sequence[Any], model: Path = model, **changes: Any) -> TokenizedPrompts:
        lines = [row if isinstance(row, bytes) else json.dumps(row).encode() + b"\n" for row in rows]
        (tmp_path / "prompts.jsonl").write_bytes(b"".join(lines))
        return validate_prompts(job_of(tmp_path / "prompts.jsonl", model, **changes), tmp_path / "found")

    return call


def row(id: Any, text: Any = "hello", **fields: Any) -> dict[str, Any]:
    return {"id": id, "text": text, **fields}


def refusal(call: Callable[..., Any], *arguments: Any, **changes: Any) -> str:
    with pytest.raises(ValidationFailed) as caught:
        call(*arguments, **changes)
    return str(caught.value)


def kept(folder: Path, stem: str = "validation") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"{stem}.json").read_text())
    return found


def page(folder: Path, stem: str = "validation") -> str:
    return (folder / stem / "index.html").read_text()


class _Words(HTMLParser):
    """Text, tags and addresses of a page as a browser meets them."""

    def __init__(self, source: str):
        super().__init__()
        self.text, self.tags, self.addresses, self.hidden = "", set[str](), set[str](), False
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.hidden = tag == "style"
        self.addresses |= {value or "" for name, value in attrs if name in ("src", "href")}

    def handle_data(self, data: str) -> None:
        self.text += "" if self.hidden else data


# Prompts


def test_valid_prompts_come_back_tokenized_and_the_findings_are_kept(validate: Any, tmp_path: Path) -> None:
    prompts = validate([row("a"), row("b", [{"role": "user", "content": "Hi"}], label="x")])
    assert prompts.ids == ["a", "b"]
    found = kept(tmp_path / "found")
    assert (found["valid"], found["message"], found["prompts"]) == (True, "", 2)
    assert found["prompt_tokens"] == int(prompts.offsets[-1])
    assert found["great_expectations"]["success"] is True
    assert all(check["success"] for check in found["checks"])
    assert "8 of 8 expectations" in page(tmp_path / "found")


FLAWED = [b"{\n", row("no text", None), {"text": "no id"}, row("long", "x" * MODEL_TOKENS),
          row("refused", [{"role": "tool", "content": "x"}])]  # fmt: skip


def tolerating(share: float) -> GenerateSpec:
    return GenerateSpec(tolerated_failures=share)


@pytest.mark.parametrize("flawed", FLAWED)
def test_as_many_bad_rows_as_are_tolerated_are_left_out_and_named(
    validate: Any, tmp_path: Path, flawed: Any, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [row(k) for k in range(9)]
    prompts = validate([*rows[:4], flawed, *rows[4:]], generate=tolerating(0.1))
    assert prompts.ids == [str(k) for k in range(9)]
    assert prompts.lines.tolist() == [1, 2, 3, 4, 6, 7, 8, 9, 10]
    assert prompts.rows_left_out == 1
    found = kept(tmp_path / "found")
    assert (found["valid"], found["prompts"], found["left_out"]) == (True, 9, 1)
    assert "1 of 10 lines are left out, and `tolerated_failures` under `generate` in params.yaml is 0.1" in caplog.text
    assert re.search(r"left out: .*line 5", prompts.notices[-1])
    assert "line 5" not in caplog.text, "log lines reach Prefect"
    assert "left out: 1" in _Words(page(tmp_path / "found")).text


def test_more_bad_rows_than_are_tolerated_are_refused_with_the_share_that_would_do(validate: Any) -> None:
    rows = [*FLAWED[:2], *(row(k) for k in range(18))]
    message = refusal(validate, rows, generate=tolerating(0.05))
    assert message.endswith("set `tolerated_failures` to 0.1: now, `tolerated_failures` under `generate` in "
                            "params.yaml is 0.05")  # fmt: skip
    assert len(validate(rows, generate=tolerating(0.1))) == 18


def test_what_is_wrong_with_a_file_is_never_tolerated(validate: Any) -> None:
    for rows in ([row("a"), b'{"id": "b", "te'], [row("a"), row("a")], [], [b"{\n"]):
        assert "tolerated" not in refusal(validate, rows, generate=tolerating(1))


def test_one_single_prompt_is_valid(validate: Any) -> None:
    assert len(validate([row("a")])) == 1


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], ["prompts.jsonl: is empty. Give at least one prompt"]),
        ([b" \n\n"], ["only blank lines"]),
        ([row("a"), row("b"), row("a")],
         ["duplicate id (2 of 3): line 1 (id 'a'), first use; line 3 (id 'a'), first on line 1"]),
        ([row("1"), row(1)], ["line 2 (id '1'), first on line 1"]),
        ([row("a", None)], ["no text (1 of 1): line 1 (id 'a'), `text` is null"]),
        ([row("a"), {"id": "b"}, row("c", "")],
         ["no text (2 of 3): line 2 (id 'b'), has no `text`; there are 'id'; line 3 (id 'c'), `text` is empty"]),
        ([row("a"), {"text": "x"}], ["no id (1 of 2): line 2, has no `id`"]),
        ([row("a"), b'{"id": "b", "te'], ["cut off (1 of 2): line 2, the last line is cut off"]),
        ([row("a"), b'{"id": "b", "text": "caf\xe9"}\n'],
         ["not a prompt (1 of 2): line 2, byte 0xe9", "iconv -f latin1"]),
        ([row("a"), row("b", "x\0")], ["not a prompt (1 of 2): line 2 (id 'b'), `text` holds a NUL"]),
        ([row("a"), row("b", "x" * (LONGEST + 1))],
         [f"too long for the model (1 of 2): line 2 (id 'b'), {LONGEST + 2} tokens and 16 for the output exceed 64",
          "raise engine.args.max_model_len of jobs.tried"]),
    ],
)  # fmt: skip
def test_bad_prompts_are_named_by_file_line_and_id(
    validate: Any, tmp_path: Path, rows: list[Any], words: list[str]
) -> None:
    message = refusal(validate, rows)
    assert message.count("\n") == 0
    assert message.startswith(str(tmp_path / "prompts.jsonl"))
    for part in words:
        assert part in message
    assert kept(tmp_path / "found")["valid"] is False
    assert kept(tmp_path / "found")["message"] == message


def test_what_should_be_known_of_rows_that_are_used_is_kept_logged_and_shown(
    validate: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prompts = validate([row("a"), row("b", max_tokens=5), row("c", max_tokens=5)])
    (notice,) = prompts.notices
    assert "`max_tokens` is not read" in notice
    assert "(line 2 and 1 more)" in notice
    assert kept(tmp_path / "found")["notices"] == [notice]
    assert notice in caplog.text
    assert notice in _Words(page(tmp_path / "found")).text


def test_all_flaws_of_a_file_are_named_at_once_in_one_line_each(validate: Any) -> None:
    rows = [row("a"), b"{\n", row("b", None), {"text": "x"}, row("a"), row("c", "x" * MODEL_TOKENS)]
    lines = refusal(validate, rows).splitlines()
    assert [re.findall(r"line (\d+)", text) for text in lines] == [["2"], ["4"], ["1", "5", "1"], ["3"], ["6"]]


def test_of_many_flaws_the_first_five_are_named_and_the_rest_is_counted(validate: Any, tmp_path: Path) -> None:
    message = refusal(validate, [row(i, "x" * MODEL_TOKENS) for i in range(40)])
    assert re.findall(r"line (\d+) ", message) == ["1", "2", "3", "4", "5"]
    assert "(40 of 40)" in message
    assert "and 35 more" in message
    assert len(page(tmp_path / "found")) < 60_000
    assert len(json.dumps(kept(tmp_path / "found"))) < 60_000


@pytest.mark.parametrize("spare", [0, -1])
@pytest.mark.parametrize(
    ("job_sampling", "own", "asked"),
    [
        ({}, None, 16),
        ({"max_tokens": 30}, None, 30),
        ({"max_tokens": 30}, {"temperature": 1}, 30),
        ({"max_tokens": 30}, {"max_tokens": 3}, 3),
        ({"max_tokens": None}, None, 1),
        ({"max_tokens": 3}, {"max_tokens": None}, 1),
    ],
)
def test_prompt_and_asked_output_must_fit_into_the_model_to_the_token(
    validate: Any, spare: int, job_sampling: dict[str, Any], own: dict[str, Any] | None, asked: int
) -> None:
    rows = [row("a", "x" * (MODEL_TOKENS - 1 - asked - spare), sampling=own)]
    if spare == 0:
        assert validate(rows, sampling=job_sampling).lengths.tolist() == [MODEL_TOKENS - asked]
    else:
        assert "too long" in refusal(validate, rows, sampling=job_sampling)


def test_the_engines_own_length_goes_before_the_models(validate: Any) -> None:
    rows = [row("a", "x" * LONGEST)]
    validate(rows)
    assert "exceed 63" in refusal(validate, rows, engine=EngineSpec(args={"max_model_len": 63}))
    validate([row("a", "x" * 100)], engine=EngineSpec(args={"max_model_len": 117}))
    assert "exceed 64" in refusal(validate, [row("a", "x" * 100)], engine=EngineSpec(args={"max_model_len": -1}))


def test_a_model_without_a_length_needs_it_from_the_job(validate: Any, tmp_path: Path) -> None:
    save_model(tmp_path / "silent")
    (tmp_path / "silent/config.json").write_text('{"model_type": "qwen3_moe"}')
    with pytest.raises(JobError, match=r"set jobs\.tried\.engine\.args\.max_model_len"):
        validate([row("a")], model=tmp_path / "silent")


@pytest.mark.parametrize("tokens", [0, True, 1.5])
def test_a_jobs_unusable_max_tokens_is_named(validate: Any, tokens: Any) -> None:
    with pytest.raises(JobError, match=r"jobs\.tried\.sampling\.max_tokens must be a whole number"):
        validate([row("a")], sampling={"max_tokens": tokens})


def test_a_prompt_of_no_tokens_is_refused(validate: Any, tmp_path: Path) -> None:
    save_model(tmp_path / "bare", chat_template="{{ '' }}")
    message = refusal(validate, [row("a", [{"role": "user", "content": "x"}])], model=tmp_path / "bare")
    assert "no tokens (1 of 1): line 1 (id 'a')" in message


def test_labels_are_needed_exactly_where_a_label_order_is_asked(validate: Any) -> None:
    rows = [row("a", label="x"), row("b"), row("c", label="")]
    validate(rows, order=OrderSpec(method="cluster"))
    message = refusal(validate, rows, order=OrderSpec(method="label"))
    assert "no label (2 of 3): line 2 (id 'b'); line 3 (id 'c'). Label every prompt, or choose another order" in message
    validate(rows[:1], order=OrderSpec(method="label"))


def test_what_cannot_be_read_at_all_is_kept_as_a_finding_too(validate: Any, tmp_path: Path, model: Path) -> None:
    validate([row("a")])
    absent = job_of(tmp_path / "absent.jsonl", model)
    with pytest.raises(PromptError, match="does not exist"):
        validate_prompts(absent, tmp_path / "found")
    found = kept(tmp_path / "found")
    assert (found["valid"], found["checks"]) == (False, [])
    assert "absent.jsonl: does not exist" in found["message"]
    assert not (tmp_path / "found/validation/index.html").exists()  # the page of the valid file would contradict it


def test_no_text_of_a_prompt_goes_into_what_is_kept(validate: Any, tmp_path: Path) -> None:
    secret = "unpublished words"
    rows = [
        row("a", secret),
        row("a", secret),
        row("b", secret + "\0"),
        row("c", secret * 9, label=secret, note=secret),
    ]
    message = refusal(validate, [*rows, b'{"id": "d", "text": "' + secret.encode() + b' \\e"}\n'])
    for place in (message, json.dumps(kept(tmp_path / "found")), page(tmp_path / "found")):
        assert "line 4" in place
        assert secret not in place


def test_the_page_names_file_line_and_id_and_fetches_nothing(validate: Any, tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>${x}&amp;"
    refusal(validate, [row(hostile), row(hostile), row("b", "x" * MODEL_TOKENS)])
    shown = _Words(page(tmp_path / "found"))
    assert "Prompts of prompts.jsonl" in shown.text
    assert f"line 2 (id '{hostile}'), first on line 1" in shown.text
    assert "No two prompts have the same id" in shown.text
    assert f"fit into the model's {MODEL_TOKENS} tokens" in shown.text
    assert "script" not in shown.tags
    assert not {a for a in shown.addresses if not a.startswith("#")}


def test_nothing_half_written_stays_and_nothing_goes_elsewhere(
    validate: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "home")
    for rows in ([row("a")], [row("a"), row("a")]):
        with pytest.raises(ValidationFailed) if len(rows) > 1 else contextlib.nullcontext():
            validate(rows)
        files = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file())
        assert files == ["found/validation.json", "found/validation/index.html", "prompts.jsonl"]


def test_parquet_is_validated_by_row(tmp_path: Path, model: Path) -> None:
    import pyarrow.parquet as pq

    path = tmp_path / "prompts.parquet"
    pq.write_table(pa.table({"id": ["a", "b", "b"], "text": ["x", "y", None]}), path)
    message = refusal(validate_prompts, job_of(path, model), tmp_path / "found")
    assert "no text (1 of 3): row 3 (id 'b'), `text` is null" in message
    assert "row 3 (id 'b'), first on row 2" in message


def test_a_check_that_cannot_be_evaluated_is_not_taken_for_a_failure_of_the_data(
    validate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from orderproof.validation import prompt_suite

    build_frame = prompt_suite.build_frame

    def without_lengths(job: Job, prompts: TokenizedPrompts, flaws: Any) -> Any:
        return build_frame(job, prompts, flaws).drop(columns="total_tokens")

    monkeypatch.setattr(prompt_suite, "build_frame", without_lengths)
    with pytest.raises(RuntimeError, match="ExpectColumnValuesToBeBetween could not be evaluated"):
        validate([row("a")])


# Outputs

IDS = [f"p{i}" for i in range(6)]


def outputs(ids: Sequence[str | None] = IDS, **columns: Any) -> pa.Table:
    n = len(ids)
    defaults = {"n_tokens": [16] * n, "asked_tokens": [16] * n, "finish_reason": ["length"] * n}
    return pa.table({"id": pa.array(ids, pa.string()), **defaults, **columns})


def test_whole_outputs_are_valid_whether_they_stopped_or_were_as_long_as_asked(tmp_path: Path) -> None:
    table = outputs(
        n_tokens=[16, 3, 16, 16, 700, 0],
        asked_tokens=pa.array([16, 16, 16, 16, None, 16]),
        finish_reason=["length", "stop", "length", "stop", "length", "stop"],
    )
    validate_outputs(IDS, table, tmp_path)
    validate_outputs(IDS, table.to_pandas().set_index(np.arange(6) * 7), tmp_path)
    assert kept(tmp_path, "outputs_validation")["valid"] is True
    assert "7 of 7 expectations" in page(tmp_path, "outputs_validation")


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (outputs(IDS[:4]), ["outputs: 4 outputs for 6 prompts, none for 'p4', 'p5'. Run the job again"]),
        (outputs([]), ["0 outputs for 6 prompts, none for 'p0', 'p1', 'p2', 'p3', 'p4' …"]),
        (outputs([*IDS, "p5"]),
         ["7 outputs for 6 prompts", "more than one output (2 of 7): row 6 (id 'p5'); row 7 (id 'p5')"]),
        (outputs([*IDS[:5], "p0"]),
         ["more than one output (2 of 6): row 1 (id 'p0')", "not in the file's order (1 of 6): row 6"]),
        (outputs([*IDS[:5], "zz"]), ["output without a prompt (1 of 6): row 6 (id 'zz')"]),
        (outputs([*IDS[:5], None]), ["output without a prompt (1 of 6): row 6"]),
        (outputs(IDS[::-1]), ["not in the file's order (5 of 6): row 2 (id 'p4')"]),
        (outputs(n_tokens=[16, 12, 16, 16, 16, 16]), ["cut short (1 of 6): row 2 (id 'p1'), 12 of 16 tokens"]),
        (outputs(finish_reason=["length", "failed", None, "abort", "stop", "stop"]),
         ["not finished (3 of 6): row 2 (id 'p1'), finish reason 'failed'; row 3"]),
    ],
)  # fmt: skip
def test_outputs_that_miss_repeat_move_or_shorten_are_named(tmp_path: Path, table: pa.Table, words: list[str]) -> None:
    message = refusal(validate_outputs, IDS, table, tmp_path)
    for part in words:
        assert part in message
    assert len(message.splitlines()) == len(words)
    assert kept(tmp_path, "outputs_validation")["message"] == message


def samples(ids: Sequence[str], of: Sequence[int], n: Sequence[int]) -> pa.Table:
    return outputs(ids, sample=list(of), n=list(n))


def test_a_prompt_has_as_many_outputs_as_samples_were_asked_of_it(tmp_path: Path) -> None:
    validate_outputs(["a", "b", "c"], samples("aabccc", [0, 1, 0, 0, 1, 2], [2, 2, 1, 3, 3, 3]), tmp_path)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (samples("abb", [0, 0, 1], [2, 2, 2]), ["3 outputs for 2 prompts that ask for 4"]),
        (samples("aabb", [0, 0, 0, 1], [2, 2, 2, 2]), ["more than one output (2 of 4): row 1 (id 'a'); row 2"]),
        (samples("aabb", [0, 2, 0, 1], [2, 2, 2, 2]), ["not asked (1 of 4): row 2 (id 'a'), sample 2 of 2"]),
        (samples("aabb", [1, 0, 0, 1], [2, 2, 2, 2]), ["not in the file's order (1 of 4): row 2 (id 'a')"]),
        (samples("abab", [0, 0, 1, 1], [2, 2, 2, 2]), ["not in the file's order (1 of 4): row 3 (id 'a')"]),
        (samples("aa", [0, 1], [2, 2]), ["2 outputs for 2 prompts that ask for 3, none for 'b'"]),
    ],
)  # fmt: skip
def test_samples_that_miss_repeat_or_move_are_named(tmp_path: Path, table: pa.Table, words: list[str]) -> None:
    message = refusal(validate_outputs, ["a", "b"], table, tmp_path)
    for part in words:
        assert part in message
    assert len(message.splitlines()) == len(words)


def test_a_failure_that_is_on_record_with_its_prompt_is_not_unnoticed(tmp_path: Path) -> None:
    broken = {"n_tokens": [0, 5, 16, 16, 16, 16], "finish_reason": ["failed", "length", "stop", "stop", "stop", "stop"]}
    on_record = pa.array(["the model refused it", "cut short", None, None, None, None])
    validate_outputs(IDS, outputs(**broken, error=on_record), tmp_path)
    message = refusal(validate_outputs, IDS, outputs(**broken, error=pa.nulls(6, pa.string())), tmp_path)
    assert len(message.splitlines()) == 2


def test_findings_on_outputs_leave_those_on_prompts_alone(validate: Any, tmp_path: Path) -> None:
    validate([row("a")])
    before = (tmp_path / "found/validation.json").read_bytes()
    refusal(validate_outputs, ["a", "b"], outputs(["a"]), tmp_path / "found", source="data/tried/outputs.parquet")
    assert (tmp_path / "found/validation.json").read_bytes() == before
    assert (
        "data/tried/outputs.parquet: 1 output for 2 prompts"
        in kept(tmp_path / "found", "outputs_validation")["message"]
    )


@pytest.mark.parametrize("broken", [False, True])
def test_a_hundred_thousand_outputs_are_checked_with_bounded_findings(tmp_path: Path, broken: bool) -> None:
    ids = [f"p{i}" for i in range(100_000)]
    table = outputs(ids, n_tokens=[3 if broken else 16] * len(ids))
    if broken:
        message = refusal(validate_outputs, ids, table, tmp_path)
        assert "(100000 of 100000)" in message
        assert len(message) < 1000
    else:
        validate_outputs(ids, table, tmp_path)
    assert (tmp_path / "outputs_validation.json").stat().st_size < 60_000
    assert (tmp_path / "outputs_validation/index.html").stat().st_size < 60_000
