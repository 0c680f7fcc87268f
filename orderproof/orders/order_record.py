"""Provenance of an order, as records of trials, promotions and runs keep it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class OrderRecord(BaseModel):
    """Enough to make the same permutation again."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: str
    parameters: dict[str, Any] = {}
    seeds: dict[str, int] = {}
    dataset_md5: str
    sha256: str  # of the permutation as little-endian int64
