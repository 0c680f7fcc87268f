"""Provenance of an order, as records of trials, promotions and runs keep it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from orderproof.job.spec import OrderSpec


class OrderRecord(BaseModel):
    """Enough to make the same permutation again."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: str
    parameters: dict[str, Any] = {}
    seeds: dict[str, int] = {}
    dataset_md5: str
    sha256: str  # of the permutation as little-endian int64

    def spec(self) -> OrderSpec:
        """What to ask for to get such an order of other prompts."""
        asked = {key: value for key, value in self.parameters.items() if key in OrderSpec.model_fields}
        seed = next(iter(self.seeds.values()), 0)  # a way to order has one seed, under its own name
        return OrderSpec.model_validate({**asked, "method": self.method, "seed": seed})
