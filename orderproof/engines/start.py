"""The engine that a job asks for: one vLLM, several replicas, a server, or one whose routing is captured or changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from orderproof.engines.client import VllmEngine
from orderproof.engines.protocol import Engine, EngineError
from orderproof.engines.replicas import ReplicatedEngine
from orderproof.engines.routing_engine import RoutingEngine
from orderproof.engines.server import ServerEngine
from orderproof.job.spec import EngineSpec, Job


def start_engine(job: Job, k0: int | None = None, meanwhile: Callable[[], None] | None = None) -> Engine:
    """The engine of a job, logging to .orderproof/logs/<job>.log. It loads when its context is entered.

    Args:
        k0: of a lossy routing that a person accepted; None: the model's own routing.
        meanwhile: called once, while the engine loads; what it raises ends the engine at once.

    Raises:
        EngineError: the model's folder is missing.
    """
    log = job.root / ".orderproof" / "logs" / f"{job.name}.log"
    return create_engine(job.engine, job.model_path, job.sampling, log, job.adapters, k0, meanwhile)


def start_routing_engine(job: Job) -> RoutingEngine:
    """The engine of a job whose routing can be captured or changed, logging to .orderproof/logs/<job>-routing.log."""
    if job.engine.server:
        raise EngineError(
            f"the routing of {job.name} can be seen only in an engine of its own, and engine.server names a server: "
            "describe a job with engine.args and the same model and prompts"
        )
    log = job.root / ".orderproof" / "logs" / f"{job.name}-routing.log"
    return RoutingEngine(job.engine, job.model_path, job.sampling, log)


def create_engine(
    spec: EngineSpec,
    model: Path,
    sampling: Mapping[str, object],
    log: Path,
    adapters: Mapping[str, Path] | None = None,
    k0: int | None = None,
    meanwhile: Callable[[], None] | None = None,
) -> Engine:
    """As `start_engine`, from the parts of a job."""
    if spec.server:
        if k0 is not None:
            raise EngineError("a server routes as its model does: remove accept_lossy, or engine.server")
        return ServerEngine(spec, meanwhile=meanwhile)
    if k0 is not None:
        return RoutingEngine(spec, model, sampling, log, adapters, k0=k0, meanwhile=meanwhile)
    kind = VllmEngine if spec.replicas == 1 else ReplicatedEngine
    return kind(spec, model, sampling, log, adapters, meanwhile=meanwhile)
