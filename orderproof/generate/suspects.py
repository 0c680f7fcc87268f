"""The prompts that an engine had when it died: one of them may be why.

The next run sends all others first, and then these apart: in halves, in halves of a half that ends the engine again, at
last singly. A prompt that ends the engine alone is not sent again.

    suspects.json    {"groups": [[place, …], …], "fatal": [place, …]}
"""

from __future__ import annotations

import json
from pathlib import Path

from orderproof.generate.checkpoint_folder import cannot_write
from orderproof.job.files import write_atomically

FILE = "suspects.json"


class Suspects:
    """Those of one checkpoint, on disk before they are acted on. Places are those of the prompts file, from 0."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.groups: list[list[int]] = []  # each is sent by itself, in the order of sending
        self.fatal: list[int] = []  # each ended an engine that had nothing else
        try:
            content = json.loads((folder / FILE).read_bytes())
            self.groups, self.fatal = list(content["groups"]), list(content["fatal"])
        except (OSError, ValueError, KeyError, TypeError):  # without it, they are only sent with others again
            return

    @property
    def places(self) -> list[int]:
        """All that are to be sent apart, or not at all."""
        return [*self.fatal, *(place for group in self.groups for place in group)]

    def add(self, places: list[int]) -> None:
        """An engine died with these among others.

        Raises:
            CheckpointError: the file cannot be written.
        """
        self.groups += _halves(places)
        self._write()

    def narrow(self, group: list[int], unanswered: list[int]) -> None:
        """An engine died with `unanswered` alone, the rest of the group. Raises as `add`."""
        self.groups.remove(group)
        if len(unanswered) == 1:
            self.fatal += unanswered
        else:
            self.groups[:0] = _halves(unanswered)
        self._write()

    def clear(self, group: list[int]) -> None:
        """The group was answered. Raises as `add`."""
        self.groups.remove(group)
        self._write()

    def _write(self) -> None:
        try:
            write_atomically(self.folder / FILE, json.dumps({"groups": self.groups, "fatal": self.fatal}) + "\n")
        except OSError as error:
            raise cannot_write(self.folder, error) from None


def _halves(places: list[int]) -> list[list[int]]:
    middle = (len(places) + 1) // 2
    return [half for half in (places[:middle], places[middle:]) if half]
