"""The constants of a step, fitted to a short run on the real engine.

In: a started engine, prompts whose routes were captured, those routes. Out: a `Calibration`: the constants, how well
they explain the steps that were timed, and how near an expert's cost is to reading its bytes. Decides nothing.

What is needed: steps whose experts differ at the same batch size (the same prompts shuffled, and sorted by what they
route to), and steps at smaller batches (a few short passes). How many experts each step touched is replayed from the
captured routes, for the order that was sent and the lengths that came back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from orderproof.engines.protocol import Engine, Failure, Output, Request
from orderproof.job.spec import BATCHED_TOKENS, Job
from orderproof.prompts.tokenization import TokenizedPrompts
from orderproof.routing.errors import RoutingError
from orderproof.routing.experts import frequencies
from orderproof.routing.replay import SimRequest
from orderproof.routing.route_source import captured_routes
from orderproof.routing.routes import Routes
from orderproof.routing.simulate import EngineShape, simulate_pass
from orderproof.routing.step_costs import StepCosts

BATCHES = 12  # of prompts in a full pass
SMALL_BATCHES = (0.25, 0.5)  # of max_num_seqs, in passes of one batch each
LEAST_STEPS = 8  # at a batch size, for a base of its own
HUBER_SD = 1.345  # residuals beyond count less: a host's hiccups are no property of the model


@dataclass(frozen=True)
class TimedSteps:
    """Steps that were timed, beside what replay says they did. All arrays are [steps]."""

    ms: NDArray[np.float64]
    running: NDArray[np.integer]
    experts: NDArray[np.integer]  # Σ over layers
    prefill_tokens: NDArray[np.integer]


@dataclass(frozen=True)
class Fit:
    """Constants, and how well they explain the steps they come from."""

    costs: StepCosts
    steps: int
    r_squared: float  # share of the steps' variance that is explained
    residual: float  # sd of a step's residual over the mean step
    expert_ms_error: float  # standard error of the cost of an expert


@dataclass(frozen=True)
class Calibration:
    """A fit on a real engine."""

    fit: Fit
    expert_ms_of_bandwidth: float | None  # to read an expert's bytes at the probe's speed; None: not known here

    @property
    def costs(self) -> StepCosts:
        return self.fit.costs


def fit_costs(steps: TimedSteps, source: str) -> Fit:
    """Least squares, with Huber's weights: a base per batch size, a cost per expert, a cost per prompt token. No cost
    is below 0.

    Steps at batch sizes that were seen fewer than LEAST_STEPS times are left out.

    Raises:
        RoutingError: no batch size was seen often enough, or experts never differed beside it.
    """
    from scipy.optimize import least_squares

    sizes, counts = np.unique(steps.running, return_counts=True)
    sizes = sizes[counts >= LEAST_STEPS]
    kept = np.isin(steps.running, sizes)
    columns = [*(steps.running[kept] == size for size in sizes), steps.experts[kept]]
    reads = bool(steps.prefill_tokens[kept].any())
    design = np.stack([*columns, steps.prefill_tokens[kept]] if reads else columns, axis=1).astype(np.float64)
    if not len(sizes) or np.linalg.matrix_rank(design) < design.shape[1]:
        raise RoutingError(
            f"{len(steps.ms)} timed steps do not tell the cost of an expert from that of a batch: time more prompts, "
            "in orders that touch more and fewer experts"
        )
    ms = steps.ms[kept].astype(np.float64)
    plain = np.linalg.lstsq(design, ms)[0]
    spread = 1.4826 * float(np.median(np.abs(ms - design @ plain)))
    scale = max(HUBER_SD * spread, np.finfo(np.float64).tiny * 1e9)
    found = least_squares(
        lambda constants: design @ constants - ms,
        np.maximum(plain, 0),
        lambda _: design,
        bounds=(0, np.inf),  # where noise is larger than a cost, free time would be foretold
        x_scale="jac",
        loss="huber",
        f_scale=scale,
    )
    residuals = ms - design @ found.x
    variance = float(residuals @ residuals) / max(1, len(ms) - design.shape[1])
    errors = np.sqrt(variance * np.diag(np.linalg.inv(design.T @ design)))
    costs = StepCosts(
        batches=tuple(map(float, sizes)),
        base_ms=tuple(map(float, found.x[: len(sizes)])),
        expert_ms=float(found.x[len(sizes)]),
        source=source,
        prefill_token_ms=float(found.x[-1]) if reads else 0.0,
    )
    explained = 1 - float(residuals.var() / ms.var()) if ms.var() else 1.0
    return Fit(costs, len(ms), explained, float(np.sqrt(variance) / ms.mean()), float(errors[len(sizes)]))


def fit_passes(passes: Sequence[TimedSteps], source: str) -> Fit:
    """The fit to all passes. The steps of one pass share its machine's state, so the error of an expert's cost is the
    larger one of the steps' and of the delete-one-pass jackknife (Efron, 1982).

    Raises:
        RoutingError: as `fit_costs`.
    """
    whole, costs = fit_costs(joined(passes), source), []
    for left_out in range(len(passes)):
        with contextlib.suppress(RoutingError):  # without this pass nothing tells an expert's cost
            rest = [one for k, one in enumerate(passes) if k != left_out]
            costs.append(fit_costs(joined(rest), source).costs.expert_ms)
    between = float(np.sqrt((len(costs) - 1) * np.var(costs))) if costs else 0.0
    return replace(whole, expert_ms_error=max(whole.expert_ms_error, between))


def joined(passes: Sequence[TimedSteps]) -> TimedSteps:
    """All steps of some passes."""
    return TimedSteps(*(np.concatenate([getattr(one, name) for one in passes]) for name in TimedSteps.__annotations__))


def calibrate(
    engine: Engine,
    job: Job,
    prompts: TokenizedPrompts,
    routes: Routes,
    bytes_per_expert: int | None = None,
    seed: int = 0,
) -> Calibration:
    """Time a few passes of captured prompts on a started engine, and fit.

    Args:
        prompts: the job's; those without routes are left out.
        bytes_per_expert: to hold the cost of an expert against the memory's speed, where the engine runs on CPUs (the
            probe streams the host's memory, which says nothing of an accelerator's).

    Raises:
        RoutingError: too few captured prompts, requests that failed, or an engine that steps otherwise than replay.
        EngineError: the engine died.
    """
    generator = np.random.default_rng(seed)
    captured = np.array([k for k, prompt_id in enumerate(prompts.ids) if prompt_id in routes.place], np.int64)
    batch = job.engine.max_num_seqs
    if len(captured) < 2 * batch:
        raise RoutingError(
            f"{routes.path} holds {len(captured)} of these prompts, and a calibration needs two batches of {batch}: "
            "capture a larger sample"
        )
    sample = generator.permutation(captured)[: BATCHES * batch]
    shuffled, alike = sample, sample[_alike(sample, prompts, routes, len(sample) // batch, seed)]
    small = [generator.choice(sample, max(1, int(share * batch)), replace=False) for share in SMALL_BATCHES]
    _timed_pass(engine, job, prompts, routes, shuffled[:batch])  # warms the engine up
    # Forth and back, so that a steady drift of the machine is no difference between the two orders.
    orders = [shuffled, alike, *small, *small[::-1], alike, generator.permutation(shuffled)]
    passes = [_timed_pass(engine, job, prompts, routes, order) for order in orders]
    timed = sum(len(one.ms) for one in passes)
    fit = fit_passes(passes, f"{timed} steps timed on {engine.info.machine.get('device', 'this engine')}")
    return Calibration(fit, _expert_ms_of_bandwidth(engine, job, bytes_per_expert))


def _alike(
    sample: NDArray[np.int64], prompts: TokenizedPrompts, routes: Routes, clusters: int, seed: int
) -> NDArray[np.int64]:
    """An order of the sample that puts prompts side by side whose generated tokens used the same experts."""
    from sklearn.cluster import KMeans

    record = routes.record
    used = [frequencies(routes[routes.place[prompts.ids[k]]].decode, record.experts) for k in sample.tolist()]
    labels = KMeans(clusters, n_init=1, random_state=seed).fit_predict(np.stack(used))
    order: NDArray[np.int64] = np.argsort(labels, kind="stable")
    return order


def _timed_pass(
    engine: Engine, job: Job, prompts: TokenizedPrompts, routes: Routes, order: NDArray[np.int64]
) -> TimedSteps:
    """Run some prompts in an order, and say what each step did."""
    answers: list[Output | Failure] = []
    sent = order.tolist()
    requests = [Request(k, prompts.token_ids(k), prompts.samplings[k]) for k in sent]
    figures = engine.run(requests, job.sampling, answers.append)
    replayed = simulate_pass(_loads(requests, answers), captured_routes(routes, prompts.ids), _setting(engine, job))
    if len(replayed.running) != len(figures.step_ms):
        raise RoutingError(
            f"the engine took {len(figures.step_ms)} steps for {len(sent)} prompts, and replay "
            f"{len(replayed.running)}: it schedules otherwise ({figures.preempted} preempted), so its steps cannot be "
            "told apart. Take published constants, or set engine.args.async_scheduling to false"
        )
    ms = figures.step_ms.astype(np.float64)
    return TimedSteps(ms, replayed.running, replayed.experts, replayed.prefill_tokens)


def _loads(requests: Sequence[Request], answers: Sequence[Output | Failure]) -> list[SimRequest]:
    """The requests with the lengths that came back, one load per sample."""
    by_number = {answer.number: answer for answer in answers}
    loads = []
    for request in requests:
        answer = by_number.get(request.number)
        if not isinstance(answer, Output):
            raise RoutingError(f"a prompt failed while steps were timed: {answer.reason if answer else 'no answer'}")
        tokens = len(request.token_ids)
        made = [len(one.token_ids) for one in answer.completions]
        loads += [SimRequest(request.number, tokens, generated, sample) for sample, generated in enumerate(made)]
    return loads


def _setting(engine: Engine, job: Job) -> EngineShape:
    room = engine.info.settings.get("max_num_batched_tokens", BATCHED_TOKENS)
    return replace(EngineShape.of(job), batched_tokens=int(room), replicas=1)


def _expert_ms_of_bandwidth(engine: Engine, job: Job, bytes_per_expert: int | None) -> float | None:
    if bytes_per_expert is None or engine.info.machine.get("device_type") != "cpu":
        return None
    mib = job.measure.validity.probe_mib
    bytes_per_ms = 2 * (mib << 20) / (1000 * engine.probe(mib))  # a copy reads every byte and writes it
    return bytes_per_expert / bytes_per_ms
