"""Files and pipes of JSON lines: the one reader of lines, and the one parser of a line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from orderproof.job.lfs import POINTER_REMEDY, POINTER_START

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
LINE_LIMIT_BYTES = 256 << 20  # a file without newlines must not fill the memory
EXAMPLE = '{"id": "a", "text": "…"}'

Fail = Callable[..., Exception]  # (problem, remedy) → an error that names file and line; more by keyword


def read_lines(readline: Callable[[int], bytes], fail: Callable[[int], Fail]) -> Iterator[tuple[int, int, bytes]]:
    """Number from 1, offset in bytes and bytes of each line that is not blank.

    Lines end at b"\\n" alone: U+2028 may stand inside a string. A byte order mark at the beginning of a line, as files
    that were joined with `cat` have it, is left out.

    Args:
        readline: of an open file: the next line, of at most so many bytes; b"" at the end.
        fail: number of a line → its `Fail`, raised for a line that is too long.
    """
    offset = 0
    for number, line in enumerate(iter(lambda: readline(LINE_LIMIT_BYTES), b""), 1):
        if len(line) == LINE_LIMIT_BYTES:
            raise too_long(fail(number))
        if line.startswith(BYTE_ORDER_MARK):
            offset, line = offset + len(BYTE_ORDER_MARK), line.removeprefix(BYTE_ORDER_MARK)
        if line and not line.isspace():
            yield number, offset, line
        offset += len(line)


def too_long(fail: Fail) -> Exception:
    """The error for a line of LINE_LIMIT_BYTES."""
    return fail(f"is longer than {LINE_LIMIT_BYTES >> 20} MiB", "JSON lines hold one object per line")


def parse_object(line: bytes, fail: Fail, *, nan: bool = False) -> dict[str, Any]:
    """One line → its object. Raises what `fail` makes of the first thing wrong.

    Args:
        nan: accept NaN and infinities, which Python writes and JSON does not have.
    """
    ended = line.endswith(b"\n")
    try:
        text = line.decode().strip()
        record = (_LENIENT if nan else STRICT).decode(text)
    except UnicodeDecodeError as error:
        if not ended and error.reason == "unexpected end of data":
            raise fail(*_CUT_OFF, flaw="end") from None
        encoding = "utf-16" if line[:2] in (b"\xff\xfe", b"\xfe\xff") else "latin1"
        problem = f"byte 0x{line[error.start]:02x}, {error.start + 1} bytes into the line, is not UTF-8"
        raise fail(problem, f"Convert the file, perhaps with: iconv -f {encoding} -t utf-8 IN > OUT") from None
    except json.JSONDecodeError as error:
        # a cut within an escape or literal is reported where that begins, up to five characters earlier
        if not ended and (error.msg.startswith("Unterminated") or error.pos >= len(text) - 5):
            raise fail(*_CUT_OFF, flaw="end") from None
        raise fail(f"is not JSON: {error.msg}, at column {error.pos + 1}", _remedy(text)) from None
    except (ValueError, RecursionError) as error:  # NaN, numbers of thousands of digits, endless nesting
        raise fail(f"is not usable JSON: {error}", "Correct the line") from None
    if not isinstance(record, dict):
        raise fail(f"holds {json_type(record)} instead of an object", _remedy(text))
    return record


def json_type(value: Any) -> str:
    """What JSON calls a value."""
    names = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list", dict: "an object"}
    return "null" if value is None else names.get(type(value), type(value).__name__)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")


STRICT, _LENIENT = json.JSONDecoder(parse_constant=_refuse_constant), json.JSONDecoder()
_CUT_OFF = "the last line is cut off: no newline ends it and its JSON is unfinished", "Write the file again"


def _remedy(text: str) -> str:
    if text.startswith(POINTER_START.decode()):
        return f"It is the first line of a Git LFS pointer. {POINTER_REMEDY}"
    if text.startswith("["):
        return "JSON lines hold one object per line; from an array: jq -c '.[]' IN > OUT"
    return f"Write one object per line, such as {EXAMPLE}"
