"""A finished checkpoint as data/<job>/outputs.parquet, in the order of the prompts file; also outputs.jsonl where the
prompts are a batch file. Both appear whole or not at all, after the outputs met their expectations.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
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
from orderproof.job.paths import OUTPUTS_BATCH_FILE, OUTPUTS_FILE
from orderproof.prompts.request_defaults import RequestDefaults
from orderproof.prompts.tolerance import sufficient, tolerance, tolerates
from orderproof.validation.validate import validate_outputs

ROWS_PER_GROUP = 1024  # in memory at a time, with all their tokens
ROWS_PER_SUITE = 65_536  # of one run of the expectations, which has only ids and counts in memory
SHOWN_FAILURES = 5

_LOGPROB = pa.struct([("token_id", pa.int32()), ("logprob", pa.float64()), ("text", pa.string())])
# A row for each sample that was requested of a prompt, in the order of the prompts file.
OUTPUTS_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), False),
        pa.field("sample", pa.int32(), False),  # from 0 to n − 1
        ("text", pa.string()),  # null: failed
        ("token_ids", pa.list_(pa.int32())),
        pa.field("finish_reason", pa.string(), False),  # stop | length | repetition | failed
        ("stop_reason", pa.string()),  # the stop string that ended it; null: none
        ("stop_token_id", pa.int32()),  # or the stop token
        ("prompt_tokens", pa.int32()),
        ("output_tokens", pa.int32()),
        ("logprobs", pa.list_(pa.list_(_LOGPROB))),  # of each token: its own, then the likeliest; null: not requested
        ("error", pa.string()),  # why it failed, or how its output differs from the request; null: neither
    ]
)
_EXPECTED_COLUMNS = ["id", "sample", "n", "n_tokens", "asked_tokens", "finish_reason", "error"]


class DeliveryError(OrderproofError):
    """All results are kept, but the outputs cannot be written: why, and what to do."""


@dataclass(frozen=True)
class Delivered:
    """The outputs of a job, and which of them failed."""

    path: Path
    kinds: Mapping[str, int]  # of failures, by kind
    failures: tuple[
        tuple[str, str], ...
    ]  # (id, reason) of the first few, in an engine's words, which may quote prompts

    @property
    def failed(self) -> int:
        return sum(self.kinds.values())


def deliver(batch: Batch, folder: Path) -> Delivered:
    """Write outputs.parquet, and outputs.jsonl for a batch file, from a checkpoint with a result for every prompt.

    Args:
        folder: for the results of the expectations.

    Raises:
        DeliveryError: more failures than are tolerated.
        and what `write_outputs` raises.
    """
    kinds, first = failures(batch.checkpoint, SHOWN_FAILURES)
    reasons = tuple((result.id, result.error or "") for result in first)
    _check_failures(batch, kinds, reasons)
    path, lines = batch.job.data_dir / OUTPUTS_FILE, batch.job.data_dir / OUTPUTS_BATCH_FILE
    if batch.file.is_batch_file:
        write_outputs(batch, path, folder, lines)
    else:
        write_outputs(batch, path, folder)
        lines.unlink(missing_ok=True)  # of an earlier version of the prompts
    return Delivered(path, kinds, reasons)


def write_outputs(batch: Batch, path: Path, folder: Path, lines: Path | None = None) -> None:
    """Write a checkpoint's outputs, with their provenance, in the order of the prompts file.

    Args:
        folder: for the results of the expectations; a large job has a subfolder for each ROWS_PER_SUITE outputs.
        lines: for the same outputs as lines of OpenAI's batch format.

    Raises:
        DeliveryError: the file cannot be written.
        ValidationFailed: the outputs are not one for each prompt, in the file's order.
        PromptError: the prompts were edited during the run.
    """
    checkpoint = batch.checkpoint
    schema = provenance_of(checkpoint.folder).in_schema(OUTPUTS_SCHEMA)
    ids = iter(batch.file.ids)
    for part in path.parent.glob(f".{path.stem}.*.part"):  # of a run that was killed here
        part.unlink(missing_ok=True)
    try:
        with (
            atomic_files(*([lines] if lines else []), path) as sinks,
            pq.ParquetWriter(sinks[-1], schema, compression="zstd") as writer,
        ):
            batch_file = _BatchFile(batch, sinks[0]) if lines else None
            for start in range(0, len(batch.source), ROWS_PER_SUITE):
                places = range(start, min(start + ROWS_PER_SUITE, len(batch.source)))
                written = _write_rows(checkpoint, writer, batch_file, places)
                results_folder = folder if len(batch.source) <= ROWS_PER_SUITE else folder / f"from-{start:09d}"
                expected = list(itertools.islice(ids, ROWS_PER_SUITE))
                batch.file.check_unchanged()  # before the ids of an edited file are expected
                validate_outputs(expected, written, results_folder, source=str(path))
            batch.file.check_unchanged()  # once more, immediately before the file appears
    except OSError as error:
        raise DeliveryError(
            f"{path} cannot be written: {error.strerror or error}. All results are kept in {checkpoint.folder}. Fix "
            "this, then run the job again: no prompt is sent twice"
        ) from None


def _check_failures(batch: Batch, kinds: Mapping[str, int], reasons: tuple[tuple[str, str], ...]) -> None:
    total, failed = len(batch.source), sum(kinds.values())
    if tolerates(batch.job, failed, total):
        return
    words = [f"{id!r}: {reason}" for id, reason in reasons]
    more = [f"and {failed - len(words)} more"] if failed > len(words) else []
    error = DeliveryError(
        f"{failed} of {total} prompts have no output as requested ({kinds_text(kinds)}), "
        f"and {tolerance(batch.job)}. The other outputs are kept in {batch.checkpoint.folder}. Fix these prompts and "
        f"run the job again, or {sufficient(failed, total)}"
    )
    raise error.about_prompts(*words, *more, log_text=batch.job.reporting.log_text)


def kinds_text(kinds: Mapping[str, int]) -> str:
    """`3 refused, 1 cut short`."""
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))


class _BatchFile:
    """Writes outputs.jsonl."""

    def __init__(self, batch: Batch, sink: IO[bytes]) -> None:
        self.source, self.sink, job = batch.file, sink, batch.job
        self.lines = BatchLines(RequestDefaults(job).models[0], job.sampling, batch.file.md5, int(time.time()))

    def write(self, results: list[Result]) -> None:
        prompts = self.source.read([result.place for result in results])
        self.sink.writelines(map(self.lines.line, prompts, results))


def _write_rows(
    checkpoint: Checkpoint, writer: pq.ParquetWriter, batch_file: _BatchFile | None, places: range
) -> pa.Table:
    """Write the rows of some prompts, a group at a time; returns the columns that the expectations need."""
    tables = []
    for start in range(places.start, places.stop, ROWS_PER_GROUP):
        results = list(_read(checkpoint, range(start, min(start + ROWS_PER_GROUP, places.stop))))
        writer.write_table(outputs_table(results))
        if batch_file:
            batch_file.write(results)
        tables.append(_expected_columns(results))
    return pa.concat_tables(tables)


def _read(checkpoint: Checkpoint, places: range) -> Iterator[Result]:
    """Results in the file's order; a missing one is left out, which the expectations then report."""
    return (result for place in places if (result := checkpoint.read(place)))


def _samples(results: list[Result]) -> list[tuple[Result, int, Completion | None]]:
    """(result, number of the sample, completion) of each requested sample; no completion where the prompt failed."""
    return [(r, k, r.completions[k] if r.completions else None) for r in results for k in range(r.asked_samples)]


def outputs_table(results: list[Result]) -> pa.Table:
    """Rows of `OUTPUTS_SCHEMA`."""
    rows = _samples(results)
    columns = {
        "id": [r.id for r, _, _ in rows],
        "sample": [k for _, k, _ in rows],
        "text": [c and c.text for _, _, c in rows],
        "token_ids": [c.token_ids if c else [] for _, _, c in rows],
        "finish_reason": [c.finish_reason if c else "failed" for _, _, c in rows],
        "stop_reason": [c.stop_reason if c and isinstance(c.stop_reason, str) else None for _, _, c in rows],
        "stop_token_id": [c.stop_reason if c and isinstance(c.stop_reason, int) else None for _, _, c in rows],
        "prompt_tokens": [r.prompt_tokens for r, _, _ in rows],
        "output_tokens": [len(c.token_ids) if c else 0 for _, _, c in rows],
        "logprobs": [_logprobs(c) for _, _, c in rows],
        "error": [r.error for r, _, _ in rows],
    }
    return pa.table(columns, schema=OUTPUTS_SCHEMA)


def _logprobs(completion: Completion | None) -> list[list[tuple[int, float, str]]] | None:
    if completion is None or completion.logprobs is None:
        return None
    return [[(token, logprob, text) for token, logprob, text in likely] for likely in completion.logprobs]


def _expected_columns(results: list[Result]) -> pa.Table:
    rows = _samples(results)
    columns = [
        pa.array([r.id for r, _, _ in rows], pa.string()),
        pa.array([k for _, k, _ in rows], pa.int64()),
        pa.array([r.asked_samples for r, _, _ in rows], pa.int64()),
        pa.array([len(c.token_ids) if c else 0 for _, _, c in rows], pa.int64()),
        pa.array([r.asked_tokens for r, _, _ in rows], pa.int64()),
        pa.array([c.finish_reason if c else "failed" for _, _, c in rows], pa.string()),
        pa.array([r.error for r, _, _ in rows], pa.string()),
    ]
    return pa.Table.from_arrays(columns, names=_EXPECTED_COLUMNS)
