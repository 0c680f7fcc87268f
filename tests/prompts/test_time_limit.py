"""Code that never ends is ended, in whatever thread it runs, and nothing else is."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from orderproof.prompts import time_limit
from orderproof.prompts.prompt import PromptError
from orderproof.prompts.prompt_file import read_prompts
from orderproof.prompts.time_limit import TooLong, limited
from orderproof.prompts.tokenization import tokenize
from tests.support.tiny_tokenizer import job_of, save_model

ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limit, "LIMIT_S", 0.3)
    monkeypatch.setattr(time_limit, "LOOK_S", 0.05)


def run_endlessly() -> None:
    with limited():
        while True:
            pass


def test_a_loop_is_ended_in_the_main_thread_and_in_another() -> None:
    with pytest.raises(TooLong):
        run_endlessly()
    ended: list[str] = []

    def run() -> None:
        try:
            run_endlessly()
        except TooLong:
            ended.append("ended")

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(10)
    assert ended == ["ended"]


def test_what_ends_in_time_is_left_alone_however_often_it_is_done() -> None:
    for _ in range(1000):
        with limited():
            pass
    time.sleep(0.5)
    with limited():
        time.sleep(0.1)


def test_a_chat_template_that_never_ends_is_named_with_the_prompt(tmp_path: Path) -> None:
    save_model(tmp_path / "m", ENDLESS)
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"id": "a", "text": [{"role": "user", "content": "hi"}]}\n')
    with pytest.raises(PromptError, match=r"line 1 \(id 'a'\).*chat template did not end"):
        tokenize(job_of(prompts, tmp_path / "m"), read_prompts(prompts))
