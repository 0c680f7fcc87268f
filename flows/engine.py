"""The engine that a flow asks for.

In: a job. Out: an `Engine` that loads when its context is entered, and its log under .orderproof/logs. Knows nothing of
what is generated.
"""

from __future__ import annotations

from collections.abc import Callable

from orderproof.engines.protocol import Engine
from orderproof.engines.replicas import engine_of
from orderproof.job.spec import Job


def start_engine(job: Job, k0: int | None = None, meanwhile: Callable[[], None] | None = None) -> Engine:
    """vLLM in a child process for each replica; its memory is free again when the context ends.

    Args:
        k0: of a lossy routing that a person accepted, which no measurement of orders asks for.
        meanwhile: called while the engine loads; what it raises ends the engine at once.
    """
    log = job.root / ".orderproof" / "logs" / f"{job.name}.log"
    return engine_of(job.engine, job.model_path, job.sampling, log, job.adapters, k0, meanwhile)
