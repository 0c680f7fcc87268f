"""Generate a whole batch: send the prompts in order to an engine and store every result in the checkpoint.

Only a few hundred prompts are in memory at a time, whatever their number.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderproof.engines.admission import AdmissionLog
from orderproof.engines.protocol import Engine, EngineError, Failure, Output, PassStats, Request
from orderproof.engines.replicas import AHEAD_BATCHES
from orderproof.engines.requests import ASSUMED_TOKENS, BYTES_PER_TOKEN
from orderproof.generate.checkpoint import Checkpoint, open_checkpoint
from orderproof.generate.checkpoint_folder import FOLDER
from orderproof.generate.growing_checkpoint import open_growing
from orderproof.generate.provenance import write_engine
from orderproof.generate.result import INTERRUPTED, REFUSED, Result, State
from orderproof.generate.select_order import WindowedOrder
from orderproof.generate.step_summary import StepSummary
from orderproof.generate.windowed_ordering import SPOOL_FILE, WindowedOrdering
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

SHOWN_PROMPTS = 5  # of those that an engine had when it died
READ_AHEAD_PROMPTS = 256  # read and tokenized together, in the order of sending


@dataclass(frozen=True)
class Batch:
    """Everything that a run of a job needs besides its engine."""

    job: Job
    source: PromptSource | PromptStream
    tokenizer: Tokenizer
    checkpoint: Checkpoint
    key: Mapping[str, Any]  # everything that determines an output, except the order and the engine's versions
    model: ModelFacts
    windowed: WindowedOrdering | None = None  # orders prompts while others are sent; None: the order is known

    @property
    def file(self) -> PromptSource:
        """The prompts, after the last one arrived."""
        assert isinstance(self.source, PromptSource), "a stream becomes a file when it is complete"
        return self.source

    @property
    def unfinished(self) -> bool:
        """Whether an engine is needed. For a stream, this waits for its first new prompt or its end."""
        return len(self.checkpoint.pending) > 0 or (self.windowed is not None and self.windowed.has_more())


class SuspectError(EngineError):
    """An engine died with prompts that were sent apart because one of them may be why: the others need a new one."""


@dataclass
class Generated:
    """Counts of one run. A batch that was resumed had several runs."""

    results: int = 0  # one for each prompt, also if it failed
    outputs: int = 0  # results with an output; only these count in throughput, because a refusal takes no time
    prompt_tokens: int = 0
    output_tokens: int = 0
    steps: StepSummary = field(default_factory=StepSummary)
    stats: PassStats | None = None  # None: the checkpoint was already complete
    # prompts that the engine's scheduler admitted before one sent earlier; None: replicas or a server, which do not say
    inversions: int | None = None

    def count(self, result: Result) -> None:
        self.results += 1
        if result.completions:
            self.outputs += 1
            self.prompt_tokens += result.prompt_tokens
            self.output_tokens += result.output_tokens


BatchProgress = Callable[[int, int, Generated], None]  # (finished prompts, known prompts, this run)


@dataclass(frozen=True)
class _Sent:
    """A request without an answer yet."""

    id: str
    prompt_tokens: int
    asked_tokens: int | None
    asked_samples: int
    place: int  # in the order of sending


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
        CheckpointError: it has another key, or cannot be written.
        LossyError: a lossy routing is accepted, but the evidence for this job does not support it.
    """
    model = read_model(job.model_path, job.model, job.adapters)
    require_evidence(job, model, source.md5)
    key = {"dataset_md5": source.md5, "prompts": len(source), **_key(job, model)}
    if isinstance(order, Order):
        checkpoint = open_checkpoint(job.data_dir / folder, key, order, restart=restart)
        return Batch(job, source, tokenizer, checkpoint, key, model)
    growing = open_growing(job.data_dir / folder, key, order.spec, restart=restart)
    windowed = WindowedOrdering(job, source, growing, tokenizer, order.in_tokens)
    return Batch(job, source, tokenizer, growing, key, model, windowed)


def begin_stream(
    job: Job, stream: Stream, order: WindowedOrder, tokenizer: Tokenizer, *, restart: bool = False
) -> Batch:
    """Like `begin`, for prompts that arrive one after the other.

    Raises:
        CheckpointError: as `begin`.
        PromptError: the stream cannot be read, or does not begin with the prompts of the interrupted run.
        LossyError: a lossy routing is accepted: its evidence does not cover prompts that are not known yet.
    """
    refuse_stream(job)
    model = read_model(job.model_path, job.model, job.adapters)
    key = {"stream": True, **_key(job, model)}
    growing = open_growing(job.data_dir / FOLDER, key, order.spec, restart=restart)
    if order.spec.method == "file":
        stream = replace(stream, linger_s=0.0)  # waiting gains nothing
    try:
        source = PromptStream(stream, growing.folder / SPOOL_FILE, RequestDefaults(job))
    except BaseException:
        growing.close()
        raise
    windowed = WindowedOrdering(job, source, growing, tokenizer, order.in_tokens)
    return Batch(job, source, tokenizer, growing, key, model, windowed)


def complete(batch: Batch) -> Batch:
    """After the last answer: the batch with its complete order and, for a stream, with the file of its prompts.

    Raises:
        CheckpointError: it cannot be written.
        PromptError: the stored prompts of the stream cannot be read.
    """
    if batch.windowed is None:
        return batch
    source = batch.source
    if isinstance(source, PromptStream):
        source.close()
        source = PromptSource(source.spool, RequestDefaults(batch.job))
    complete_key = batch.windowed.checkpoint.end(source.md5)
    key = {name: part for name, part in complete_key.items() if name != "order"}
    return replace(batch, source=source, key=key, windowed=None)


def with_job(batch: Batch, job: Job) -> Batch:
    """The same batch for a job with another prompt file, such as the stored prompts of a stream."""
    return replace(batch, job=job)


def _key(job: Job, model: ModelFacts) -> dict[str, Any]:
    lossy = {} if job.lossy_k0 is None else {"lossy": {"k0": job.lossy_k0}}  # never mix results of two routings
    return {**output_key(job, model), **lossy}


def generate(
    batch: Batch, engine: Engine, progress: BatchProgress | None = None, on_result: Callable[[int], None] | None = None
) -> Generated:
    """Send the pending prompts. Each answer is stored in the checkpoint before the next one is handled.

    A failed request is also a result, with its reason.

    Args:
        on_result: called with the place of each prompt whose result is stored.

    Raises:
        EngineError: the engine died.
        SuspectError: it died with prompts that were sent apart; another engine can go on with the rest.
        CheckpointError: a result cannot be written, or the earlier results are from an engine of another kind.
        LossyError: the accepted lossy routing was measured on an engine of another kind.
        PromptError: the prompts were edited during the run, or the next line of a stream is not a prompt.
    """
    require_engine(batch.job, engine.info)
    write_engine(batch.checkpoint.folder, engine.info, has_results=batch.checkpoint.resumed > 0)
    generated, in_flight, lock = Generated(), dict[int, _Sent](), threading.Lock()
    resumed, admissions = batch.checkpoint.resumed, AdmissionLog()

    def store(result: Result) -> None:
        batch.checkpoint.append(result)
        with lock:  # the thread that reads prompts also stores results: of those that cannot be rendered
            generated.count(result)
            if on_result:
                on_result(result.place)
            if progress:
                progress(resumed + generated.results, len(batch.source), generated)

    def sink(answer: Output | Failure) -> None:
        sent = in_flight.pop(answer.number, None)
        if sent is None:
            raise EngineError(
                f"the engine answered request {answer.number}, which was not sent or already has an answer"
            )
        if isinstance(answer, Output):
            admissions.admit(sent.place, answer.scheduled_s)
        store(_result(answer, sent))

    def run(requests: Iterable[Request]) -> None:
        stats = engine.run(requests, batch.job.sampling, sink, generated.steps.add)
        generated.stats = _added(generated.stats, stats)
        if in_flight:
            raise EngineError(
                f"the engine ended without an answer for {len(in_flight)} prompts, such as "
                f"{next(iter(in_flight.values())).id!r}. Run the job again to send them"
            )

    def pending(places: NDArray[np.int64]) -> _Pending:
        return _Pending(batch, places, in_flight, store, admissions)

    suspects, log_text = batch.checkpoint.suspects, batch.job.reporting.log_text
    places = batch.checkpoint.pending
    first = pending(places[~np.isin(places, suspects.places)])
    try:
        if batch.windowed is not None:
            run(_window_by_window(first, batch.windowed))
        elif len(first):
            run(first)
    except EngineError as error:
        had = _taken_by_engines(batch.job, in_flight)
        suspects.add(list(had))
        raise _with_prompts(error, list(had.values()), log_text=log_text) from None
    for group in list(suspects.groups):
        places = np.array(group, np.int64)
        unanswered = places[~batch.checkpoint.done[places]]  # a kill may have come in the midst of a group
        try:
            if len(unanswered):
                run(pending(unanswered))
            suspects.clear(group)
        except EngineError as error:
            if not in_flight:
                raise
            if len(in_flight) == 1:  # stored first: what is known as fatal is never sent again
                ((place, sent),) = in_flight.items()
                store(_fatal(place, sent, error))
            suspects.narrow(group, list(in_flight))
            if suspects.groups:
                raise SuspectError(str(error)).about_prompts(*error.words, log_text=log_text) from None
    if batch.job.engine.replicas == 1 and not batch.job.engine.server:
        generated.inversions = admissions.inversions
    return generated


def _taken_by_engines(job: Job, in_flight: dict[int, _Sent]) -> dict[int, _Sent]:
    """The requests that an engine can have taken: those sent after them were still on their way to it."""
    room = AHEAD_BATCHES * job.engine.max_num_seqs * job.engine.replicas
    return dict(itertools.islice(list(in_flight.items()), room))


def _with_prompts(error: EngineError, in_flight: list[_Sent], *, log_text: bool) -> EngineError:
    """The death of an engine with the prompts that it had: one of them may be why."""
    if not in_flight:
        return error
    shown = ", ".join(repr(sent.id) for sent in in_flight[:SHOWN_PROMPTS])
    more = f" and {len(in_flight) - SHOWN_PROMPTS} more" if in_flight[SHOWN_PROMPTS:] else ""
    apart = EngineError(
        f"{error}. All answers are kept. Run the job again: it sends all other prompts first, and then by themselves "
        f"the {len(in_flight)} that the engine had, to find out whether one of them is why"
    )
    words = f"without an answer then, in the order of sending: {shown}{more}"
    return apart.about_prompts(*error.words, words, log_text=log_text)


def _added(before: PassStats | None, stats: PassStats) -> PassStats:
    """The stats of an engine's runs, one after another; shares and replicas are those of the first."""
    if before is None:
        return stats
    return replace(
        before,
        wall_s=before.wall_s + stats.wall_s,
        preempted=before.preempted + stats.preempted,
        prefix_queries=before.prefix_queries + stats.prefix_queries,
        prefix_hits=before.prefix_hits + stats.prefix_hits,
    )


def _fatal(place: int, sent: _Sent, error: EngineError) -> Result:
    reason = f"the engine died with this prompt alone, and it is not sent again: {error}"
    return Result(place, sent.id, sent.prompt_tokens, sent.asked_tokens, sent.asked_samples, (), reason, INTERRUPTED)


class _Pending:
    """The pending prompts in the order of sending (`Divisible`), read and tokenized when the engine needs them."""

    def __init__(
        self,
        batch: Batch,
        places: NDArray[np.int64],
        in_flight: dict[int, _Sent],
        store: Callable[[Result], None],
        admissions: AdmissionLog,
    ) -> None:
        self.batch, self.places, self.in_flight = batch, places, in_flight
        self.store, self.admissions = store, admissions

    def __len__(self) -> int:
        return len(self.places)

    @property
    def sequences(self) -> int:
        """How many sequences are in flight: one for each sample of a prompt."""
        return sum(sent.asked_samples for sent in list(self.in_flight.values()))

    def __iter__(self) -> Iterator[Request]:
        return self.between(0, len(self))

    def work(self) -> NDArray[np.float64]:
        """float64[n]: predicted without reading the prompts, from their bytes and the tokens that the job asks for."""
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
        found = self.batch.tokenizer.each(prompts)
        for place, prompt, rendered, asked, n in zip(places, prompts, found, most, samples, strict=True):
            if isinstance(rendered, PromptError):
                self.store(Result(place, prompt.id, 0, asked, n, (), rendered.problem, REFUSED))
                continue
            ids = rendered[1]
            self.in_flight[place] = _Sent(prompt.id, len(ids), asked, n, self.admissions.send())
            yield Request(place, ids, prompt.sampling, prompt.lora)


def _window_by_window(pending: _Pending, windowed: WindowedOrdering) -> Iterator[Request]:
    """First the prompts whose order is known, then window by window. The total number is not known in advance."""
    engine = pending.batch.job.engine
    windows = windowed.windows(lambda: pending.sequences < engine.replicas * engine.max_num_seqs)
    for places in itertools.chain([pending.places], windows):
        for start in range(0, len(places), READ_AHEAD_PROMPTS):
            yield from pending.read(places[start : start + READ_AHEAD_PROMPTS].tolist())


def _result(answer: Output | Failure, sent: _Sent) -> Result:
    request = (answer.number, sent.id, sent.prompt_tokens, sent.asked_tokens, sent.asked_samples)
    if isinstance(answer, Failure):
        return Result(*request, (), answer.reason, REFUSED)
    if len(answer.completions) != sent.asked_samples:
        reason = f"the engine gave {len(answer.completions)} of {sent.asked_samples} samples"
        return Result(*request, (), reason, INTERRUPTED)
    if unfinished := [output.finish_reason for output in answer.completions if output.finish_reason not in FINISHED]:
        log = f" (vLLM's log: {answer.log})" if answer.log else ""
        return Result(*request, (), f"the engine ended it early: {unfinished[0]}{log}", INTERRUPTED)
    return Result(*request, answer.completions, _cut_short_reason(answer, sent.asked_tokens))


def _cut_short_reason(answer: Output, asked: int | None) -> str | None:
    lengths = [(output.finish_reason, len(output.token_ids)) for output in answer.completions]
    cut = [tokens for reason, tokens in lengths if is_cut_short(reason, tokens, asked)]
    if not cut:
        return None
    return f"cut short after {min(cut)} of {asked} tokens: prompt and output reach the model's maximum length"


def failures(checkpoint: Checkpoint, most: int) -> tuple[Counter[str], list[Result]]:
    """How many prompts have no output or an incomplete one, by kind, and the first `most` in the file's order."""
    kinds, first = Counter[str](), list[Result]()
    for place in np.flatnonzero(checkpoint.states != State.COMPLETE).tolist():
        result = checkpoint.read(place)
        kinds[result.kind if result else "missing"] += 1
        if result and len(first) < most:
            first.append(result)
    return kinds, first
