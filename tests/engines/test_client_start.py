"""The child process starts, or the reason is reported without an endless wait, on the stand-in for vLLM."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from orderproof.engines.client import VllmEngine
from orderproof.engines.protocol import EngineError, Output, Request
from orderproof.job.spec import EngineSpec
from tests.support.batches import STANDIN

ARGS = {"max_num_seqs": 4, "max_model_len": 64}
SAMPLING = {"max_tokens": 4}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def test_a_log_that_cannot_be_written_is_named(model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    spec = EngineSpec(args=ARGS)
    for log in (tmp_path / "file" / "it.log", tmp_path):
        with pytest.raises(EngineError, match=f"{log} cannot be written"), VllmEngine(spec, model, SAMPLING, log):
            pass


def test_a_command_that_no_process_can_be_given_is_an_error_and_no_wait_without_end(
    model: Path, tmp_path: Path
) -> None:
    spec = EngineSpec.model_construct(**{**vars(EngineSpec(args=ARGS)), "env": {"A": "a\0b"}})  # jobs.py refuses it
    with (
        pytest.raises(EngineError, match="does not start: embedded null byte"),
        VllmEngine(spec, model, SAMPLING, tmp_path / "log"),
    ):
        pass


@pytest.mark.parametrize("banner", ["null", "1", '{"level": "info"}', "[" * 100_000])
def test_json_that_the_command_prints_is_no_event(model: Path, tmp_path: Path, banner: str) -> None:
    (tmp_path / "banner").write_text(banner + "\n")
    command = ("/bin/sh", "-c", f'cat {tmp_path / "banner"}; exec "$0" "$@"', sys.executable)
    spec = EngineSpec(command=command, args=ARGS, env={"PYTHONPATH": str(STANDIN)})
    answers: list = []
    with VllmEngine(spec, model, SAMPLING, tmp_path / "log") as engine:
        engine.run([Request(7, [1, 2, 3])], SAMPLING, answers.append)
    assert [(type(answer), answer.number) for answer in answers] == [(Output, 7)]
    assert banner in (tmp_path / "log").read_text()
