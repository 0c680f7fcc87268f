"""Results as JSON lines, on their way to a file: what is never overwritten, and what a full disk says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from orderproof.engines.protocol import Completion
from orderproof.generate.checkpoint import open_checkpoint
from orderproof.generate.checkpoint_folder import CheckpointError
from orderproof.generate.output_lines import OutputLines, open_output
from orderproof.generate.result import Result
from orderproof.orders.order import Order


@pytest.mark.parametrize("name", ["prompts.jsonl", "link.jsonl", "hard.jsonl"])
def test_prompts_are_never_overwritten_by_their_results(tmp_path: Path, name: str) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("{}")
    (tmp_path / "link.jsonl").symlink_to(prompts)
    (tmp_path / "hard.jsonl").hardlink_to(prompts)
    with (
        pytest.raises(CheckpointError, match=name),
        open_output(str(tmp_path / name), tmp_path / "stream.jsonl", prompts),
    ):
        pass
    assert prompts.read_text() == "{}"


def test_any_other_file_is_written(tmp_path: Path) -> None:
    with open_output(str(tmp_path / "new.jsonl"), tmp_path / "gone.jsonl") as sink:
        sink.write(b"a")
    assert (tmp_path / "new.jsonl").read_bytes() == b"a"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_a_full_disk_is_reported_once(tmp_path: Path) -> None:
    order = Order(np.arange(2), "file", {}, {}, "md5")
    with open_checkpoint(tmp_path / "outputs.partial", {}, order) as checkpoint:
        checkpoint.append(Result(0, "a", 1, 1, 1, (Completion([1], "x", "stop"),)))
        with (
            pytest.raises(CheckpointError, match="No space left"),
            open_output("/dev/full", tmp_path / "prompts.jsonl") as sink,
        ):
            OutputLines(checkpoint, sink)
