"""Sampling of the stand-in: checked as far as a test needs a refusal."""

from __future__ import annotations

import enum


class RequestOutputKind(enum.Enum):
    FINAL_ONLY = 2


class StructuredOutputsParams:
    def __init__(self, **fields: object) -> None:
        self.fields = fields


class RepetitionDetectionParams(StructuredOutputsParams):
    pass


class SamplingParams:
    __struct_fields__ = ("temperature", "max_tokens", "ignore_eos", "n", "seed", "stop", "structured_outputs",
                         "output_kind")  # fmt: skip

    def __init__(self, **fields: object) -> None:
        self.max_tokens = fields.get("max_tokens", 16)
        self.n = fields.get("n", 1)
        self.structured_outputs = None

    def verify(self, *_: object) -> None:
        if self.max_tokens is not None and self.max_tokens > 999:
            raise ValueError(f"max_tokens {self.max_tokens} is too many")
