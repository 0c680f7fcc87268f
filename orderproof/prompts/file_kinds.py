"""What a prompt file is by its name, and its bytes without compression."""

from __future__ import annotations

import gzip
import io
import re
from pathlib import Path
from typing import BinaryIO, cast

import pyarrow as pa

COMPRESSIONS = (".gz", ".zst")  # of text formats; Parquet has its own
KINDS = (".jsonl", ".parquet", ".json", ".csv")


def kind_of(path: Path) -> str | None:
    """One of KINDS; None: a name that is no prompt file's."""
    suffix = path.suffix.lower()
    if suffix in COMPRESSIONS:
        suffix = Path(path.stem).suffix.lower()
        return suffix if suffix in KINDS and suffix != ".parquet" else None
    return suffix if suffix in KINDS else None


def is_compressed(path: Path) -> bool:
    """Whether a file's name ends with that of a compression."""
    return path.suffix.lower() in COMPRESSIONS


def open_content(path: Path) -> BinaryIO:
    """A file's bytes without compression. Raises OSError; reading raises OSError or EOFError for a damaged file."""
    if path.suffix.lower() == ".gz":
        return cast(BinaryIO, gzip.open(path))
    if path.suffix.lower() == ".zst":
        with open(path, "rb"):  # Arrow's own error has no `strerror`
            return io.BufferedReader(pa.CompressedInputStream(str(path), "zstd"), 1 << 20)
    return open(path, "rb")


def name_of(path: Path) -> str:
    """A path for messages; an address has its two slashes again."""
    return re.sub(r"^([a-z0-9]+):/(?!/)", r"\1://", str(path))


def row_word(path: Path) -> str:
    """What a row of a file is called: a line of JSON lines (or of anything unknown), else a row."""
    return "line" if kind_of(path) in (".jsonl", None) else "row"
