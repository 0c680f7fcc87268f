"""What a job's outputs depend on, in the metadata of outputs.parquet: where DVC takes the file, its origin goes too.

It has no time and no name of a machine, so that the same inputs and outputs give the same file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, ValidationError

from orderproof.engines.protocol import EngineInfo
from orderproof.generate.checkpoint_folder import KEY_FILE, CheckpointError
from orderproof.job.files import write_atomically

SCHEMA: Final = "orderproof/outputs/1"
METADATA_KEY = b"orderproof"
ENGINE_FILE = "engine.json"  # beside the checkpoint's key: the engine that gave its results


class Provenance(BaseModel):
    """Everything that decided some outputs."""

    model_config = ConfigDict(frozen=True)

    schema_version: str = SCHEMA
    key: dict[str, Any]  # the checkpoint's: dataset, model, engine settings, sampling, order, …
    engine: dict[str, Any] | None = None  # versions, device, threads; None: no prompt reached an engine

    @property
    def everything(self) -> dict[str, Any]:
        """One mapping, whose leaves can be compared by name. How prompts arrived decides only the order."""
        key = {name: part for name, part in self.key.items() if name not in ("stream", "windows")}
        return {**key, "engine": {**self.key.get("engine", {}), **(self.engine or {})}}

    def in_schema(self, schema: pa.Schema) -> pa.Schema:
        """A schema whose file carries this."""
        return schema.with_metadata({METADATA_KEY: self.model_dump_json().encode()})


def engine_provenance(info: EngineInfo) -> dict[str, Any]:
    """What decides outputs in an engine, as far as it reports that."""
    machine, replicas = info.machine, info.settings.get("replicas", 1)
    return {
        **info.kind,
        "device_name": machine.get("device"),
        "threads": machine.get("threads"),
        **({"replicas": replicas} if replicas > 1 else {}),  # recorded, never compared: see `output_key`
    }


def write_engine(checkpoint: Path, info: EngineInfo, *, has_results: bool) -> None:
    """Write which engine gives a checkpoint's results, once it runs; or check that it is still the same kind.

    Raises:
        CheckpointError: the results there are of another kind of engine; or it cannot be written.
    """
    path = checkpoint / ENGINE_FILE
    try:
        if not path.exists() or not has_results:
            write_atomically(path, json.dumps(engine_provenance(info), indent=1) + "\n")
            return
        existing: Mapping[str, Any] = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error.strerror}") from None
    except ValueError:
        raise CheckpointError(
            f"{path} is damaged, so the engine of the results beside it is unknown. Use --restart to begin again: the "
            "checkpoint is moved aside"
        ) from None
    before = {name: existing.get(name) for name in info.kind}
    if before != info.kind:
        raise CheckpointError(
            f"{checkpoint} has results of another engine, and results are never mixed. Before: {json.dumps(before)}; "
            f"now: {json.dumps(info.kind)}. Use that engine again; or use --restart to begin again: the checkpoint is "
            "moved aside"
        )


def provenance_of(checkpoint: Path) -> Provenance:
    """What the results in a checkpoint's folder depend on. Raises OSError or ValueError: its key cannot be read."""
    engine = checkpoint / ENGINE_FILE
    key = json.loads((checkpoint / KEY_FILE).read_bytes())
    key.pop("windows", None)  # how a growing order is made; a whole one has it in `order`
    return Provenance(
        key=key,
        engine=json.loads(engine.read_bytes()) if engine.exists() else None,
    )


def read_provenance(outputs: Path) -> Provenance | None:
    """The origin of an outputs.parquet; None: the file does not have it. Raises OSError or pa.ArrowException."""
    content = (pq.read_schema(outputs).metadata or {}).get(METADATA_KEY)
    try:
        return None if content is None else Provenance.model_validate_json(content)
    except ValidationError:
        return None
