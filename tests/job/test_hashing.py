"""Equal things have equal hashes, and a file has the hash that other tools compute."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from orderproof.job.hashing import canonical_json, ids_sha256, md5_of


def test_the_md5_of_a_file_is_that_of_its_bytes(tmp_path: Path) -> None:
    content = os.urandom(3_000_000)
    (tmp_path / "a").write_bytes(content)
    assert md5_of(tmp_path / "a") == hashlib.md5(content).hexdigest()


def test_the_order_of_keys_does_not_change_canonical_json() -> None:
    assert canonical_json({"b": 1, "a": [2.0, None]}) == canonical_json({"a": [2.0, None], "b": 1})
    assert canonical_json({"a": 1}) != canonical_json({"a": "1"})


def test_what_json_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical_json({"a": float("nan")})


def test_the_order_of_ids_does_not_change_their_hash() -> None:
    assert ids_sha256(["b", "a"]) == ids_sha256(["a", "b"]) != ids_sha256(["a", "c"])
