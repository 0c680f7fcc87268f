"""Capture: the routes of sampled prompts, from a real engine into data/<job>/routes.parquet.

The file is replaced as a whole, or stays as it was. A prompt that was refused, preempted or lost is recorded as
missing; it never becomes a row of zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from orderproof.engines.protocol import Failure, Output, Request
from orderproof.engines.routing_engine import Routed, RoutingEngine
from orderproof.job.model import ModelFacts
from orderproof.job.spec import Job
from orderproof.prompts.tokenization import TokenizedPrompts
from orderproof.routing.errors import RoutingError
from orderproof.routing.routes import CHAT_TEMPLATE_ARGS, RoutesRecord, text_digest
from orderproof.routing.routes_writer import RoutesWriter, write_routes


@dataclass(frozen=True)
class Captured:
    """What a capture wrote: how much of the sample has routes."""

    path: Path
    prompts_total: int  # of the job
    sampled: int
    prefill_tokens: int
    decode_tokens: int
    missing: dict[str, str]  # prompt id → reason
    wall_s: float

    @property
    def captured(self) -> int:
        return self.sampled - len(self.missing)

    def as_json(self, *, reasons: bool) -> dict[str, Any]:
        """For records. `reasons`: also which prompts are missing, and why: an engine's words may quote them."""
        left_out = ("path",) if reasons else ("path", "missing")
        kept = {key: value for key, value in asdict(self).items() if key not in left_out}
        return {**kept, "captured": self.captured}


@dataclass(frozen=True, eq=False)
class Sample:
    """The prompts to capture."""

    prompts: TokenizedPrompts  # the sampled ones
    total: int  # prompts in the file
    seed: int
    dataset_md5: str


def check_moe(model: ModelFacts) -> None:
    """Raise RoutingError for a model that has no routes."""
    if model.moe is None:
        raise RoutingError(
            f"{model.path} ({model.architecture}) is a dense model: it has no routers, so there is nothing to capture"
        )


def check_no_adapters(job: Job) -> None:
    """Raise RoutingError for a job with LoRA adapters: only the base model's routes can be captured."""
    if job.adapters:
        raise RoutingError(
            f"{job.name} runs LoRA adapters ({', '.join(job.adapters)}), and routes can be captured without them "
            "only: describe the base model as a job of its own"
        )


def capture(
    job: Job,
    model: ModelFacts,
    sample: Sample,
    engine: RoutingEngine,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Captured:
    """Generate once for every sampled prompt, with the job's own sampling, and write which experts each token chose.

    Args:
        progress: called with the number of finished prompts and of all prompts.

    Raises:
        RoutingError: the engine's routes do not fit the model, or no prompt has any. The file stays as it was.
        EngineError: the engine died. The file stays as it was.
    """
    prompts, path = sample.prompts, job.paths.routes
    answered: set[int] = set()
    once = {"n": 1}  # one sample of each prompt, however many the job asks for
    requests = [
        Request(k, prompts.token_ids(k), {**own, **once} if own else None) for k, own in enumerate(prompts.samplings)
    ]
    with write_routes(path, _record(job, model, sample, engine)) as writer:
        collector = _Collector(writer, prompts, job.reporting.log_text)

        def sink(answer: Output | Failure) -> None:
            answered.add(answer.number)
            if isinstance(answer, Failure):
                collector.miss(answer.number, answer.reason)
            progress(len(answered), len(prompts))

        stats = engine.capture(requests, {**job.sampling, **once}, sink, collector.add)
        collector.close()
    return Captured(
        path,
        sample.total,
        len(prompts),
        collector.prefill_tokens,
        collector.decode_tokens,
        collector.missing,
        stats.wall_s,
    )


class _Collector:
    """Which prompts have routes, and why the others have none."""

    def __init__(self, writer: RoutesWriter, prompts: TokenizedPrompts, log_text: bool) -> None:
        self.writer, self.prompts, self.log_text = writer, prompts, log_text
        self.unanswered = set(range(len(prompts)))
        self.missing: dict[str, str] = {}
        self.prefill_tokens = self.decode_tokens = 0

    def add(self, routed: Routed) -> None:
        if routed.experts is None:
            self.miss(routed.number, routed.missing)
            return
        length = int(self.prompts.lengths[routed.number])
        self.writer.add(self.prompts.ids[routed.number], length, routed.experts)
        self.unanswered.discard(routed.number)
        self.prefill_tokens += length
        self.decode_tokens += len(routed.experts) - length

    def miss(self, number: int, reason: str) -> None:
        self.unanswered.discard(number)
        self.missing[self.prompts.ids[number]] = reason
        self.writer.miss(self.prompts.ids[number], reason)

    def close(self) -> None:
        """Raise RoutingError if nothing was captured."""
        for number in sorted(self.unanswered):
            self.miss(number, "the engine gave no answer")
        if len(self.missing) == len(self.prompts):
            prompt_id, reason = next(iter(self.missing.items()))
            error = RoutingError("no prompt of the sample has routes")
            raise error.about_prompts(f"the first, {prompt_id!r}: {reason}", log_text=self.log_text)


def _record(job: Job, model: ModelFacts, sample: Sample, engine: RoutingEngine) -> RoutesRecord:
    check_moe(model)
    assert model.moe is not None
    settings = ("max_num_seqs", "dtype", "mode")
    return RoutesRecord(
        model=model.fingerprint,
        dataset_md5=sample.dataset_md5,
        layers=model.moe.moe_layers,
        experts=model.moe.experts,
        top_k=model.moe.top_k,
        texts={prompt_id: text_digest(sample.prompts.texts(k)) for k, prompt_id in enumerate(sample.prompts.ids)},
        versions={"orderproof": metadata.version("orderproof"), **engine.info.versions},
        capture={
            "seed": sample.seed,
            "sampled": len(sample.prompts),
            "prompts": sample.total,
            "sampling": job.sampling,
            CHAT_TEMPLATE_ARGS: job.chat_template_args,
            "device_type": engine.info.machine.get("device_type"),
            **{key: engine.info.settings.get(key) for key in settings},
        },
    )
