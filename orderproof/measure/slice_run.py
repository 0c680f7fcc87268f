"""Slices on an engine: clean ones in a run each, fed ones in a single run whose admissions cut them."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from orderproof.engines.admission import count_inversions
from orderproof.engines.protocol import Engine, Failure, Output, PassStats, Request, Share
from orderproof.job.sampling import asked_tokens, is_cut_short
from orderproof.job.spec import Job
from orderproof.measure.slice_clock import SentRequests, Window, cut_windows
from orderproof.measure.slice_design import Slice
from orderproof.measure.trial_records import SliceDesign
from orderproof.measure.warm_up import request_list
from orderproof.prompts.tokenization import TokenizedPrompts

Answered = Callable[[], None]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class TimedSlice:
    """A slice as the engine ran it."""

    part: Slice
    window: Window
    outputs: Mapping[int, Output]  # by the prompt's index
    started_utc: str
    step_ms: Floats  # of the steps in its window
    running: Floats
    steal: float
    accelerator: Mapping[str, float]
    preempted: int | None  # None: the run held slices of several arms
    inversions: int
    failed: int
    cut_short: int

    @property
    def throttled(self) -> bool:
        return any(self.accelerator.get(key) for key in ("throttled", "after_throttled"))

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the pair should be run again. The machine's noise is no reason: it is in both arms alike."""
        checks = {
            f"{self.failed} requests failed": self.failed > 0,
            f"{self.cut_short} requests were cut short of the tokens asked by the model's length": self.cut_short > 0,
            "the accelerator throttled": self.throttled,
        }
        return tuple(reason for reason, holds in checks.items() if holds)


@dataclass
class SliceRunner:
    """Runs slices of one block. `salts`: of each arm's prefix cache."""

    job: Job
    prompts: TokenizedPrompts
    engine: Engine
    design: SliceDesign
    salts: Mapping[str, str]
    answered: Answered
    filler_seed: Sequence[int]
    _answers: list[Output | Failure] = field(default_factory=list)

    def run(self, slices: Sequence[Slice]) -> Iterator[TimedSlice]:
        """In the order given; each as soon as its figures are there."""
        if self.design.kind == "fed":
            yield from self._run_fed(slices)
        else:
            for part in slices:
                yield self._run_clean(part)

    def _run_clean(self, part: Slice) -> TimedSlice:
        requests = [self._request(k, k, part.arm) for k in part.prompts.tolist()]
        started = _now()
        stats = self._send(requests)
        outputs = {answer.number: answer for answer in self._answers if isinstance(answer, Output)}
        sent = [outputs.get(k) for k in part.prompts.tolist()]
        prompt_tokens = int(self.prompts.lengths[[k for k in part.prompts.tolist() if k in outputs]].sum())
        window = Window(
            start_s=min((output.scheduled_s for output in outputs.values()), default=0.0),
            seconds=stats.wall_s,
            prompt_tokens=prompt_tokens,
            output_tokens=sum(output.output_tokens for output in outputs.values()),
            foreign_tokens=0.0,
        )
        steps = (np.asarray(stats.step_ms, np.float64), np.asarray(stats.running, np.float64))
        inversions = _inversions(sent, stats.shares)
        return self._timed(part, window, outputs, started, steps, stats, stats.preempted, inversions)

    def _run_fed(self, slices: Sequence[Slice]) -> Iterator[TimedSlice]:
        fillers = np.random.default_rng(self.filler_seed).integers(0, len(self.prompts), self.design.seats)
        sent = np.concatenate([*(part.prompts for part in slices), fillers])
        arms = np.array([*(part.arm for part in slices for _ in part.prompts), *["filler"] * len(fillers)])
        # The same prompt is in both arms: a request is numbered by its place.
        numbered = enumerate(zip(sent.tolist(), arms.tolist(), strict=True))
        requests = [self._request(place, prompt, arm) for place, (prompt, arm) in numbered]
        started = _now()
        stats = self._send(requests)
        by_place = {answer.number: answer for answer in self._answers if isinstance(answer, Output)}
        answers = [by_place.get(place) for place in range(len(sent))]
        origin = min((output.scheduled_s for output in by_place.values()), default=0.0)
        windows = cut_windows(
            SentRequests(
                admitted_s=np.array([a.scheduled_s if a else np.nan for a in answers]),
                ended_s=np.array([origin + a.at_s if a else np.nan for a in answers]),
                prompt_tokens=self.prompts.lengths[sent].astype(np.float64),
                output_tokens=np.array([a.output_tokens if a else np.nan for a in answers]),
                arm=arms,
                step_ends_s=_step_ends(stats, origin),
            ),
            [len(part.prompts) for part in slices],
            [part.arm for part in slices],
            self.design.washout,
        )
        place = 0
        for part, window in zip(slices, windows, strict=True):
            own = answers[place : place + len(part.prompts)]
            outputs = {k: answer for k, answer in zip(part.prompts.tolist(), own, strict=True) if answer}
            steps = _steps_within(stats, origin, window)
            inversions = _inversions(own, ()) if self.job.engine.replicas == 1 else 0
            yield self._timed(part, window, outputs, started, steps, stats, None, inversions)
            place += len(part.prompts)

    def _request(self, number: int, prompt: int, arm: str) -> Request:
        prompts = self.prompts
        salt = self.salts.get(arm)
        return Request(number, prompts.token_ids(prompt), prompts.samplings[prompt], prompts.lora(prompt), salt)

    def _send(self, requests: Sequence[Request]) -> PassStats:
        self._answers = []

        def sink(answer: Output | Failure) -> None:
            self._answers.append(answer)
            self.answered()

        # Replicas share a clean slice in equal parts. A fed run is dealt to them in short runs of neighbours, so that
        # they work on the same slice at the same time.
        one_slice = self.design.kind == "clean" or self.job.engine.replicas == 1
        listed = request_list(self.job, requests) if one_slice else iter(requests)
        return self.engine.run(listed, self.job.sampling, sink)

    def _timed(
        self,
        part: Slice,
        window: Window,
        outputs: Mapping[int, Output],
        started: str,
        steps: tuple[Floats, Floats],
        stats: PassStats,
        preempted: int | None,
        inversions: int,
    ) -> TimedSlice:
        asked = asked_tokens(self.job, [self.prompts.samplings[k] for k in part.prompts.tolist()])
        cut = sum(
            any(is_cut_short(c.finish_reason, len(c.token_ids), most) for c in outputs[k].completions)
            for k, most in zip(part.prompts.tolist(), asked, strict=True)
            if k in outputs
        )
        return TimedSlice(
            part=part,
            window=window,
            outputs=outputs,
            started_utc=started,
            step_ms=steps[0],
            running=steps[1],
            steal=stats.steal,
            accelerator=stats.accelerator,
            preempted=preempted,
            inversions=inversions,
            failed=len(part.prompts) - len(outputs),
            cut_short=cut,
        )


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def _steps_within(stats: PassStats, origin: float, window: Window) -> tuple[Floats, Floats]:
    """Milliseconds and running sequences of the steps that ended in a window."""
    step_ms, running = np.asarray(stats.step_ms, np.float64), np.asarray(stats.running, np.float64)
    ends = _step_ends(stats, origin)
    inside = (ends >= window.start_s) & (ends < window.start_s + window.seconds)
    return step_ms[inside], running[inside]


def _step_ends(stats: PassStats, origin: float) -> Floats:
    """When each step of a run ended, on the clock of which the run began at `origin`."""
    elapsed = np.cumsum(stats.step_ms, dtype=np.float64)
    return np.asarray(origin + elapsed / elapsed[-1] * stats.wall_s) if len(elapsed) else elapsed


def _inversions(sent: Sequence[Output | None], shares: Sequence[Share]) -> int:
    """Requests that were admitted before one sent earlier: an order that a replica's scheduler undid."""
    clock = np.array([output.scheduled_s if output else np.nan for output in sent])
    replicas = {share.replica for share in shares}
    parts = [np.concatenate([clock[s.start : s.stop] for s in shares if s.replica == k]) for k in replicas]
    return sum(map(count_inversions, parts or [clock]))
