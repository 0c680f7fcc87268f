"""Which column of a file is which field of a prompt: as the job's `columns` say, or by names that are recognised."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from orderproof.job.sampling import SAMPLING_NAMES
from orderproof.job.spec import ColumnsSpec
from orderproof.job.spelling import nearest

ALWAYS = ("sampling", "lora")  # fields that have one name
TEXT_COLUMNS = ("text", "messages", "prompt", "conversations")  # the first that a file has holds its prompts
# Columns that other tools give to a model together with the messages.
PARTS_OF_A_REQUEST = frozenset({"system", "tools", "functions", "documents", "chat_template_kwargs"})


@dataclass(frozen=True)
class Layout:
    """The columns of a prompt's fields."""

    id: str | None = "id"  # None: the number of a row is its id
    text: str = "text"
    label: str = "label"
    reference: str = "reference"

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that are read."""
        return (self.id or "id", self.text, self.label, self.reference, *ALWAYS)

    def notices(self, names: Collection[str]) -> Iterator[str]:
        """What a user should know about these columns: which has the text, and which look as if they should be read."""
        if self.id is None:
            yield "there is no `id`: the number of a row is its id"
        if self.text != "text" and "text" not in names:
            yield f"there is no `text`: the prompts are in `{self.text}`"
        yield from notices_of_unread(names, self.columns, "in `sampling`")


NATIVE = Layout()


def find_layout(names: Collection[str], columns: ColumnsSpec) -> Layout:
    """The layout of a file whose first row, or whose schema, has these columns."""
    text = columns.text or next((name for name in TEXT_COLUMNS if name in names), "text")
    number_is_id = columns.id is None and "id" not in names and text in names
    return Layout(
        id=None if number_is_id else columns.id or "id",
        text=text,
        label=columns.label or "label",
        reference=columns.reference or "reference",
    )


def notices_of_unread(names: Collection[str], read: tuple[str, ...], place_of_sampling: str) -> Iterator[str]:
    """Columns that are not read and look as if they should be."""
    missing = tuple(field for field in read if field not in names)
    for name in names:
        if name in read:
            continue
        if name in SAMPLING_NAMES:
            yield f"`{name}` is not read: a parameter of vLLM's sampling belongs {place_of_sampling}"
        elif name in PARTS_OF_A_REQUEST:
            yield f"`{name}` is not read and does not reach the model"
        elif near := resembled(name, missing):
            yield f"`{name}` is not read: did you mean `{near}`?"


@functools.lru_cache(maxsize=1024)  # rows have the same names
def resembled(name: str, missing: tuple[str, ...]) -> str | None:
    """The field that is not there and that a column's name resembles."""
    return nearest(name.lower(), missing, cutoff=0.8)
