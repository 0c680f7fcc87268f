"""The same batch file through vLLM's own `run-batch` and through `orderproof generate`: the same answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orderproof.job.paths import OUTPUTS_BATCH_FILE
from orderproof.job.spec import EngineSpec, Job
from orderproof.prompts.openai_body import CHAT
from tests.support.batches import generate, make_real_project, promote_label_order

pytestmark = [pytest.mark.engine, pytest.mark.long]

WORDS = ("Add 17 and 25", "Name a river", "Sort these: c a b", "Translate: good morning", "Why is the sky blue?")
# Greedy, so that only the batch's company can move an output; what is drawn at random has a seed.
BODIES: list[dict[str, Any]] = [
    {"temperature": 0, "max_tokens": 12},
    {"temperature": 0, "max_completion_tokens": 5, "stop": ["e"]},
    {"temperature": 0, "max_tokens": 8, "ignore_eos": True, "min_tokens": 8},
    {"temperature": 0, "max_tokens": 20, "response_format": {"type": "json_schema", "json_schema": {
        "name": "n", "schema": {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"],
                                "additionalProperties": False}}}},
    {"temperature": 0, "max_tokens": 6, "logprobs": True, "top_logprobs": 2},
    {"temperature": 0, "max_tokens": 6, "structured_outputs": {"choice": ["yes", "no"]}},
    {"temperature": 0, "max_tokens": 9, "repetition_penalty": 1.3, "frequency_penalty": 0.5},
    {"temperature": 0, "max_tokens": 6, "logit_bias": {"70": 100}},
]  # fmt: skip


def rows() -> list[dict[str, Any]]:
    return [
        {
            "custom_id": f"r{k:02d}",
            "method": "POST",
            "url": CHAT,
            "body": {"messages": [{"role": "user", "content": f"{WORDS[k % 5]} ({k})"}], **BODIES[k % len(BODIES)]},
            "label": WORDS[k % 5],
        }
        for k in range(40)
    ]


def with_run_batch(job: Job, spec: EngineSpec, out: Path) -> list[dict[str, Any]]:
    flags = [f"--max-num-seqs={spec.args['max_num_seqs']}", f"--max-model-len={spec.args['max_model_len']}"]
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.run_batch"),
        *("-i", str(job.prompts_path), "-o", str(out), "--model", str(job.model_path)),
        *(f"--dtype={spec.args['dtype']}", "--enforce-eager", *flags),
    ]
    env = {**os.environ, **spec.env, "VLLM_LOGGING_LEVEL": "WARNING"}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in out.read_bytes().splitlines()]


def choices(line: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [
        (c["index"], c["message"]["role"], c["message"]["content"], c["finish_reason"], c["stop_reason"])
        for c in line["response"]["body"]["choices"]
    ]


def test_generate_answers_a_batch_file_as_run_batch_does(
    tmp_path: Path, models: dict[str, Path], engine_spec: EngineSpec
) -> None:
    job = make_real_project(tmp_path / "p", models["moe"], engine_spec, {}, [])
    job.prompts_path.write_text("".join(json.dumps(row) + "\n" for row in rows()))
    theirs = with_run_batch(job, engine_spec, tmp_path / "theirs.jsonl")
    promote_label_order(job)
    generate(job)
    ours = [json.loads(line) for line in (job.data_dir / OUTPUTS_BATCH_FILE).read_bytes().splitlines()]

    assert [line["custom_id"] for line in ours] == [line["custom_id"] for line in theirs] == [
        row["custom_id"] for row in rows()
    ]  # fmt: skip
    assert [line["response"]["status_code"] for line in theirs] == [200] * 40
    different = [one["custom_id"] for one, other in zip(ours, theirs, strict=True) if choices(one) != choices(other)]
    # Batches are composed otherwise here and there, and the last bits of a sum decide between near equals.
    assert len(different) <= 2, different
    for one, other in zip(ours, theirs, strict=True):
        body, their_body = one["response"]["body"], other["response"]["body"]
        assert set(body) <= set(their_body)
        assert body["object"] == their_body["object"]
        assert body["usage"]["prompt_tokens"] == their_body["usage"]["prompt_tokens"], "the same template"
        if one["custom_id"] not in different:
            assert body["usage"]["total_tokens"] == their_body["usage"]["total_tokens"]
        told, their_told = (b["choices"][0]["logprobs"] for b in (body, their_body))
        assert (told is None) == (their_told is None)
        if told and one["custom_id"] not in different:
            assert [t["token"] for t in told["content"]] == [t["token"] for t in their_told["content"]]
            assert [t["bytes"] for t in told["content"]] == [t["bytes"] for t in their_told["content"]]
            assert [[u["token"] for u in t["top_logprobs"]] for t in told["content"]] == [
                [u["token"] for u in t["top_logprobs"]] for t in their_told["content"]
            ]
