"""Hashes of files and values, each computed in one way everywhere, so that equal things compare equal."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def md5_of(path: Path) -> str:
    """The md5 of a file's bytes in hexadecimal: the hash that DVC records for it. Raises OSError."""
    with open(path, "rb") as source:
        return hashlib.file_digest(source, "md5").hexdigest()


def sha256_of(text: str) -> str:
    """The sha256 of a text in UTF-8, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def canonical_json(value: Any) -> str:
    """One text per value, so that equal values have equal hashes. Raises ValueError for NaN and infinities."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def ids_sha256(ids: Iterable[str]) -> str:
    """Hash of a set of prompt ids, independent of their order: sorted, joined by newlines."""
    return sha256_of("\n".join(sorted(ids)))
