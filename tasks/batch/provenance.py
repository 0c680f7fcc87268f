"""What a job's outputs rest on, kept inside outputs.parquet: wherever DVC takes that file, its origin goes with it.

In: a finished checkpoint; or an outputs.parquet. Out: `Provenance`. It holds no time and no name of a machine, so that
the same inputs and outputs give the same file. Knows nothing of engines, trackers or DVC.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, ValidationError

from orderproof.tasks.batch.checkpoint import KEY_FILE

SCHEMA: Final = "orderproof/outputs/1"
METADATA_KEY = b"orderproof"
ENGINE_FILE = "engine.json"  # beside the checkpoint's key: the engine that gave its results


class Provenance(BaseModel):
    """All that decided some outputs."""

    model_config = ConfigDict(frozen=True)

    schema_version: str = SCHEMA
    key: dict[str, Any]  # the checkpoint's: dataset, model, engine settings, sampling, order, …
    engine: dict[str, Any] | None = None  # versions, device, threads; None: no prompt reached an engine

    @property
    def everything(self) -> dict[str, Any]:
        """One mapping, whose leaves can be compared by name. How prompts came in decides nothing but the order."""
        asked = {name: part for name, part in self.key.items() if name not in ("stream", "windows")}
        return {**asked, "engine": {**self.key.get("engine", {}), **(self.engine or {})}}

    def in_schema(self, schema: pa.Schema) -> pa.Schema:
        """A schema whose file carries this."""
        return schema.with_metadata({METADATA_KEY: self.model_dump_json().encode()})


def provenance_of(checkpoint: Path) -> Provenance:
    """What the results in a checkpoint's folder rest on. Raises OSError or ValueError if its key cannot be read."""
    engine = checkpoint / ENGINE_FILE
    key = json.loads((checkpoint / KEY_FILE).read_bytes())
    key.pop("windows", None)  # how an order that grew is made: of a whole one `order` says it
    return Provenance(
        key=key,
        engine=json.loads(engine.read_bytes()) if engine.exists() else None,
    )


def read_provenance(outputs: Path) -> Provenance | None:
    """What an outputs.parquet says of its origin; None if it says nothing. Raises OSError or pa.ArrowException."""
    found = (pq.read_schema(outputs).metadata or {}).get(METADATA_KEY)
    try:
        return None if found is None else Provenance.model_validate_json(found)
    except ValidationError:
        return None
