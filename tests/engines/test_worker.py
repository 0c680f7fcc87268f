"""What the worker does without vLLM."""

from __future__ import annotations

import io

from orderproof.engines.worker import Session


def test_a_probe_streams_as_much_as_it_was_asked_each_time() -> None:
    session = Session(io.StringIO())
    for mib in (1, 4, 2):
        assert session.probe(mib) > 0
        kept = session.probe_buffers
        assert sum(size for *_, size in kept) == (mib << 20) // len(kept) * len(kept)
        session.probe(mib)
        assert session.probe_buffers is kept, "the same memory again"
