"""What vLLM refuses of a job's settings, asked of its own classes in the engine's interpreter; no engine is started."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from orderproof.engines.child import Child
from orderproof.engines.client import BOOTSTRAP, QUIET_ENVIRONMENT, WORKER
from orderproof.engines.protocol import EngineError
from orderproof.job.hashing import canonical_json
from orderproof.job.spec import Job

Row = tuple[int, str, Mapping[str, Any] | None]  # number in the file, id, own sampling


@dataclass(frozen=True)
class Refusal:
    """A setting that vLLM does not take."""

    where: str  # such as engine.args, or `sampling` of a row
    problem: str  # in vLLM's words
    row: int | None = None  # the first with this sampling; None: a setting of the job
    id: str | None = None
    others: int = 0  # more rows with the same sampling

    def message(self, word: str) -> str:
        """Args: word: what a row of the file is called."""
        if self.row is None:
            return f"{self.where}: {self.problem}"
        more = f" and {self.others:,} more" if self.others else ""
        return f"{word} {self.row} (id {self.id!r}){more}: {self.where}: {self.problem}"


@dataclass
class _Group:
    sampling: Mapping[str, Any]
    row: int
    id: str
    rows: int = 0


def check_settings(job: Job, rows: Iterable[Row]) -> list[Refusal]:
    """Ask vLLM about engine.args, adapters, the job's sampling and that of rows; no weights are read.

    Raises:
        EngineError: `engine.command` does not start, has no vLLM, or ends.
    """
    groups: dict[str, _Group] = {}
    for number, id, sampling in rows:
        if sampling:
            group = groups.setdefault(canonical_json(sampling), _Group(sampling, number, id))
            group.rows += 1
    return list(_refusals(job, list(groups.values())))


def _refusals(job: Job, groups: list[_Group]) -> Iterator[Refusal]:
    for event in _ask(job, [group.sampling for group in groups]):
        where, problem = event["where"], event["error"]
        if isinstance(where, int):
            yield _of_rows(groups[where], problem)
        else:
            problem = problem.removeprefix(f"{where}: ").removeprefix(f"{where}.")
            yield Refusal(f"jobs.{job.name}.{where}", problem)


def _of_rows(group: _Group, problem: str) -> Refusal:
    return Refusal("sampling", problem.removeprefix("sampling: "), group.row, group.id, group.rows - 1)


def _ask(job: Job, samplings: list[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The worker's `refused` events, and one of our own where rows need several structured-output backends."""
    spec, log = job.engine, job.root / ".orderproof" / "logs" / f"{job.name}-check.log"
    environment = {**QUIET_ENVIRONMENT, **spec.environment}
    child = Child([*(spec.command or (sys.executable,)), "-u", "-c", BOOTSTRAP], environment, log)
    child.start()
    try:
        child.send(WORKER.read_text("utf-8"))
        args = {"model": str(job.model_path), **spec.args, "trust_remote_code": False}
        adapters = {name: str(folder) for name, folder in job.adapters.items()}
        child.send(
            {"op": "check", "args": args, "sampling": job.sampling, "samplings": samplings, "adapters": adapters,
             "env": environment}
        )  # fmt: skip
        while (event := child.next(spec.start_timeout_s))["event"] == "refused":
            yield event
        if event["event"] != "checked":
            raise EngineError(f"vLLM could not be asked: {event.get('error', event)} (its log: {log})")
        backends = event["backends"]
        if len(backends) > 1:
            first, second = sorted(backends.items(), key=lambda found: found[1])[:2]
            yield {
                "where": second[1],
                "error": f"needs the structured-output backend {second[0]}, and earlier rows {first[0]}: vLLM takes "
                "that of whichever request comes first for all, so the order would decide which constraints hold. Set "
                f"engine.args.structured_outputs_config to {{backend: {second[0]}}}",
            }
    finally:
        child.close()
