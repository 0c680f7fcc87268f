"""A trial's folder as values: manifest.json, passes.jsonl, tokens/<pass>.parquet, verdict.json.

In: a folder under reports/<job>/. Out: `Manifest`, `Pass`, `Block` and `Trial`, the values that a verdict rests on, and
the only code that writes or reads those files. Knows nothing of engines, MLflow or DVC.

The manifest is written and hashed before the first pass; every pass carries that hash, so that a plan edited afterwards
shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, ValidationError

from orderproof.forecast.stored_prediction import StoredPrediction
from orderproof.job.errors import OrderproofError
from orderproof.job.files import append_line, atomic_file, write_atomically
from orderproof.job.hashing import canonical_json, sha256_of
from orderproof.measure.verdict import Rule, Verdict
from orderproof.orders.order_record import OrderRecord
from orderproof.outputs.passes import CANDIDATE as CANDIDATE
from orderproof.outputs.passes import CONTROL as CONTROL
from orderproof.outputs.passes import SHUFFLED as SHUFFLED

SCHEMA = "orderproof/trial/1"
VERDICT_FILE = "verdict.json"
SAMPLE_END = -1  # no token: with it two requests' tokens are equal exactly where each of their samples is

# One row per request of a pass, in the order in which the requests were sent.
TOKENS_SCHEMA = pa.schema(
    [
        ("prompt_id", pa.string()),
        ("position", pa.int64()),  # place in the pass's order, from 0
        ("admitted", pa.int64()),  # place in the order of admission by the scheduler, from 0; -1: never admitted
        ("prompt_tokens", pa.int32()),
        ("token_ids", pa.list_(pa.int32())),  # of all samples, SAMPLE_END between two
        ("finish_reason", pa.string()),  # stop | length | failed; of several samples with a comma between two
        ("text", pa.string()),  # of several samples with an empty line between two
        ("score", pa.float64()),  # against `reference`, 0 to 1, mean over samples; null without one
    ]
)


def samples_of(finish_reason: str) -> int:
    """How many samples a request of TOKENS_SCHEMA was answered with."""
    return finish_reason.count(",") + 1


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Manifest(_Frozen):
    """All that is registered before the first pass."""

    schema_version: str = SCHEMA
    trial: str  # sortable: 20261129T144640Z-3f9a
    job: str
    placebo: bool = False
    question: str  # sha256 of data, model, engine, sampling and candidate; trials of one question share α
    settings: str = ""  # sha256 of the question and of all else that decides the measurement: equal, nothing changed
    attempt: int = 1  # 1 for the first trial of this question
    rule: Rule  # its alpha is already halved per earlier attempt
    arms: tuple[str, ...]  # (control, candidate) or (control, candidate, shuffled)
    control_why: str  # why this control
    control: OrderRecord | None  # None: a fresh shuffle per block
    candidate: OrderRecord
    coin_seed: int
    shuffle_seeds: tuple[int, ...]  # one per block up to the last look
    validity: dict[str, float]
    dataset_md5: str
    prompts_total: int
    prompts_measured: int
    measured_sha256: str  # of the measured prompts' ids, sorted and newline-joined
    prompt_tokens: int  # of the measured prompts
    model: dict[str, Any]  # path, fingerprint, architecture, moe {experts, top_k, moe_layers, bytes_per_expert} or null
    engine: dict[str, Any]  # args, env, command, in_process, mode (eager | compiled), max_num_seqs
    sampling: dict[str, Any]
    versions: dict[str, str]
    machine: dict[str, Any]
    detectable_gain_before: float | None = None  # by the last look with 80 % power; None without history
    detectable_excess_before: float | None = None  # of outputs, likewise; None without an earlier trial as its pilot
    foretold: StoredPrediction | None = (
        None  # the candidate's gain over shuffled, by the last plan; None: nothing was foretold
    )
    created_utc: str

    @property
    def sha256(self) -> str:
        """Hash of the canonical JSON of every registered field."""
        return sha256_of(canonical_json(self.model_dump(mode="json")))


class Pass(_Frozen):
    """One timed run of one order over the measured prompts."""

    pass_id: str  # b03-candidate; b03r1-candidate when the block was repeated
    block: int  # from 1; 0 is the warm-up
    attempt: int  # 0, or the number of the block's repetition
    arm: str
    turn: int  # place in its block, from 0: what the coin decided
    seed: int | None  # of its shuffle
    order_sha256: str
    manifest_sha256: str
    started_utc: str
    wall_s: float
    requests: int
    prompt_tokens: int
    output_tokens: int
    throughput_req_s: float
    throughput_tok_s: float
    steps: int
    time_per_batch_ms: float  # median step
    time_per_batch_p95_ms: float
    running_mean: float  # sequences per step
    preempted: int
    admission_inversions: int  # requests admitted before one that was sent earlier
    prefix_queries: int  # tokens
    prefix_hits: int  # tokens
    failed: int
    cut_short: int  # finished with fewer tokens than asked, without a stop
    steal: float  # share of CPU time
    probe_before_s: float
    probe_after_s: float
    accelerator: dict[str, float] = {}  # clocks, temperature, throttling, where the vendor's library is there
    replica_wall_s: tuple[float, ...] = ()  # when each replica was done; empty: there is one
    step_ms_series: tuple[float, ...] = ()  # medians of up to 100 equal runs of steps
    running_series: tuple[float, ...] = ()
    invalid: tuple[str, ...] = ()  # reasons; empty: valid


@dataclass(frozen=True)
class Block:
    """One pass of each arm, side by side in time."""

    number: int
    passes: Mapping[str, Pass]


@dataclass(frozen=True)
class Trial:
    """The whole A/B as it lies in its folder."""

    folder: Path
    manifest: Manifest
    passes: tuple[Pass, ...]

    @classmethod
    def read(cls, folder: Path) -> Trial:
        """Read a trial. Raises EvidenceError when a file is missing, unreadable, torn, or not of this manifest."""
        try:
            manifest = Manifest.model_validate_json((folder / "manifest.json").read_bytes())
            # Only whole lines are passes: a crash may tear the last one, and then that pass was not recorded.
            lines = (folder / "passes.jsonl").read_text("utf-8").split("\n")[:-1]
            passes = tuple(Pass.model_validate_json(line) for line in lines)
        except FileNotFoundError as error:
            raise EvidenceError(
                f"{folder}: {Path(error.filename).name} is missing, so this is not a whole trial"
            ) from None
        except OSError as error:
            raise EvidenceError(f"{error.filename} cannot be read: {error.strerror}") from None
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise EvidenceError(
                f"{folder}: not readable as a trial: {error.title}: {place + ': ' if place else ''}{first['msg']}"
            ) from None
        except ValueError as error:
            raise EvidenceError(f"{folder}: not readable as a trial: {error}") from None
        foreign = [p.pass_id for p in passes if p.manifest_sha256 != manifest.sha256]
        if foreign:
            raise EvidenceError(
                f"{folder}: manifest.json was changed after passes were timed ({foreign[0]} has another hash)"
            )
        return cls(folder, manifest, passes)

    def block_attempts(self) -> dict[int, list[list[Pass]]]:
        """Every attempt at every block, in time order; warm-up left out."""
        blocks: dict[int, list[list[Pass]]] = {}
        for p in self.passes:
            if p.block:
                attempts = blocks.setdefault(p.block, [])
                if not attempts or attempts[-1][0].attempt != p.attempt:
                    attempts.append([])
                attempts[-1].append(p)
        return blocks

    def blocks(self) -> list[Block]:
        """The blocks that count: of each, the first attempt with one valid pass of every arm."""
        counted = []
        for number, attempts in sorted(self.block_attempts().items()):
            for attempt in attempts:
                arms = {p.arm: p for p in attempt}
                if set(arms) == set(self.manifest.arms) and not any(p.invalid for p in attempt):
                    counted.append(Block(number, arms))
                    break
        return counted

    def discarded(self) -> list[Pass]:
        """Passes that were timed and do not count."""
        counted = {p.pass_id for block in self.blocks() for p in block.passes.values()}
        return [p for p in self.passes if p.block and p.pass_id not in counted]

    def tokens(self, pass_id: str, columns: Sequence[str] | None = None) -> pa.Table:
        """What a pass generated, in the order in which it was sent (TOKENS_SCHEMA).

        Raises EvidenceError when its file is missing or not whole.
        """
        path = self.folder / "tokens" / f"{pass_id}.parquet"
        try:
            return pq.read_table(path, columns=columns)
        except FileNotFoundError:
            raise EvidenceError(f"{path} is missing, so nobody can tell what that pass generated") from None
        except (OSError, pa.ArrowException) as error:
            raise EvidenceError(f"{path} cannot be read: {' '.join(str(error).split())}") from None


@dataclass(frozen=True)
class History:
    """The trials that a job had."""

    trials: tuple[Trial, ...] = ()  # oldest first
    unreadable: tuple[str, ...] = ()  # names of registered trials that are no evidence any more

    def __len__(self) -> int:
        return len(self.trials) + len(self.unreadable)


def read_history(reports: Path) -> History:
    """Every trial that was registered, whether or not it can be read still: a broken one was seen by somebody."""
    trials, unreadable = [], []
    for manifest in sorted(reports.glob("*/manifest.json")):
        try:
            trials.append(Trial.read(manifest.parent))
        except EvidenceError:
            unreadable.append(manifest.parent.name)
    return History(tuple(trials), tuple(unreadable))


def read_trials(reports: Path) -> list[Trial]:
    """Every readable trial of a job, oldest first; what cannot be read is no evidence and is left alone."""
    return list(read_history(reports).trials)


def find_trial(reports: Path, name: str | None) -> Trial:
    """A job's newest trial, or the one of that name. Raises EvidenceError when there is none."""
    if name is None:
        folders = sorted(path.parent for path in reports.glob("*/manifest.json"))
        if not folders:
            raise EvidenceError(f"{reports} holds no trial: measure the job first")
        return Trial.read(folders[-1])
    known = [path.parent.name for path in reports.glob("*/manifest.json")]
    if name not in known:  # compared, not joined: a name never becomes a path unchecked
        raise EvidenceError(f"{reports} has no trial {name!r}; it has {', '.join(sorted(known)) or 'none'}")
    return Trial.read(reports / name)


def write_verdict(trial: Trial, verdict: Verdict) -> None:
    """Keep a verdict in its trial's folder, and a copy of it where the job's newest is looked for."""
    text = verdict.model_dump_json(indent=1) + "\n"
    write_atomically(trial.folder / VERDICT_FILE, text)
    write_atomically(trial.folder.parent / VERDICT_FILE, text)


class EvidenceError(OrderproofError):
    """A trial's folder that cannot carry a verdict."""


def register(folder: Path, manifest: Manifest) -> Trial:
    """Write the manifest of a new trial. Raises FileExistsError if the folder holds one."""
    folder.mkdir(parents=True, exist_ok=False)
    (folder / "tokens").mkdir()
    write_atomically(folder / "passes.jsonl", "")
    write_atomically(folder / "manifest.json", manifest.model_dump_json(indent=1) + "\n")  # last: now it is a trial
    return Trial(folder, manifest, ())


def record(trial: Trial, timed: Pass, tokens: pa.Table) -> Trial:
    """Add a pass to the evidence: its tokens first, so that a recorded pass always has them."""
    with atomic_file(trial.folder / "tokens" / f"{timed.pass_id}.parquet") as sink:
        pq.write_table(tokens.cast(TOKENS_SCHEMA), sink, compression="zstd")
    append_line(trial.folder / "passes.jsonl", timed.model_dump_json())
    return Trial(trial.folder, trial.manifest, (*trial.passes, timed))
