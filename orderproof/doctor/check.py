"""What a doctor finds of one thing: its state, what was seen, and what to do about it.

In: words. Out: the frozen `Check`, as a line for a terminal or a value for JSON. Knows nothing of what was examined.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

NAME_WIDTH = 16  # characters


@dataclass(frozen=True)
class Check:
    """`ok`: nothing to do. `warn`: works, but a measurement or a step may suffer. `fail`: a job cannot run."""

    name: str
    state: Literal["ok", "warn", "fail"]
    says: str
    do: str = ""  # one line; empty where there is nothing to do

    def __post_init__(self) -> None:
        if self.state != "ok" and not self.do:
            raise ValueError(f"the check {self.name!r} finds fault without saying what to do")

    def line(self) -> str:
        """One line, whatever the texts hold."""
        said = f"{self.state:<4}  {self.name:<{NAME_WIDTH}}  {self.says}" + (f" → {self.do}" if self.do else "")
        return "; ".join(filter(None, map(str.strip, said.splitlines())))

    def as_json(self) -> dict[str, Any]:
        """{"name", "state", "says", "do"}, all text."""
        return asdict(self)
