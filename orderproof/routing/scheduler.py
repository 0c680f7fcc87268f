"""In which steps each request of a batch runs, by vLLM's rules for offline batches.

The model of vLLM's scheduler (v1, policy `fcfs`, chunked prefill, a KV cache that never forces preemption):
- Up to `max_num_seqs` requests run; a request's last token frees its place for the next step.
- A step has room for `max_num_batched_tokens`: one for each running sequence; what is left reads prompts, first come,
  first served; a prompt that does not fit is read in chunks, and no later request overtakes it.
- The step that reads the end of a prompt makes its first token, and each later step one more.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass


@dataclass(frozen=True)
class Residency:
    """The steps of one request."""

    chunks: tuple[tuple[int, int, int], ...]  # (step, first prompt token read in it, one after the last)
    end: int  # the step that makes its last token

    @property
    def admitted(self) -> int:
        return self.chunks[0][0]

    @property
    def decode(self) -> int:
        """The step after the prompt's last chunk; equals `end` + 1 where only one token is generated."""
        return self.chunks[-1][0] + 1


class Scheduler:
    """Admits requests one by one; memory follows the sequences that run at once."""

    def __init__(self, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self._places, self._tokens = max_num_seqs, max(max_num_seqs, max_num_batched_tokens)
        self._step, self._room = 0, self._tokens
        self._ends: list[int] = []  # heap of the running sequences' last steps

    def admit(self, prompt_tokens: int, generated: int) -> Residency:
        """Let the next request in as early as the rules allow.

        Args:
            prompt_tokens, generated: at least 1 each.
        """
        if len(self._ends) == self._places:
            self._advance(self._ends[0] + 1)
        chunks, read = [], 0
        while read < prompt_tokens:
            if not self._room:
                self._advance(self._step + 1)
            chunk = min(self._room, prompt_tokens - read)
            chunks.append((self._step, read, read + chunk))
            self._room -= chunk
            read += chunk
        end = self._step + generated - 1
        heapq.heappush(self._ends, end)
        return Residency(tuple(chunks), end)

    def _advance(self, step: int) -> None:
        """Every sequence that still runs at `step` has read its prompt, so it takes the room of one token."""
        while self._ends and self._ends[0] < step:
            heapq.heappop(self._ends)
        self._step, self._room = step, self._tokens - len(self._ends)
