"""A whole batch: prompts in the order of sending → an engine → the checkpoint.

In: a `Batch` and a started `Engine`. Out: a result in the checkpoint for every prompt, and the figures of this run.
Holds a few batches of prompts at a time, whatever their number. Knows nothing of Prefect, MLflow, DVC or
outputs.parquet.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderproof.engines.protocol import Engine, EngineError, Failure, Figures, Output, Request
from orderproof.engines.requests import ASSUMED_TOKENS, BYTES_PER_TOKEN
from orderproof.generate.checkpoint import Checkpoint, open_checkpoint
from orderproof.generate.checkpoint_folder import FOLDER
from orderproof.generate.growing_checkpoint import open_growing
from orderproof.generate.provenance import write_engine
from orderproof.generate.result import Result, State
from orderproof.generate.select_order import WindowedOrder
from orderproof.generate.step_summary import StepSummary
from orderproof.generate.windowed_ordering import SPOOL_FILE, WindowedOrdering, tokenize_each
from orderproof.job.model import ModelFacts, read_model
from orderproof.job.output_key import output_key
from orderproof.job.sampling import FINISHED, asked_samples, asked_tokens, is_cut_short
from orderproof.job.spec import Job
from orderproof.lossy.acceptance import refuse_stream, require_engine, require_evidence
from orderproof.orders.order import Order
from orderproof.prompts.prompt import PromptError
from orderproof.prompts.request_defaults import RequestDefaults
from orderproof.prompts.source import PromptSource
from orderproof.prompts.stream import PromptStream, Stream
from orderproof.prompts.tokenization import Tokenizer
from orderproof.routing.predicted_work import predicted_work

REFUSED, BROKEN_OFF = 400, 500  # HTTP's codes for the two ways in which a request fails
READ_AHEAD_PROMPTS = 256  # read and tokenized at once, in the order of sending


@dataclass(frozen=True)
class Batch:
    """All that a run of a job needs besides its engine."""

    job: Job
    source: PromptSource | PromptStream
    tokenizer: Tokenizer
    checkpoint: Checkpoint
    key: Mapping[str, Any]  # all that decides an output, but the order and the engine's versions
    model: ModelFacts
    windowed: WindowedOrdering | None = None  # orders prompts while others are sent; None: all are in order

    @property
    def file(self) -> PromptSource:
        """The prompts, once all are there."""
        assert isinstance(self.source, PromptSource), "a stream is a file when it is complete"
        return self.source

    @property
    def unfinished(self) -> bool:
        """Whether an engine is needed. Of a stream: waits for its first new prompt, or its end."""
        return len(self.checkpoint.pending) > 0 or (self.windowed is not None and self.windowed.has_more())


@dataclass
class Generated:
    """What one run did. A batch that was resumed had several."""

    results: int = 0  # one for each prompt, whatever became of it
    outputs: int = 0  # of them, those with an output: figures are of these alone, because a refusal takes no time
    prompt_tokens: int = 0
    output_tokens: int = 0
    steps: StepSummary = field(default_factory=StepSummary)
    figures: Figures | None = None  # None: the checkpoint held everything already

    def count(self, result: Result) -> None:
        self.results += 1
        if result.completions:
            self.outputs += 1
            self.prompt_tokens += result.prompt_tokens
            self.output_tokens += result.output_tokens


BatchProgress = Callable[[int, int, Generated], None]  # prompts done, prompts in all (so far), this run


@dataclass(frozen=True)
class _Sent:
    """A request that is not answered yet."""

    id: str
    prompt_tokens: int
    asked_tokens: int | None
    asked_samples: int


def begin(
    job: Job,
    source: PromptSource,
    order: Order | WindowedOrder,
    tokenizer: Tokenizer,
    *,
    restart: bool = False,
    folder: str = FOLDER,
) -> Batch:
    """Open the job's checkpoint: a new one, or that of an unfinished run with the same key.

    Args:
        folder: its name in data/<job>.

    Raises:
        CheckpointError: it is of another key, or cannot be written.
        LossyError: a lossy routing is accepted, and no evidence of this very job carries it.
    """
    model = read_model(job.model_path, job.model, job.adapters)
    require_evidence(job, model, source.md5)
    key = {"dataset_md5": source.md5, "prompts": len(source), **_key(job, model)}
    if isinstance(order, Order):
        kept = open_checkpoint(job.data_dir / folder, key, order, restart=restart)
        return Batch(job, source, tokenizer, kept, key, model)
    growing = open_growing(job.data_dir / folder, key, order.spec, restart=restart)
    windowed = WindowedOrdering(job, source, growing, tokenizer, order.in_tokens)
    return Batch(job, source, tokenizer, growing, key, model, windowed)


def begin_stream(
    job: Job, stream: Stream, order: WindowedOrder, tokenizer: Tokenizer, *, restart: bool = False
) -> Batch:
    """The same for prompts that come one after the other.

    Raises:
        CheckpointError: as `begin`.
        PromptError: the stream cannot be read, or does not begin with what came before.
        LossyError: a lossy routing is accepted: it was not measured on prompts that nobody has seen.
    """
    refuse_stream(job)
    model = read_model(job.model_path, job.model, job.adapters)
    key = {"stream": True, **_key(job, model)}
    growing = open_growing(job.data_dir / FOLDER, key, order.spec, restart=restart)
    if order.spec.method == "file":
        stream = replace(stream, linger_s=0.0)  # nothing is gained by waiting
    try:
        source = PromptStream(stream, growing.folder / SPOOL_FILE, RequestDefaults(job))
    except BaseException:
        growing.close()
        raise
    windowed = WindowedOrdering(job, source, growing, tokenizer, order.in_tokens)
    return Batch(job, source, tokenizer, growing, key, model, windowed)


def complete(batch: Batch) -> Batch:
    """Once every prompt was answered: the batch with its whole order, and of a stream with the file that came of it.

    Raises:
        CheckpointError: it cannot be written.
        PromptError: the spool cannot be read.
    """
    if batch.windowed is None:
        return batch
    source = batch.source
    if isinstance(source, PromptStream):
        source.close()
        source = PromptSource(source.spool, RequestDefaults(batch.job))
    whole = batch.windowed.checkpoint.end(source.md5)
    key = {name: part for name, part in whole.items() if name != "order"}
    return replace(batch, source=source, key=key, windowed=None)


def _key(job: Job, model: ModelFacts) -> dict[str, Any]:
    lossy = {} if job.lossy_k0 is None else {"lossy": {"k0": job.lossy_k0}}  # results of two routings are never mixed
    return {**output_key(job, model), **lossy}


def generate(
    batch: Batch, engine: Engine, progress: BatchProgress | None = None, kept: Callable[[int], None] | None = None
) -> Generated:
    """Send what is still to be sent; every answer is in the checkpoint before the next one is looked at.

    Requests that fail are results like others, with their reason.

    Args:
        kept: gets the place of each prompt whose result was kept.

    Raises:
        EngineError: the engine died.
        CheckpointError: a result cannot be written, or the earlier ones are of an engine of another kind.
        LossyError: a lossy routing is accepted that was measured on an engine of another kind.
        PromptError: the prompts were edited meanwhile, or a stream's next line is no prompt.
    """
    require_engine(batch.job, engine.info)
    write_engine(batch.checkpoint.folder, engine.info, has_results=batch.checkpoint.resumed > 0)
    done, flying, counting = Generated(), dict[int, _Sent](), threading.Lock()
    before = batch.checkpoint.resumed

    def keep(result: Result) -> None:
        batch.checkpoint.append(result)
        with counting:  # prompts that cannot be rendered are told of by the thread that reads them
            done.count(result)
            if kept:
                kept(result.place)
            if progress:
                progress(before + done.results, len(batch.source), done)

    def sink(answer: Output | Failure) -> None:
        sent = flying.pop(answer.number, None)
        if sent is None:
            raise EngineError(f"the engine answered request {answer.number}, which it was not asked or has answered")
        keep(_result(answer, sent))

    pending = _Pending(batch, flying, keep)
    requests = pending if batch.windowed is None else _as_they_come(pending, batch.windowed)
    done.figures = engine.run(requests, batch.job.sampling, sink, done.steps.add)
    if flying:
        raise EngineError(f"the engine ended without an answer for {len(flying)} prompts, such as "
                          f"{next(iter(flying.values())).id!r}; run the job again to send them")  # fmt: skip
    return done


class _Pending:
    """What is still to be sent, in the order of sending (`Divisible`): read and tokenized when the engine asks."""

    def __init__(self, batch: Batch, flying: dict[int, _Sent], keep: Callable[[Result], None]) -> None:
        self.batch, self.flying, self.keep = batch, flying, keep
        self.places = batch.checkpoint.pending

    def __len__(self) -> int:
        return len(self.places)

    @property
    def sequences(self) -> int:
        """That are sent and not answered: each sample of a prompt is one."""
        return sum(sent.asked_samples for sent in list(self.flying.values()))

    def __iter__(self) -> Iterator[Request]:
        return self.between(0, len(self))

    def work(self) -> NDArray[np.float64]:
        """Predicted without reading a prompt: from its bytes, and from the tokens that the job asks."""
        (tokens,), (samples,) = asked_tokens(self.batch.job, [None]), asked_samples(self.batch.job, [None])
        asked = samples * (ASSUMED_TOKENS if tokens is None else tokens)
        return predicted_work(self.batch.file.sizes[self.places] / BYTES_PER_TOKEN, asked)

    def between(self, start: int, stop: int) -> Iterator[Request]:
        for begin in range(start, stop, READ_AHEAD_PROMPTS):
            yield from self.read(self.places[begin : min(begin + READ_AHEAD_PROMPTS, stop)].tolist())

    def read(self, places: list[int]) -> Iterator[Request]:
        prompts = self.batch.source.read(places)
        most = asked_tokens(self.batch.job, (prompt.sampling for prompt in prompts))
        samples = asked_samples(self.batch.job, (prompt.sampling for prompt in prompts))
        tokens = tokenize_each(self.batch.tokenizer, prompts)
        for place, prompt, ids, asked, n in zip(places, prompts, tokens, most, samples, strict=True):
            if isinstance(ids, PromptError):
                self.keep(Result(place, prompt.id, 0, asked, n, (), ids.problem, REFUSED))
                continue
            self.flying[place] = _Sent(prompt.id, len(ids), asked, n)
            yield Request(place, ids, prompt.sampling, prompt.lora)


def _as_they_come(pending: _Pending, windowed: WindowedOrdering) -> Iterator[Request]:
    """First those that are in order, then window by window; how many there will be, nobody knows."""
    engine = pending.batch.job.engine
    windows = windowed.windows(lambda: pending.sequences < engine.replicas * engine.max_num_seqs)
    for places in itertools.chain([pending.places], windows):
        for start in range(0, len(places), READ_AHEAD_PROMPTS):
            yield from pending.read(places[start : start + READ_AHEAD_PROMPTS].tolist())


def _result(answer: Output | Failure, sent: _Sent) -> Result:
    about = (answer.number, sent.id, sent.prompt_tokens, sent.asked_tokens, sent.asked_samples)
    if isinstance(answer, Failure):
        return Result(*about, (), answer.reason, REFUSED)
    if len(answer.completions) != sent.asked_samples:
        reason = f"the engine gave {len(answer.completions)} of {sent.asked_samples} samples"
        return Result(*about, (), reason, BROKEN_OFF)
    if early := [one.finish_reason for one in answer.completions if one.finish_reason not in FINISHED]:
        return Result(*about, (), f"the engine ended it before its time: {early[0]}", BROKEN_OFF)
    return Result(*about, answer.completions, _how_cut_short(answer, sent.asked_tokens))


def _how_cut_short(answer: Output, asked: int | None) -> str | None:
    lengths = [(one.finish_reason, len(one.token_ids)) for one in answer.completions]
    cut = [tokens for reason, tokens in lengths if is_cut_short(reason, tokens, asked)]
    if not cut:
        return None
    return f"cut short after {min(cut)} of {asked} tokens: prompt and output reach the model's length"


def failures(checkpoint: Checkpoint, most: int) -> tuple[int, list[Result]]:
    """How many prompts have no output, or not the one that was asked; and the first few of them in the file's order."""
    flawed = np.flatnonzero(checkpoint.states != State.COMPLETE)
    first = [checkpoint.read(place) for place in flawed[:most].tolist()]
    return len(flawed), [result for result in first if result]
