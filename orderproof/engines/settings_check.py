"""What vLLM refuses of a job's settings, asked of its own classes in the engine's interpreter; no engine is started."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
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
    rows: tuple[int, ...] = ()  # all that have this sampling; none: a setting of the job
    id: str | None = None  # of the first row

    def message(self, word: str) -> str:
        """Args: word: what a row of the file is called."""
        if not self.rows:
            return f"{self.where}: {self.problem}"
        more = f" and {len(self.rows) - 1:,} more" if self.rows[1:] else ""
        return f"{word} {self.rows[0]} (id {self.id!r}){more}: {self.where}: {self.problem}"


@dataclass
class _Group:
    sampling: Mapping[str, Any]
    id: str  # of the first row
    rows: list[int] = field(default_factory=list)


def check_settings(job: Job, rows: Iterable[Row]) -> list[Refusal]:
    """Ask vLLM about engine.args, adapters, the job's sampling and that of rows; no weights are read.

    Raises:
        EngineError: `engine.command` does not start, has no vLLM, or ends.
    """
    groups: dict[str, _Group] = {}
    for number, id, sampling in rows:
        if sampling:
            groups.setdefault(canonical_json(sampling), _Group(sampling, id)).rows.append(number)
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
    return Refusal("sampling", problem.removeprefix("sampling: "), tuple(group.rows), group.id)


def _ask(job: Job, samplings: list[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The worker's `refused` events."""
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
    finally:
        child.close()
