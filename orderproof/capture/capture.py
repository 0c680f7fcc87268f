"""A sample's routes, from a real engine into data/<job>/routes.parquet.

In: a job, its sampled prompts and a started `RoutingEngine`. Out: the file, whole or as it was before, and a
`Captured` that says how much of the sample it covers. A prompt that was refused, preempted or lost is missing in it,
and never a row of zeros. Knows nothing of orders, trials or trackers.
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
from orderproof.signals.served_model import ROUTES_FILE


@dataclass(frozen=True)
class Captured:
    """How much of a sample has routes."""

    path: Path
    prompts_total: int  # of the job
    sampled: int
    prefill_tokens: int
    decode_tokens: int
    missing: dict[str, str]  # prompt id → why
    wall_s: float

    @property
    def captured(self) -> int:
        return self.sampled - len(self.missing)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "path": str(self.path), "captured": self.captured}


@dataclass(frozen=True, eq=False)
class Sample:
    """The prompts to capture."""

    prompts: TokenizedPrompts  # the sampled ones
    total: int  # prompts in the file
    seed: int
    dataset_md5: str


def routes_path(job: Job) -> Path:
    """Where a job's routes lie."""
    return job.data_dir / ROUTES_FILE


def refuse_dense(model: ModelFacts) -> None:
    """Raise RoutingError for a model that has no routes."""
    if model.moe is None:
        raise RoutingError(
            f"{model.path} ({model.architecture}) is a dense model: no router chooses experts in it, so there is "
            "nothing to capture"
        )


def refuse_adapters(job: Job) -> None:
    """Raise RoutingError for a job with LoRA adapters: only the bare model would be listened to."""
    if job.adapters:
        raise RoutingError(
            f"{job.name} runs LoRA adapters ({', '.join(job.adapters)}), and routers are listened to without them: "
            "describe the bare model as a job of its own"
        )


def capture(
    job: Job,
    model: ModelFacts,
    sample: Sample,
    engine: RoutingEngine,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Captured:
    """Generate once for every sampled prompt, with the job's own sampling, and keep which experts each token chose.

    Args:
        progress: told of finished prompts and of how many there are.

    Raises:
        RoutingError: the engine's routes are not this model's, or not one prompt has any. The file stays as it was.
        EngineError: the engine died. Likewise.
    """
    prompts, path = sample.prompts, routes_path(job)
    answered: set[int] = set()
    one = {"n": 1}  # output of each prompt, however many the job asks for
    requests = [
        Request(k, prompts.token_ids(k), {**own, **one} if own else None) for k, own in enumerate(prompts.samplings)
    ]
    with write_routes(path, _record(job, model, sample, engine)) as writer:
        ledger = _Ledger(writer, prompts)

        def sink(answer: Output | Failure) -> None:
            answered.add(answer.number)
            if isinstance(answer, Failure):
                ledger.miss(answer.number, answer.reason)
            progress(len(answered), len(prompts))

        figures = engine.capture(requests, {**job.sampling, **one}, sink, ledger.take)
        ledger.close()
    return Captured(
        path, sample.total, len(prompts), ledger.prefill_tokens, ledger.decode_tokens, ledger.missing, figures.wall_s
    )


class _Ledger:
    """Which prompts have routes, and why the others have none."""

    def __init__(self, writer: RoutesWriter, prompts: TokenizedPrompts) -> None:
        self.writer, self.prompts = writer, prompts
        self.unheard = set(range(len(prompts)))
        self.missing: dict[str, str] = {}
        self.prefill_tokens = self.decode_tokens = 0

    def take(self, routed: Routed) -> None:
        if routed.experts is None:
            self.miss(routed.number, routed.missing)
            return
        length = int(self.prompts.lengths[routed.number])
        self.writer.add(self.prompts.ids[routed.number], length, routed.experts)
        self.unheard.discard(routed.number)
        self.prefill_tokens += length
        self.decode_tokens += len(routed.experts) - length

    def miss(self, number: int, why: str) -> None:
        self.unheard.discard(number)
        self.missing[self.prompts.ids[number]] = why
        self.writer.miss(self.prompts.ids[number], why)

    def close(self) -> None:
        """Raise RoutingError if nothing was captured."""
        for number in sorted(self.unheard):
            self.miss(number, "the engine gave no answer")
        if len(self.missing) == len(self.prompts):
            prompt_id, why = next(iter(self.missing.items()))
            raise RoutingError(f"no prompt of the sample has routes; the first, {prompt_id!r}: {why}")


def _record(job: Job, model: ModelFacts, sample: Sample, engine: RoutingEngine) -> RoutesRecord:
    refuse_dense(model)
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
