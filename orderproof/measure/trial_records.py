"""The records of a trial, as its files hold them: what is registered, and what was measured of each slice and arm."""

from __future__ import annotations

from typing import Any, Literal

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from orderproof.job.hashing import canonical_json, sha256_of
from orderproof.measure.predicted_gain import PredictedGain
from orderproof.measure.verdict import Rule
from orderproof.orders.order_record import OrderRecord

SCHEMA = "orderproof/trial/2"

# One row per sample of a request, in the order in which the requests were sent. A request that failed has one row.
TOKENS_SCHEMA = pa.schema(
    [
        ("prompt_id", pa.string()),
        ("sample", pa.int32()),  # of the request, from 0
        ("position", pa.int64()),  # place of the request in the pass's order, from 0
        ("admitted", pa.int64()),  # place in the order of admission by the scheduler, from 0; -1: never admitted
        ("prompt_tokens", pa.int32()),
        ("token_ids", pa.list_(pa.int32())),
        ("finish_reason", pa.string()),  # stop | length | failed
        ("text", pa.string()),
        ("score", pa.float64()),  # against `reference`, 0 to 1; null without one
    ]
)


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class WarmUp(_Frozen):
    """What the engine did before the first slice; it counts for nothing."""

    requests: int
    seconds: float
    prefill_cost: float  # seconds per prompt token ÷ seconds per generated token: a prompt token's work


class SliceDesign(_Frozen):
    """How the prompts are cut into slices."""

    kind: Literal["clean", "fed"]  # clean: a run of the engine for each slice; fed: one for all slices of a block
    seats: int  # prompts that run at once, on all replicas
    sizes: tuple[int, ...]  # prompts of each stratum
    labels: tuple[str | None, ...]  # of each stratum: that of most of its prompts; None: they have none
    washout: int  # requests of a fed slice that are admitted before its clock starts
    salted: bool  # each arm of each block has a prefix cache of its own
    warm_up: WarmUp

    @property
    def strata(self) -> int:
        return len(self.sizes)


class Manifest(_Frozen):
    """All that is registered before the first slice."""

    schema_version: str = SCHEMA
    trial: str  # sortable: 20261129T144640Z-3f9a
    job: str
    aa: bool = False
    question: str  # sha256 of data, model, engine, sampling and candidate; trials of one question share α
    settings: str = ""  # sha256 of the question and of all else that decides the measurement: equal, nothing changed
    attempt: int = 1  # 1 for the first trial of this question
    rule: Rule  # its alpha is already halved per earlier attempt
    arms: tuple[str, ...]  # (control, candidate) or (control, candidate, shuffled)
    control_why: str  # why this control
    control: OrderRecord | None  # None: a fresh shuffle per block
    candidate: OrderRecord
    coin_seed: int  # of coins, slots and shuffles
    slices: SliceDesign
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
    predicted: PredictedGain | None = None  # the candidate's gain over shuffled, by the last plan
    created_utc: str

    @property
    def sha256(self) -> str:
        """Hash of the canonical JSON of every registered field."""
        return sha256_of(canonical_json(self.model_dump(mode="json")))


class SliceRecord(_Frozen):
    """What was measured of one slice."""

    block: int  # from 1
    run: int  # 0; one more each time that a stopped trial was taken up again
    attempt: int  # 0, or the number of its pair's repetition
    slot: int  # place of its pair in time, from 0
    turn: int  # place in its pair: what the coin decided
    arm: str
    stratum: int
    first: int  # place of its first prompt in the arm's order
    order_sha256: str  # of the arm's order in this block
    manifest_sha256: str
    started_utc: str
    start_s: float  # the engine's clock, or seconds since the trial's process began
    seconds: float  # of its window
    requests: int  # answered ones, of the whole slice
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int  # prompt tokens found in the prefix cache
    window_prompt_tokens: float  # admitted in the window
    window_output_tokens: float  # generated in the window
    foreign_tokens: float  # of those, by requests of other arms
    steps: int
    step_ms: float  # median
    running: float  # sequences per step, mean
    steal: float = 0.0
    throttled: bool = False
    failed: int = 0
    cut_short: int = 0
    repeat: tuple[str, ...] = ()  # why its pair should be run again; empty: it counts

    @property
    def tokens_per_s(self) -> float:
        return self.window_output_tokens / self.seconds if self.seconds > 0 else 0.0


class Pass(_Frozen):
    """One arm's slices of a complete block together."""

    pass_id: str  # b03-candidate
    block: int
    run: int
    arm: str
    seed: int | None  # of its shuffle's block; None: a fixed order
    order_sha256: str
    manifest_sha256: str
    started_utc: str
    wall_s: float  # of all windows
    block_s: float  # of the whole block, both arms, with all that is not timed
    requests: int
    prompt_tokens: int
    output_tokens: int
    throughput_req_s: float
    throughput_tok_s: float
    steps: int
    time_per_batch_ms: float  # median step
    time_per_batch_p95_ms: float
    running_mean: float  # sequences per step
    preempted: int | None  # None: the arms share a run, so nobody can tell
    admission_inversions: int  # requests admitted before one that was sent earlier
    cached_tokens: int  # prompt tokens found in the prefix cache
    steal: float  # share of CPU time; context, decides nothing
    probe_s: float  # of the memory probe before the block; context
    load: float | None  # of the machine before the block: processes that wait for a processor; context
    accelerator: dict[str, float] = {}  # clocks, temperature, throttling, where the vendor's library is there
    throttled_pairs: int = 0  # that count although the accelerator throttled in every attempt
    step_ms_series: tuple[float, ...] = ()  # medians of up to 100 equal runs of steps
    running_series: tuple[float, ...] = ()
