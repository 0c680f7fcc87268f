"""From a whole checkpoint to data/<job>/outputs.parquet, in the order of the prompts file.

In: a job's prompts and its finished checkpoint. Out: outputs.parquet, and beside it outputs.jsonl where the prompts are
a batch file, whole or not at all, after their expectations were met; or a `DeliveryError`, and everything is kept.
Knows nothing of engines, trackers or DVC.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from orderproof.engines.protocol import Completion
from orderproof.generate.checkpoint import Checkpoint
from orderproof.generate.generation import Batch, failures
from orderproof.generate.openai_outputs import BatchLines
from orderproof.generate.provenance import provenance_of
from orderproof.generate.result import Result
from orderproof.job.errors import OrderproofError
from orderproof.job.files import atomic_files
from orderproof.prompts.request_defaults import RequestDefaults
from orderproof.validation.validate import validate_outputs

OUTPUTS_FILE, BATCH_FILE = "outputs.parquet", "outputs.jsonl"
ROWS_PER_GROUP = 1024  # in memory at a time, with all their tokens
ROWS_PER_SUITE = 65_536  # that one run of the expectations sees; of them only ids and counts are in memory
SHOWN_FAILURES = 5

_LOGPROB = pa.struct([("token_id", pa.int32()), ("logprob", pa.float64()), ("text", pa.string())])
# A row for each sample that was asked of a prompt, in the order of the prompts file.
OUTPUTS_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), False),
        pa.field("sample", pa.int32(), False),  # from 0 to n − 1
        ("text", pa.string()),  # null: failed
        ("token_ids", pa.list_(pa.int32())),
        pa.field("finish_reason", pa.string(), False),  # stop | length | repetition | failed
        ("stop_reason", pa.string()),  # the stop string that ended it; null: none did
        ("stop_token_id", pa.int32()),  # the stop token, likewise
        ("prompt_tokens", pa.int32()),
        ("output_tokens", pa.int32()),
        ("logprobs", pa.list_(pa.list_(_LOGPROB))),  # of each token: itself, then the likeliest; null: not asked
        ("error", pa.string()),  # why it failed, or how its output is not what was asked; null: all is well
    ]
)
_LIGHT = ["id", "sample", "n", "n_tokens", "asked_tokens", "finish_reason", "error"]  # what the expectations look at


class DeliveryError(OrderproofError):
    """The results are whole and kept, but cannot be handed over: why, and what to do."""


@dataclass(frozen=True)
class Delivered:
    """The outputs of a job, and what is wrong with some of them."""

    path: Path
    failed: int
    failures: tuple[tuple[str, str], ...]  # (id, reason) of the first few


def deliver(batch: Batch, folder: Path) -> Delivered:
    """Write outputs.parquet, and outputs.jsonl for a batch file, from a checkpoint that holds every prompt.

    Raises:
        DeliveryError: more failures than are tolerated.
        and what `write_outputs` raises.
    """
    failed, first = failures(batch.checkpoint, SHOWN_FAILURES)
    told = tuple((result.id, result.error or "") for result in first)
    _refuse_intolerable(batch, failed, told)
    path, lines = batch.job.data_dir / OUTPUTS_FILE, batch.job.data_dir / BATCH_FILE
    if batch.file.is_batch_file:
        write_outputs(batch, path, folder, lines)
    else:
        write_outputs(batch, path, folder)
        lines.unlink(missing_ok=True)  # of an earlier version of the prompts
    return Delivered(path, failed, told)


def write_outputs(batch: Batch, path: Path, folder: Path, lines: Path | None = None) -> None:
    """Write a checkpoint's outputs, with what they rest on, in the order of the prompts file.

    Args:
        folder: for what the expectations found; a large job has a part of it for each ROWS_PER_SUITE outputs.
        lines: where the same outputs go as lines of OpenAI's batch format.

    Raises:
        DeliveryError: the file cannot be written.
        ValidationFailed: the outputs are not one for each prompt, in the file's order.
        PromptError: the prompts were edited meanwhile.
    """
    checkpoint = batch.checkpoint
    schema = provenance_of(checkpoint.folder).in_schema(OUTPUTS_SCHEMA)
    ids = iter(batch.file.ids)
    for torn in path.parent.glob(f".{path.stem}.*.part"):  # of a run that was killed here
        torn.unlink(missing_ok=True)
    try:
        with (
            atomic_files(*([lines] if lines else []), path) as sinks,
            pq.ParquetWriter(sinks[-1], schema, compression="zstd") as writer,
        ):
            batch_file = _BatchFile(batch, sinks[0]) if lines else None
            for start in range(0, len(batch.source), ROWS_PER_SUITE):
                places = range(start, min(start + ROWS_PER_SUITE, len(batch.source)))
                light = _write_part(checkpoint, writer, batch_file, places)
                part = folder if len(batch.source) <= ROWS_PER_SUITE else folder / f"from-{start:09d}"
                expected = list(itertools.islice(ids, ROWS_PER_SUITE))
                batch.file.check_unchanged()  # before other ids than those that were sent are expected
                validate_outputs(expected, light, part, source=str(path))
            batch.file.check_unchanged()  # and once more, at the last moment before the file appears
    except OSError as error:
        raise DeliveryError(
            f"{path} cannot be written: {error.strerror or error}. All results are kept in {checkpoint.folder}; "
            "when that is mended, run the job again, which sends nothing twice"
        ) from None


def _refuse_intolerable(batch: Batch, failed: int, told: tuple[tuple[str, str], ...]) -> None:
    tolerated, total = batch.job.generate.tolerated_failures, len(batch.source)
    if failed / total <= tolerated:  # 29 of 100 are 0.29, but more than 0.29 * 100 as computers reckon
        return
    enough = math.ceil(failed / total * 10_000) / 10_000
    named = "; ".join(f"{id!r}: {reason}" for id, reason in told)
    raise DeliveryError(
        f"{failed} of {total} prompts have no output as asked ({named}{' …' if failed > len(told) else ''}), and "
        f"`tolerated_failures` under `generate` in params.yaml is {tolerated:g}. The others are kept in "
        f"{batch.checkpoint.folder}: mend what these need and run the job again, or tolerate {enough:g}"
    )


class _BatchFile:
    """The lines of outputs.jsonl, as they are written."""

    def __init__(self, batch: Batch, sink: IO[bytes]) -> None:
        self.source, self.sink, job = batch.file, sink, batch.job
        self.lines = BatchLines(RequestDefaults(job).models[0], job.sampling, batch.file.md5, int(time.time()))

    def write(self, results: list[Result]) -> None:
        prompts = self.source.read([result.place for result in results])
        self.sink.writelines(map(self.lines.line, prompts, results))


def _write_part(
    checkpoint: Checkpoint, writer: pq.ParquetWriter, batch_file: _BatchFile | None, places: range
) -> pa.Table:
    """Write some rows, a group at a time; returns what the expectations look at."""
    light = []
    for start in range(places.start, places.stop, ROWS_PER_GROUP):
        results = list(_restored(checkpoint, range(start, min(start + ROWS_PER_GROUP, places.stop))))
        writer.write_table(table_of(results))
        if batch_file:
            batch_file.write(results)
        light.append(_light(results))
    return pa.concat_tables(light)


def _restored(checkpoint: Checkpoint, places: range) -> Iterator[Result]:
    """Results in the file's order; one that is missing is left out, and the expectations say so."""
    return (result for place in places if (result := checkpoint.read(place)))


def _samples(results: list[Result]) -> list[tuple[Result, int, Completion | None]]:
    """Each result as many times as it was asked for samples; None for those of a prompt that failed."""
    return [(r, k, r.completions[k] if r.completions else None) for r in results for k in range(r.asked_samples)]


def table_of(results: list[Result]) -> pa.Table:
    rows = _samples(results)
    columns = [
        [r.id for r, _, _ in rows],
        [k for _, k, _ in rows],
        [one and one.text for _, _, one in rows],
        [one.token_ids if one else [] for _, _, one in rows],
        [one.finish_reason if one else "failed" for _, _, one in rows],
        [one.stop_reason if one and isinstance(one.stop_reason, str) else None for _, _, one in rows],
        [one.stop_reason if one and isinstance(one.stop_reason, int) else None for _, _, one in rows],
        [r.prompt_tokens for r, _, _ in rows],
        [len(one.token_ids) if one else 0 for _, _, one in rows],
        [_logprobs(one) for _, _, one in rows],
        [r.error for r, _, _ in rows],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, OUTPUTS_SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=OUTPUTS_SCHEMA)


def _logprobs(one: Completion | None) -> list[list[tuple[int, float, str]]] | None:
    if one is None or one.logprobs is None:
        return None
    return [[(token, logprob, text) for token, logprob, text in likely] for likely in one.logprobs]


def _light(results: list[Result]) -> pa.Table:
    rows = _samples(results)
    columns = [
        pa.array([r.id for r, _, _ in rows], pa.string()),
        pa.array([k for _, k, _ in rows], pa.int64()),
        pa.array([r.asked_samples for r, _, _ in rows], pa.int64()),
        pa.array([len(one.token_ids) if one else 0 for _, _, one in rows], pa.int64()),
        pa.array([r.asked_tokens for r, _, _ in rows], pa.int64()),
        pa.array([one.finish_reason if one else "failed" for _, _, one in rows], pa.string()),
        pa.array([r.error for r, _, _ in rows], pa.string()),
    ]
    return pa.Table.from_arrays(columns, names=_LIGHT)
