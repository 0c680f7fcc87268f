"""A batch file's outputs: lines of OpenAI's format beside outputs.parquet. The engine is the stand-in."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from orderproof.engines.protocol import Completion
from orderproof.generate import delivery
from orderproof.generate.checkpoint_folder import FOLDER
from orderproof.generate.delivery import DeliveryError
from orderproof.generate.openai_outputs import BatchLines
from orderproof.generate.result import Result
from orderproof.job.paths import OUTPUTS_BATCH_FILE, OUTPUTS_FILE
from orderproof.job.spec import Job
from orderproof.prompts.openai_body import CHAT, COMPLETIONS
from orderproof.prompts.prompt import Prompt
from orderproof.prompts.stream import Stream
from tests.support.batches import count, generate, make_batch_job, promote_label_order, write_prompts

LINES = BatchLines("main", {}, "md5", 7)
LIKELY = [[(3, -0.5, "é"), (4, -1.0, "b")], [(5, -9999.0, "c"), (3, -0.25, "é")]]


def line_of(prompt: Prompt, result: Result) -> dict[str, Any]:
    line = LINES.line(prompt, result)
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    parsed: dict[str, Any] = json.loads(line)
    return parsed


def asked(endpoint: str = CHAT, **fields: Any) -> Prompt:
    return Prompt("a", "t", endpoint=endpoint, **fields)


def made(*completions: Completion, **fields: Any) -> Result:
    return Result(0, "a", 5, 2, len(completions) or 1, completions, **fields)


def test_a_chat_is_answered_with_its_samples_and_what_they_cost() -> None:
    line = line_of(asked(), made(Completion([3, 5], "é\u2028c", "stop", "\n"), Completion([4], "b", "length")))
    body = line["response"]["body"]
    assert (line["custom_id"], line["error"], line["response"]["status_code"]) == ("a", None, 200)
    assert (body["object"], body["model"], body["created"]) == ("chat.completion", "main", 7)
    assert [(c["index"], c["message"]["content"], c["finish_reason"], c["stop_reason"]) for c in body["choices"]] == [
        (0, "é\u2028c", "stop", "\n"),
        (1, "b", "length", None),
    ]
    assert body["usage"] == {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}


def test_a_completion_is_answered_with_text_under_the_name_of_its_adapter() -> None:
    body = line_of(asked(COMPLETIONS, lora="tone"), made(Completion([3], "é", "stop")))["response"]["body"]
    assert (body["object"], body["model"], body["choices"][0]["text"]) == ("text_completion", "tone", "é")


def test_probabilities_are_told_as_vllm_tells_them() -> None:
    result = made(Completion([3, 5], "éc", "stop", logprobs=LIKELY))
    chat = line_of(asked(sampling={"logprobs": 1}), result)["response"]["body"]["choices"][0]["logprobs"]
    assert [(t["token"], t["logprob"], t["bytes"], len(t["top_logprobs"])) for t in chat["content"]] == [
        ("é", -0.5, [195, 169], 1),
        ("c", -9999.0, [99], 1),
    ]
    text = line_of(asked(COMPLETIONS, sampling={"logprobs": 1}), result)["response"]["body"]["choices"][0]["logprobs"]
    assert text == {
        "text_offset": [0, 1],
        "token_logprobs": [-0.5, -9999.0],
        "tokens": ["é", "c"],
        "top_logprobs": [{"é": -0.5, "b": -1.0}, {"c": -9999.0, "é": -0.25}],
    }


@pytest.mark.parametrize(("code", "kind"), [(400, "BadRequestError"), (500, "InternalServerError")])
def test_a_failure_has_its_reason_and_a_code(code: int, kind: str) -> None:
    line = line_of(asked(), made(error="too long", code=code))
    assert (line["response"]["status_code"], line["response"]["body"]) == (code, None)
    assert line["error"]["error"] == {"message": "too long", "type": kind, "param": None, "code": code}


def test_an_output_that_was_cut_short_is_there_and_says_so() -> None:
    line = line_of(asked(), made(Completion([3], "é", "length"), error="cut short"))
    assert line["response"]["body"]["choices"][0]["message"]["content"] == "é"
    assert line["error"]["error"]["message"] == "cut short"


def test_the_table_has_what_stopped_an_output_and_the_probabilities_of_its_tokens() -> None:
    by_text, by_token = Completion([3, 5], "éc", "stop", "\n", LIKELY), Completion([5], "c", "stop", 5)
    first, second, failed = delivery.outputs_table([made(by_text, by_token), made(error="no")]).to_pylist()
    assert [(row["stop_reason"], row["stop_token_id"]) for row in (first, second, failed)] == [
        ("\n", None),
        (None, 5),
        (None, None),
    ]
    assert first["logprobs"][0][1] == {"token_id": 4, "logprob": -1.0, "text": "b"}
    assert (second["logprobs"], failed["logprobs"], failed["text"]) == (None, None, None)


# A whole batch


def lines_in(job: Job) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (job.data_dir / OUTPUTS_BATCH_FILE).read_bytes().splitlines()]


def test_a_batch_file_comes_back_in_its_order_with_every_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "ROWS_PER_GROUP", 16)
    job = make_batch_job(tmp_path / "p", 60, tolerated_failures=0.05)
    promote_label_order(job)
    run = generate(job)
    lines, table = lines_in(job), pq.read_table(job.data_dir / OUTPUTS_FILE).to_pylist()
    assert [line["custom_id"] for line in lines] == [f"r{k}" for k in range(60)]
    assert count(run, "failed") == (1,)
    assert lines[20]["error"]["error"]["code"] == 400
    texts = [
        choice["message"]["content"] if "message" in choice else choice["text"]
        for line in lines
        if line["response"]["body"]
        for choice in line["response"]["body"]["choices"]
    ]
    assert texts == [row["text"] for row in table if row["finish_reason"] != "failed"]
    assert [len(line["response"]["body"]["choices"]) for line in lines[:6]] == [1, 2, 3, 1, 2, 3]
    assert [line["response"]["body"]["usage"]["completion_tokens"] for line in lines[:3]] == [1, 4, 9]


def test_a_batch_file_may_come_as_a_stream(tmp_path: Path) -> None:
    job = make_batch_job(tmp_path / "p", 30, tolerated_failures=0.1)
    source = tmp_path / "requests.jsonl"
    job.prompts_path.rename(source)
    generate(job, stream=Stream(str(source)))
    (answers,) = job.root.rglob(OUTPUTS_BATCH_FILE)
    assert [json.loads(line)["custom_id"] for line in answers.read_bytes().splitlines()] == [f"r{k}" for k in range(30)]


def test_outputs_of_an_earlier_batch_file_do_not_stay_beside_those_of_other_prompts(tmp_path: Path) -> None:
    job = make_batch_job(tmp_path / "p", 12)
    generate(job)
    assert len(lines_in(job)) == 12
    write_prompts(job, ["a", "b"])
    generate(job)
    assert not (job.data_dir / OUTPUTS_BATCH_FILE).exists()


def test_neither_file_is_replaced_before_both_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_batch_job(tmp_path / "p", 12)
    written, replace = [], os.replace

    def replace_and_look(part: str, path: Path) -> None:
        if path.name in (OUTPUTS_FILE, OUTPUTS_BATCH_FILE):
            written.append({one.name.split(".")[2]: one.stat().st_size for one in job.data_dir.glob(".outputs.*.part")})
        replace(part, path)

    monkeypatch.setattr(os, "replace", replace_and_look)
    generate(job)
    sizes = {name.split(".")[1]: (job.data_dir / name).stat().st_size for name in (OUTPUTS_FILE, OUTPUTS_BATCH_FILE)}
    assert written == [sizes, {"parquet": sizes["parquet"]}]


@pytest.mark.usefixtures("no_tracker")
def test_a_disk_that_is_full_leaves_both_files_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_batch_job(tmp_path / "p", 12)
    generate(job)
    before = [(job.data_dir / name).read_bytes() for name in (OUTPUTS_FILE, OUTPUTS_BATCH_FILE)]
    with monkeypatch.context() as patch:
        patch.setattr(BatchLines, "line", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(DeliveryError, match="No space left"):
            generate(job)
    assert [(job.data_dir / name).read_bytes() for name in (OUTPUTS_FILE, OUTPUTS_BATCH_FILE)] == before
    assert (job.data_dir / FOLDER).is_dir()
    assert not list(job.data_dir.glob(".outputs.*.part"))
    assert count(generate(job), "resumed", "generated") == (12, 0)
