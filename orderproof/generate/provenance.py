"""What a job's outputs rest on, kept inside outputs.parquet: wherever DVC takes that file, its origin goes with it.

In: what an engine says of itself, kept beside a checkpoint's key; a finished checkpoint; or an outputs.parquet. Out:
`Provenance`. It holds no time and no name of a machine, so that the same inputs and outputs give the same file. Starts
no engine, and knows nothing of trackers or DVC.
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
from orderproof.generate.checkpoint import KEY_FILE, CheckpointError
from orderproof.job.files import write_atomically

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


def engine_on_record(info: EngineInfo) -> dict[str, Any]:
    """What of an engine decides outputs, as far as it says so."""
    machine, replicas = info.machine, info.settings.get("replicas", 1)
    return {
        **info.kind,
        "device_name": machine.get("device"),
        "threads": machine.get("threads"),
        **({"replicas": replicas} if replicas > 1 else {}),  # noted, but never a reason to refuse: see `output_key`
    }


def keep_engine(checkpoint: Path, info: EngineInfo, *, has_results: bool) -> None:
    """Write down which engine gives a checkpoint's results; which one it is shows only once it runs.

    Raises:
        CheckpointError: the results there are of an engine of another kind, which are not mixed either; or it cannot
            be written.
    """
    path = checkpoint / ENGINE_FILE
    try:
        if not path.exists() or not has_results:
            write_atomically(path, json.dumps(engine_on_record(info), indent=1) + "\n")
            return
        held: Mapping[str, Any] = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error.strerror}") from None
    except ValueError:
        raise CheckpointError(
            f"{path} is damaged, so it cannot be told which engine gave the results beside it. Begin anew with "
            "--restart, which moves the checkpoint aside"
        ) from None
    then = {name: held.get(name) for name in info.kind}
    if then != info.kind:
        raise CheckpointError(
            f"{checkpoint} holds results of another engine ({json.dumps(then)}, now {json.dumps(info.kind)}), and they "
            "are never mixed. Start that one again, or begin anew with --restart, which moves the checkpoint aside"
        )


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
