"""The result of one prompt: its completions, or why there are none."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from orderproof.engines.protocol import Completion

REFUSED, INTERRUPTED = 400, 500  # HTTP status codes for the two ways in which a request fails


class State(enum.IntEnum):
    """How far a prompt is."""

    ABSENT = 0  # no result yet
    COMPLETE = 1
    INCOMPLETE = 2  # an output, but not as long as requested; it is kept
    FAILED = 3  # no output; the next run sends the prompt again


@dataclass(frozen=True)
class Result:
    """The result of one prompt."""

    place: int  # of the prompt in the file's order, from 0
    id: str
    prompt_tokens: int
    asked_tokens: int | None  # limit of each completion; None: the model's length
    asked_samples: int  # `n` of its sampling
    completions: tuple[Completion, ...]  # empty: failed
    error: str | None = None  # why it failed, or how its output differs from the request
    code: int | None = None  # HTTP status of a failure: REFUSED or INTERRUPTED

    @property
    def kind(self) -> str:
        """How it failed, in words that say nothing of the prompt."""
        kinds = {REFUSED: "refused", INTERRUPTED: "ended early"}
        return "cut short" if self.code is None else kinds.get(self.code, "failed")

    @property
    def output_tokens(self) -> int:
        """Generated in all completions together."""
        return sum(len(completion.token_ids) for completion in self.completions)

    @property
    def state(self) -> State:
        """FAILED, INCOMPLETE or COMPLETE."""
        if not self.completions:
            return State.FAILED
        return State.INCOMPLETE if self.error else State.COMPLETE
