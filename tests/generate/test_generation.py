"""What a batch counts while it is sent."""

from __future__ import annotations

from pathlib import Path

from orderproof.engines.admission import AdmissionLog
from orderproof.generate.generation import _Pending, _Sent
from orderproof.generate.story import open_batch
from tests.support.batches import GENERATE, make_project


def test_each_sample_of_a_prompt_takes_a_place_of_the_engine(tmp_path: Path) -> None:
    batch, _ = open_batch(make_project(tmp_path / "p", 3), GENERATE, restart=False)
    with batch.source, batch.checkpoint:
        in_flight = {0: _Sent("p0", 8, 8, 4, 0), 1: _Sent("p1", 8, 8, 1, 1)}
        assert _Pending(batch, batch.checkpoint.pending, in_flight, lambda _: None, AdmissionLog()).sequences == 5
