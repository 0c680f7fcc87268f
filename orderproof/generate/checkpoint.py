"""The checkpoint of an unfinished batch: data/<job>/outputs.partial/, where each result lies as soon as it is there.

In: a key (all that decides an output), an order, results as they finish. Out: the same results after any crash, by the
prompt's place in the file; or a `CheckpointError`. Knows nothing of engines, Prefect, MLflow or DVC.

    key.json       what the results depend on; results of another key are never mixed with these
    order.i8       the order of sending, little-endian int64
    results.jsonl  one line per result (result.py)

A result is written with one call, so that a killed process loses none, and is synced within a second, so that a machine
that loses its power loses a second's. A line that does not fit its checksum is not there.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import shutil
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderproof.generate.result import ALL_RIGHT, FLAWED, Result, head_of, line_of, result_of
from orderproof.job.errors import OrderproofError
from orderproof.job.files import sync_folder, write_atomically
from orderproof.job.output_key import differences
from orderproof.orders.order import Order
from orderproof.orders.order_record import OrderRecord

FOLDER = "outputs.partial"
KEY_FILE, ORDER_FILE, RESULTS_FILE = "key.json", "order.i8", "results.jsonl"
SYNC_S = 1.0


class CheckpointError(OrderproofError):
    """A checkpoint that cannot be used or written: why, what is kept, and what to do."""


class Checkpoint:
    """The results so far of N prompts, 9 bytes each in memory. A context manager: leaving it keeps everything."""

    def __init__(self, folder: Path, order: Order) -> None:
        """Use `open_checkpoint`."""
        self.folder, self.order = folder, order
        self.state = np.zeros(len(order), np.int8)
        self.damaged = 0  # lines that did not fit their checksum: their prompts are sent again
        self._offsets = np.full(len(order), -1, np.int64)
        self._failure: OSError | None = None
        self._writing = threading.Lock()
        self._closing = threading.Event()
        self._dirty = False
        with contextlib.ExitStack() as opened:  # closed again where the second or the recovery fails
            try:
                self._file = os.open(folder / RESULTS_FILE, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
                opened.callback(os.close, self._file)
                self._reader = opened.enter_context(open(folder / RESULTS_FILE, "rb"))
                self._end = self._recover()
            except OSError as error:
                raise unusable(folder, error) from None
            self._opened = opened.pop_all()
        self.resumed = int(self.done.sum())
        self._syncing = threading.Thread(target=self._sync_regularly, daemon=True)
        self._syncing.start()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def done(self) -> NDArray[np.bool_]:
        """bool[N], by place: there is an output, so the prompt is not sent again."""
        done: NDArray[np.bool_] = (self.state == ALL_RIGHT) | (self.state == FLAWED)
        return done

    @property
    def pending(self) -> NDArray[np.int64]:
        """Places of the prompts that are still to be sent, in the order of sending."""
        pending: NDArray[np.int64] = self.order.permutation[~self.done[self.order.permutation]]
        return pending

    def append(self, result: Result) -> None:
        """Keep a result. It outlives this process when this returns, and the machine's power a second later.

        Raises:
            CheckpointError: it cannot be written, is closed, or the prompt has an output already.
        """
        with self._writing:
            self._refuse_if_closed()
            if self.state[result.place] in (ALL_RIGHT, FLAWED):
                raise CheckpointError(f"{self.folder}: a second output for prompt {result.id!r} was refused")
            line = line_of(result)
            try:
                if self._failure:
                    raise self._failure
                self._write(line)
            except OSError as error:
                raise unusable(self.folder, error) from None
            self._offsets[result.place] = self._end
            self.state[result.place] = result.state
            self._end += len(line)
            self._dirty = True

    def read(self, place: int) -> Result | None:
        """What became of a prompt; None: nothing yet."""
        offset = int(self._offsets[place])
        if offset < 0:
            return None
        self._reader.seek(offset)
        return result_of(self._reader.readline())

    def close(self) -> None:
        """Sync and close; the folder stays."""
        with self._writing:
            if self._closing.is_set():
                return
            self._closing.set()
        self._syncing.join()
        with contextlib.suppress(OSError):
            os.fsync(self._file)
        self._opened.close()

    def discard(self) -> None:
        """Remove the folder, once its results lie elsewhere durably: first out of sight at once, then file by file.

        Raises:
            CheckpointError: it cannot be moved.
        """
        self.close()
        finished = _out_of_sight(self.folder)
        shutil.rmtree(finished, ignore_errors=True)
        try:
            os.replace(self.folder, finished)
        except OSError as error:
            raise CheckpointError(
                f"{self.folder} cannot be removed: {error.strerror}. The outputs and their record are there, so "
                "nothing in it is needed any more: remove what it holds"
            ) from None
        shutil.rmtree(finished, ignore_errors=True)

    def _recover(self) -> int:
        """Find the results that lie there whole, cut a torn last line, and return where the next one goes."""
        end = 0
        for line in self._reader:
            if not line.endswith(b"\n"):
                os.ftruncate(self._file, end)
                break
            found = head_of(line)
            if found is None or found[1] >= len(self.state):
                self.damaged += 1
            elif self.state[found[1]] not in (ALL_RIGHT, FLAWED):
                state, place = found
                self.state[place], self._offsets[place] = state, end
            end += len(line)
        return end

    def _refuse_if_closed(self) -> None:
        """A thread that still reads prompts when a run fails must not write where the next run is at work."""
        if self._closing.is_set():
            raise CheckpointError(f"{self.folder} is closed: its run has ended")

    def _write(self, line: bytes) -> None:
        """The whole line or nothing of it: a full disk takes part of a line and says so only at the next one."""
        written = 0
        try:
            while written < len(line):
                written += os.write(self._file, line[written:])
        except OSError:
            os.ftruncate(self._file, self._end)
            raise

    def _sync_regularly(self) -> None:
        while not self._closing.wait(SYNC_S):
            if self._dirty:
                self._dirty = False
                try:
                    os.fsync(self._file)
                except OSError as error:  # told to whoever appends next
                    self._failure = error


def unusable(folder: Path, error: OSError) -> CheckpointError:
    """What is told where a folder that may hold results can't be read or written."""
    return CheckpointError(
        f"{folder} cannot be written: {error.strerror or error}. The results so far are whole and kept there; when "
        "that is mended, run the job again to go on"
    )


def open_checkpoint(folder: Path, key: Mapping[str, Any], order: Order, *, restart: bool = False) -> Checkpoint:
    """Go on with a folder's checkpoint if it has this key, or begin one.

    Args:
        key: all that decides an output, as JSON holds it; the order is added to it.
        restart: begin anew; what lies there is moved aside and never deleted.

    Raises:
        CheckpointError: the checkpoint there is of another key (what differs is named), or cannot be written.
    """
    key = {**key, "order": order.record().model_dump()}
    begin_folder(folder, key, order.permutation, restart=restart)
    return Checkpoint(folder, order)


def begin_folder(
    folder: Path,
    key: Mapping[str, Any],
    sent: NDArray[np.int64],
    *,
    told_later: Sequence[str] = (),
    restart: bool = False,
) -> None:
    """See that a folder holds a checkpoint of this key.

    Args:
        sent: the order of sending, as far as it is known, of a new one.
        told_later: parts of the key that one that is far enough has, and need not have yet.

    Raises:
        CheckpointError: as `open_checkpoint`.
    """
    key = json.loads(json.dumps(key))
    shutil.rmtree(_out_of_sight(folder), ignore_errors=True)  # a crash after a job's end left it
    try:
        if folder.exists() and not _is_empty(folder):
            if restart:
                folder.rename(_free_name(folder))
            else:
                _refuse_other(folder, key, told_later)
        if not (folder / KEY_FILE).exists():
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / ORDER_FILE, sent.astype("<i8").tobytes())
            write_key(folder, key)
            sync_folder(folder.parent)
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be written: {error.strerror}. Nothing was sent yet") from None


def write_key(folder: Path, key: Mapping[str, Any]) -> None:
    """What all results in the folder rest on."""
    write_atomically(folder / KEY_FILE, json.dumps(key, ensure_ascii=False, indent=1) + "\n")


def kept_order(folder: Path) -> Order | None:
    """The order of a folder's checkpoint, so that going on need not make it again; None if there is none whole."""
    try:
        record = OrderRecord.model_validate(json.loads((folder / KEY_FILE).read_bytes())["order"])
        permutation = np.fromfile(folder / ORDER_FILE, "<i8").astype(np.int64)
        order = Order(permutation, record.method, record.parameters, record.seeds, record.dataset_md5)
    except (OSError, ValueError, KeyError, TypeError, OrderproofError):
        return None
    return order if order.sha256 == record.sha256 else None


def kept_key(folder: Path) -> dict[str, Any] | None:
    """What the results in a folder depend on; None if nothing says so."""
    try:
        key = json.loads((folder / KEY_FILE).read_bytes())
    except (OSError, ValueError):
        return None
    return key if isinstance(key, dict) else None


def progress_of(folder: Path) -> tuple[int, int] | None:
    """How many prompts of how many a folder's checkpoint has outputs for; None without one. Changes nothing there.

    Raises:
        CheckpointError: it cannot be read.
    """
    key = kept_key(folder)
    if key is None:
        return None
    total = int(key["prompts"]) if "prompts" in key else _ordered(folder)
    done = np.zeros(total, np.bool_)
    try:
        with open(folder / RESULTS_FILE, "rb") as source:
            for line in source:
                found = head_of(line) if line.endswith(b"\n") else None
                if found and found[1] < total:
                    done[found[1]] |= found[0] in (ALL_RIGHT, FLAWED)
    except FileNotFoundError:
        return 0, total
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be read: {error.strerror}") from None
    return int(done.sum()), total


def _ordered(folder: Path) -> int:
    """Prompts of a stream that were put in order so far."""
    order = folder / ORDER_FILE
    return order.stat().st_size // 8 if order.exists() else 0


def _refuse_other(folder: Path, key: Mapping[str, Any], told_later: Sequence[str]) -> None:
    remedy = (
        "Put that back and run the job again to go on, or begin anew with --restart, which moves the checkpoint aside"
    )
    then = kept_key(folder)
    if then is None:
        raise CheckpointError(f"{folder} holds results but no {KEY_FILE} that says what they rest on. {remedy}")
    if changed := differences(
        {name: part for name, part in then.items() if name in key or name not in told_later}, key
    ):
        raise CheckpointError(
            f"{folder} is the checkpoint of another job, and results are never mixed. It differs in "
            f"{'; '.join(changed)}. {remedy}"
        )


def _is_empty(folder: Path) -> bool:
    """Nothing in it is worth keeping: a crash between its making and its first result."""
    results = folder / RESULTS_FILE
    return not (folder / KEY_FILE).exists() and not (results.exists() and results.stat().st_size)


def _free_name(folder: Path) -> Path:
    now = datetime.datetime.now(datetime.UTC)
    return folder.with_name(f"{folder.name}.{now:%Y%m%dT%H%M%S}.{now.microsecond:06d}Z")


def _out_of_sight(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.finished")
