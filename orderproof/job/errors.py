"""The base of every error that a user can fix: its message says what is wrong, where, and what to do."""

from __future__ import annotations

from typing import Self


class OrderproofError(Exception):
    """Shown as a message without a traceback; each module has its own subclass."""

    words: tuple[str, ...] = ()  # about single prompts: for the terminal, never for a tracker, which has the message

    def about_prompts(self, *words: str, log_text: bool) -> Self:
        """The same error with an engine's words about single prompts, which may quote them.

        Args:
            log_text: the job's owner allows them in trackers, so the message has them.
        """
        if log_text:
            self.args = (f"{self} ({'; '.join(words)})",)
        else:
            self.words = words
        return self
