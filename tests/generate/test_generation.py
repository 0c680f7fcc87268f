"""What a batch counts while it is sent."""

from __future__ import annotations

from pathlib import Path

from orderproof.generate.generation import _Pending, _Sent
from tests.support.batches import begin, make_project


def test_each_sample_of_a_prompt_takes_a_place_of_the_engine(tmp_path: Path) -> None:
    batch, _ = begin(make_project(tmp_path / "p", 3), restart=False)
    with batch.source, batch.checkpoint:
        flying = {0: _Sent("p0", 8, 8, 4), 1: _Sent("p1", 8, 8, 1)}
        assert _Pending(batch, flying, lambda _: None).sequences == 5
