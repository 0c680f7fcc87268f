"""One finding of `orderproof doctor`: its state, what was found, and what to do."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

NAME_WIDTH = 16  # characters


@dataclass(frozen=True)
class Check:
    """`ok`: nothing to do. `warn`: jobs run, but a measurement or a step may suffer. `fail`: a job cannot run."""

    name: str
    state: Literal["ok", "warn", "fail"]
    finding: str
    remedy: str = ""  # what to do, in one line; empty if there is nothing to do

    def __post_init__(self) -> None:
        if self.state != "ok" and not self.remedy:
            raise ValueError(f"the check {self.name!r} has the state {self.state!r} but no remedy")

    def line(self) -> str:
        """The check as one line, also if its texts have several."""
        text = f"{self.state:<4}  {self.name:<{NAME_WIDTH}}  {self.finding}"
        text += f" → {self.remedy}" if self.remedy else ""
        return "; ".join(filter(None, map(str.strip, text.splitlines())))

    def as_json(self) -> dict[str, Any]:
        """{"name", "state", "finding", "remedy"}, all text."""
        return asdict(self)
