"""A file that is one JSON array → its objects, one in memory at a time."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from orderproof.prompts import json_lines
from orderproof.prompts.json_lines import STRICT, Fail, too_long

PIECE_CHARACTERS = 1 << 16
WORD_CHARACTERS = 8  # a mistake so near the end of what was read may be a word that is cut

_SPACE = re.compile(r"\s*")


def read_array(read: Callable[[int], str], fail: Fail) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number from 1 and value of each object in an array, which begins the file.

    Args:
        read: at most so many characters more of the file; "" at the end.

    Raises:
        what `fail` makes of the first thing wrong.
    """
    text, number = _Text(read, fail), 0
    text.take()  # the opening bracket
    if text.next() == "]":
        text.take()
    else:
        following = ","
        while following == ",":
            number += 1
            yield number, text.take_object(number)
            following = text.take()
        if following != "]":
            raise fail(f"item {number} is followed by neither a comma nor the end", "Write the file again")
    if not text.ends():
        raise fail("goes on after the end of its array", "Keep one array in a file")


class _Text:
    """A file's characters from a place on, of which more are read as needed."""

    def __init__(self, read: Callable[[int], str], fail: Fail) -> None:
        self._read, self._fail = read, fail
        self._text, self._at = "", 0

    def next(self) -> str:
        """The next character that is no space, which stays."""
        if self.ends():
            raise self._cut_off()
        return self._text[self._at]

    def take(self) -> str:
        """The next character that is no space."""
        character = self.next()
        self._at += 1
        return character

    def ends(self) -> bool:
        """Whether nothing but spaces follows."""
        while True:
            self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]  # it matches anywhere
            if self._at < len(self._text):
                return False
            if not self._more(PIECE_CHARACTERS):
                return True

    def take_object(self, number: int) -> dict[str, Any]:
        """The object that follows, the item of this number."""
        if self.next() != "{":
            raise self._fail(f"item {number} is not an object", "Write every row as an object")
        while True:
            try:
                value, self._at = STRICT.raw_decode(self._text, self._at)
                return dict(value)
            except json.JSONDecodeError as error:
                if not error.msg.startswith("Unterminated") and error.pos < len(self._text) - WORD_CHARACTERS:
                    raise self._fail(f"item {number} is not JSON: {error.msg}", "Correct it") from None
            except (ValueError, RecursionError) as error:  # NaN, numbers of thousands of digits, endless nesting
                raise self._fail(f"item {number} is not usable JSON: {error}", "Correct it") from None
            unread = len(self._text) - self._at
            if unread > json_lines.LINE_LIMIT_BYTES:
                raise too_long(self._fail)
            if not self._more(max(PIECE_CHARACTERS, unread)):  # twice as much each time
                raise self._cut_off()

    def _more(self, characters: int) -> bool:
        more = self._read(characters)
        self._text, self._at = self._text[self._at :] + more, 0
        return bool(more)

    def _cut_off(self) -> Exception:
        return self._fail("is cut off: its array has no end", "Write the file again")
