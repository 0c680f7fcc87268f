"""Writes a routes file (see routes.py) prompt by prompt, in the memory of one row group; it appears whole or not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from orderproof.job.files import atomic_file
from orderproof.routing.errors import RoutingError
from orderproof.routing.routes import RECORD_KEY, ROUTES_SCHEMA, RoutesRecord

GROUP_BYTES = 1 << 20  # of experts in one row group, uncompressed
GROUP_PROMPTS = 64  # prompts in one row group: reading one prompt reads its whole group


class RoutesWriter:
    """Takes prompts one by one; the file appears when `write_routes` ends without an error."""

    def __init__(self, file: pq.ParquetWriter, record: RoutesRecord) -> None:
        self._file, self._record, self._missing = file, record, dict(record.missing)
        self._rows: list[tuple[str, int, int, bytes]] = []
        self._bytes = 0
        self._added: set[str] = set()

    def add(self, prompt_id: str, prompt_tokens: int, experts: NDArray[Any]) -> None:
        """Append one prompt.

        Args:
            experts: integers [prompt_tokens + decode_tokens, layers, top_k].

        Raises:
            RoutingError: another shape, an expert that the model does not have or that one token chose twice (which is
                what rows look like that were never filled), or a prompt that was added before.
        """
        if prompt_id in self._added:
            raise RoutingError(f"prompt {prompt_id!r} was captured twice: give each prompt its own id")
        if fault := self._record.fault_of(experts, prompt_tokens):
            raise RoutingError(f"prompt {prompt_id!r}: {fault}. Record it as missing instead")
        content = np.ascontiguousarray(experts, self._record.dtype).tobytes()
        if self._rows and (self._bytes + len(content) > GROUP_BYTES or len(self._rows) == GROUP_PROMPTS):
            self._flush()
        self._added.add(prompt_id)
        self._rows.append((prompt_id, prompt_tokens, len(experts) - prompt_tokens, content))
        self._bytes += len(content)

    def miss(self, prompt_id: str, reason: str) -> None:
        """Record that a sampled prompt has no routes, and the reason."""
        self._missing[prompt_id] = reason

    def finish(self) -> None:
        """Write what is left, and the record."""
        self._flush()
        record = self._record.model_copy(update={"missing": self._missing})
        self._file.add_key_value_metadata({RECORD_KEY: record.model_dump_json().encode()})

    def _flush(self) -> None:
        if self._rows:
            columns = [
                pa.array(column, field.type)
                for column, field in zip(zip(*self._rows, strict=True), ROUTES_SCHEMA, strict=True)
            ]
            self._file.write_batch(pa.record_batch(columns, schema=ROUTES_SCHEMA))
            self._rows, self._bytes = [], 0


@contextlib.contextmanager
def write_routes(path: Path, record: RoutesRecord) -> Iterator[RoutesWriter]:
    """Write a routes file prompt by prompt, in the memory of one row group."""
    options: dict[str, Any] = {"compression": "zstd", "write_page_checksum": True}  # so that damage is detected
    with atomic_file(path) as sink, pq.ParquetWriter(sink, ROUTES_SCHEMA, **options) as file:
        writer = RoutesWriter(file, record)
        yield writer
        writer.finish()
