"""Requests get the models and default sampling that vLLM's server would give them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orderproof.prompts.openai_body import COMPLETIONS
from orderproof.prompts.request_defaults import RequestDefaultsError
from tests.support.openai_rows import read_rows, request, request_defaults


def test_a_body_overrides_the_job_and_the_job_overrides_the_model(tmp_path: Path) -> None:
    config = {"temperature": 0.6, "top_k": 20, "max_new_tokens": 9, "eos_token_id": 2}
    defaults = request_defaults(tmp_path, config, sampling={"top_k": 5})
    chat, hot, text = read_rows(
        tmp_path, request(), request("b", temperature=1.5), request("c", COMPLETIONS), defaults=defaults
    )
    assert chat.sampling == {"temperature": 0.6, "max_tokens": 9}
    assert hot.sampling == {"temperature": 1.5, "max_tokens": 9}
    assert text.sampling == {"temperature": 0.6}, "a completion gets vLLM's own 16"
    defaults = request_defaults(tmp_path, sampling={"max_tokens": 4})
    assert [p.sampling for p in read_rows(tmp_path, request(), request("b", max_tokens=7), defaults=defaults)] == [
        {"temperature": 0.6, "top_k": 20},
        {"temperature": 0.6, "top_k": 20, "max_tokens": 7},
    ]


@pytest.mark.parametrize(
    ("args", "found"),
    [
        ({"generation_config": "vllm"}, {"max_tokens": None}),
        ({"override_generation_config": {"top_p": 0.5, "max_new_tokens": 3}},
         {"temperature": 0.6, "top_p": 0.5, "max_tokens": 3}),
    ],
)  # fmt: skip
def test_the_engine_s_settings_change_the_defaults(tmp_path: Path, args: Any, found: Any) -> None:
    defaults = request_defaults(tmp_path, {"temperature": 0.6}, args)
    assert read_rows(tmp_path, request(), defaults=defaults)[0].sampling == found
    asked = read_rows(tmp_path, request(max_tokens=50), defaults=defaults)[0].sampling or {}
    assert asked["max_tokens"] == (found["max_tokens"] or 50), "a limit set by hand holds for every request"


@pytest.mark.parametrize("name", ["main", "other", "tone", None])
def test_a_request_names_the_model_or_an_adapter(tmp_path: Path, name: str | None) -> None:
    (prompt,) = read_rows(tmp_path, request(model=name))
    assert prompt.lora == ("tone" if name == "tone" else None)


def test_a_generation_config_that_is_broken_is_named(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(RequestDefaultsError, match=r"generation_config\.json cannot be read.* to vllm"):
        read_rows(tmp_path, request())
