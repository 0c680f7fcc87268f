"""Routes: the experts that every captured token chose in every layer, read from their file in bounded memory.

The file is Parquet, written by routes_writer.py: one row per captured prompt (ROUTES_SCHEMA), and a `RoutesRecord` as
JSON in its metadata.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from cachetools import LRUCache
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError

from orderproof.job.model import ModelFacts
from orderproof.routing.errors import RoutingError
from orderproof.routing.experts import ExpertIds, bit_sets, distinct, frequencies

FORMAT: Literal["orderproof/routes/1"] = "orderproof/routes/1"
RECORD_KEY = b"orderproof.routes"
CACHE_BYTES = 256 << 20  # of row groups that a reader keeps in memory
REMEDY = "Capture again with `orderproof capture JOB`"
CHAT_TEMPLATE_ARGS = "chat_template_args"  # key of `RoutesRecord.capture`: what the chat template was given

# One row per captured prompt, in the order in which they were added.
ROUTES_SCHEMA = pa.schema(
    [
        pa.field("prompt_id", pa.string(), False),
        pa.field("prompt_tokens", pa.int32(), False),
        pa.field("decode_tokens", pa.int32(), False),  # generated tokens that have a row: all but the last one
        # [prompt_tokens + decode_tokens, layers, top_k] in C order: uint8, or little-endian uint16 above 256 experts
        pa.field("experts", pa.large_binary(), False),
    ]
)


class RoutesRecord(BaseModel):
    """What the routes of a file belong to and how they were captured."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["orderproof/routes/1"] = FORMAT
    model: str  # fingerprint, as in ModelFacts
    dataset_md5: str
    layers: PositiveInt  # that have routed experts
    experts: PositiveInt  # per layer
    top_k: PositiveInt  # that a token uses per layer
    versions: dict[str, str] = {}  # of the software that ran the model
    capture: dict[str, Any] = {}  # how the prompts were picked and rendered, and the routes taken
    missing: dict[str, str] = {}  # prompt id → why it has no routes
    texts: dict[str, str] = {}  # prompt id → digest of its text: another file may use the same id for another prompt

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype("u1" if self.experts <= 256 else "<u2")

    def fault_of(self, experts: NDArray[Any], prompt_tokens: int) -> str | None:
        """What is wrong with a prompt's experts, [prompt_tokens + decode_tokens, layers, top_k]; None: nothing."""
        fits = experts.ndim == 3 and experts.shape[1:] == (self.layers, self.top_k)
        if not fits or not 0 < prompt_tokens <= len(experts):
            wanted = f"{prompt_tokens} prompt tokens × {self.layers} layers × top-{self.top_k}"
            return f"routes have shape {experts.shape}, expected {wanted}"
        if int(experts.max()) >= self.experts or int(experts.min()) < 0:
            return f"experts {experts.min()} to {experts.max()}, and a layer has {self.experts}"
        if (distinct(bit_sets(experts, self.experts)) != self.top_k).any():
            return "a token chose the same expert twice"
        return None


def text_digest(text: str) -> str:
    """128 bits of a prompt's rendered text, to recognise it."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@dataclass(frozen=True, eq=False)
class PromptRoutes:
    """The routes of one prompt and of what was generated from it."""

    prompt_id: str
    prompt_tokens: int
    experts: ExpertIds  # [prompt_tokens + decode_tokens, layers, top_k]

    @property
    def prefill(self) -> ExpertIds:
        """[prompt_tokens, layers, top_k]"""
        return self.experts[: self.prompt_tokens]

    @property
    def decode(self) -> ExpertIds:
        """[generated tokens − 1, layers, top_k]: row j is the step that made generated token j + 1 out of token j.

        Token 0 comes from the prefill; the last token is fed to no layer and has no row.
        """
        return self.experts[self.prompt_tokens :]


class Routes:
    """A routes file, read as it is needed. Also a context manager.

    `ids`, `prompt_tokens` and `decode_tokens` are in memory; experts are read by row group, and the groups used most
    recently are kept, up to CACHE_BYTES.
    """

    def __init__(self, path: Path) -> None:
        """Open a file and read all but its experts.

        Raises:
            RoutingError: the file is missing, cut off or does not hold routes.
        """
        self.path = path
        with contextlib.ExitStack() as opened:
            try:
                self._file = opened.enter_context(pq.ParquetFile(path, page_checksum_verification=True))
                self.record = _read_record(path, self._file)
                columns = self._file.read(columns=ROUTES_SCHEMA.names[:3])
                self.ids: tuple[str, ...] = tuple(columns["prompt_id"].to_pylist())
            except FileNotFoundError:
                raise RoutingError(f"{path} does not exist: run `orderproof capture JOB`") from None
            except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
                raise RoutingError(f"{path} cannot be read as routes: {_plain(error)}. {REMEDY}") from None
            self.place: Mapping[str, int] = {prompt_id: k for k, prompt_id in enumerate(self.ids)}
            if len(self.place) < len(self.ids):
                raise RoutingError(f"{path} holds a prompt twice. {REMEDY}")
            opened.pop_all()  # a refused file is closed, an accepted one stays open
        self.prompt_tokens: NDArray[np.int32] = columns["prompt_tokens"].to_numpy()
        self.decode_tokens: NDArray[np.int32] = columns["decode_tokens"].to_numpy()
        groups = self._file.metadata.num_row_groups
        self._ends = np.cumsum([self._file.metadata.row_group(group).num_rows for group in range(groups)], dtype=int)
        self._groups: LRUCache[int, list[PromptRoutes]] = LRUCache(CACHE_BYTES, _cached_bytes)

    def __enter__(self) -> Routes:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, place: int) -> PromptRoutes:
        """One prompt's routes. Raises RoutingError if they are damaged."""
        group = int(np.searchsorted(self._ends, place, side="right"))
        if not 0 <= place < len(self):
            raise IndexError(place)
        return self._group(group)[place - (int(self._ends[group - 1]) if group else 0)]

    def __iter__(self) -> Iterator[PromptRoutes]:
        """All prompts in the file's order, a row group in memory at a time."""
        for group in range(len(self._ends)):
            yield from self._groups.get(group) or self._read(group)

    def _group(self, group: int) -> list[PromptRoutes]:
        prompts = self._groups.get(group)
        if prompts is None:
            prompts = self._groups[group] = self._read(group)
        return prompts

    def _read(self, group: int) -> list[PromptRoutes]:
        try:
            rows = self._file.read_row_group(group).to_pylist()
        except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
            raise RoutingError(f"{self.path} is damaged: {_plain(error)}. {REMEDY}") from None
        return [self._checked(*row.values()) for row in rows]

    def _checked(self, prompt_id: str, prompt_tokens: int, decode_tokens: int, content: bytes) -> PromptRoutes:
        record, where = self.record, f"{self.path}: prompt {prompt_id!r}"
        shape = (prompt_tokens + decode_tokens, record.layers, record.top_k)
        if len(content) != np.prod(shape) * record.dtype.itemsize:
            raise RoutingError(f"{where} has {len(content)} bytes of experts for {shape[0]} tokens. {REMEDY}")
        experts = np.frombuffer(content, record.dtype).reshape(shape)
        if fault := record.fault_of(experts, prompt_tokens):
            raise RoutingError(f"{where}: {fault}. {REMEDY}")
        return PromptRoutes(prompt_id, prompt_tokens, experts)


def open_routes(path: Path, model: ModelFacts, dataset_md5: str) -> Routes:
    """Open routes that must belong to a model and to a prompts file.

    Raises:
        RoutingError: as `Routes`; or they belong to another model or to other prompts.
    """
    with contextlib.ExitStack() as opened:
        routes = opened.enter_context(Routes(path))
        _check_owner(path, routes.record, model, dataset_md5)
        opened.pop_all()  # a refused file is closed, an accepted one stays open
    return routes


def _check_owner(path: Path, record: RoutesRecord, model: ModelFacts, dataset_md5: str) -> None:
    moe = model.moe
    if record.model != model.fingerprint:
        raise RoutingError(
            f"{path} was captured from another model (fingerprint {record.model[:12]}; {model.path} has "
            f"{model.fingerprint[:12]}). {REMEDY}"
        )
    if moe is None or (record.layers, record.experts, record.top_k) != (moe.moe_layers, moe.experts, moe.top_k):
        has = f"{moe.moe_layers} layers of {moe.experts} experts, top-{moe.top_k}" if moe else "no experts"
        raise RoutingError(
            f"{path} holds {record.layers} layers of {record.experts} experts, top-{record.top_k}, and {model.path} "
            f"has {has}. {REMEDY}"
        )
    if record.dataset_md5 != dataset_md5:
        raise RoutingError(
            f"{path} was captured from other prompts (md5 {record.dataset_md5}; the file now has {dataset_md5}). "
            f"{REMEDY}"
        )


def frequency_matrix(routes: Routes, part: Literal["prefill", "decode"]) -> NDArray[np.float32]:
    """Per prompt, how often each expert of each layer was chosen while its prompt was read, or while it generated.

    Returns:
        float32[prompts, layers · experts] in the order of `routes.ids`: see `experts.frequencies`.
    """
    record = routes.record
    matrix = np.zeros((len(routes), record.layers * record.experts), np.float32)
    for row, prompt in zip(matrix, routes, strict=True):
        row[:] = frequencies(prompt.prefill if part == "prefill" else prompt.decode, record.experts)
    return matrix


def _read_record(path: Path, file: pq.ParquetFile) -> RoutesRecord:
    content = (file.metadata.metadata or {}).get(RECORD_KEY)
    if content is None or file.schema_arrow.remove_metadata() != ROUTES_SCHEMA:
        raise RoutingError(f"{path} is a Parquet file, but does not hold routes. {REMEDY}")
    try:
        return RoutesRecord.model_validate(json.loads(content))
    except (ValueError, ValidationError):
        raise RoutingError(
            f"{path} was written by another version of orderproof (this one reads {FORMAT}). {REMEDY}"
        ) from None


def _cached_bytes(prompts: list[PromptRoutes]) -> int:
    """A group larger than the cache is kept alone."""
    return min(CACHE_BYTES, sum(prompt.experts.nbytes for prompt in prompts))


def _plain(error: Exception) -> str:
    return " ".join(str(error).split())[:300].rstrip(".")
