"""What became of one prompt, and the line of results.jsonl that keeps it.

In: a `Result`. Out: a line of bytes (its checksum, state and place, then the result as JSON), and from a line the
`Result` again. A line that does not fit its checksum is none. Knows nothing of files or engines.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import Any

from orderproof.engines.protocol import Completion

ABSENT, ALL_RIGHT, FLAWED, FAILED = range(4)  # FLAWED: an output, but not what was asked; FAILED: is sent again
MARKS = {ALL_RIGHT: b"+", FLAWED: b"~", FAILED: b"-"}
STATES = {mark: state for state, mark in MARKS.items()}


@dataclass(frozen=True)
class Result:
    """What became of one prompt."""

    place: int  # of the prompt in the file's order, from 0
    id: str
    prompt_tokens: int
    asked_tokens: int | None  # of each completion; None: as many as the model's length leaves
    asked_samples: int  # `n` of its sampling
    completions: tuple[Completion, ...]  # empty: failed
    error: str | None = None  # why it failed, or how its output is not what was asked
    code: int | None = None  # of a failure, as HTTP has it: 400 refused, 500 broken off

    @property
    def output_tokens(self) -> int:
        """Generated in all completions together."""
        return sum(len(completion.token_ids) for completion in self.completions)

    @property
    def state(self) -> int:
        """FAILED, FLAWED or ALL_RIGHT."""
        return FAILED if not self.completions else FLAWED if self.error else ALL_RIGHT


def line_of(result: Result) -> bytes:
    """Its line, with the end of the line."""
    fields = {**_given(result), "completions": [_given(completion) for completion in result.completions]}
    del fields["place"]
    written = json.dumps(fields, separators=(",", ":")).encode()
    body = b"%s %d %s" % (MARKS[result.state], result.place, written)
    return b"%08x %s\n" % (zlib.crc32(body), body)


def head_of(line: bytes) -> tuple[int, int] | None:
    """State and place of a whole line; None if it does not fit its checksum."""
    checksum, _, body = line[:-1].partition(b" ")
    if checksum != b"%08x" % zlib.crc32(body):
        return None
    mark, place, _ = body.split(b" ", 2)
    return STATES[mark], int(place)


def result_of(line: bytes) -> Result:
    """The result of a line that fits its checksum."""
    _, _, place, written = line.split(b" ", 3)
    fields: dict[str, Any] = json.loads(written)
    completions = tuple(Completion(**completion) for completion in fields["completions"])
    return Result(int(place), **{"asked_tokens": None, **fields, "completions": completions})


def _given(value: Result | Completion) -> dict[str, Any]:
    """Its fields but those that say nothing."""
    return {name: field for name, field in vars(value).items() if field is not None}
