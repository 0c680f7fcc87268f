"""Calibration: the costs of a step, fitted to a short run on the real engine.

It needs steps that read different numbers of experts at the same batch size (the same prompts shuffled, and sorted by
the experts they use), and steps at smaller batches (a few short passes). How many experts each step read is simulated
from the captured routes, for the order that was sent and the lengths that were generated.
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

BATCHES = 12  # batches of prompts in a full pass
SMALL_BATCHES = (0.25, 0.5)  # of max_num_seqs, in passes of one batch each
LEAST_STEPS = 8  # timed at a batch size, for its own base cost
HUBER_SD = 1.345  # larger residuals count less: pauses of the host say nothing about the model


@dataclass(frozen=True)
class TimedSteps:
    """Timed steps, with what the simulation says they did. All arrays are [steps]."""

    ms: NDArray[np.float64]
    running: NDArray[np.integer]
    experts: NDArray[np.integer]  # Σ over layers
    prefill_tokens: NDArray[np.integer]


@dataclass(frozen=True)
class Fit:
    """Step costs, and how well they explain the steps they were fitted to."""

    costs: StepCosts
    steps: int
    r_squared: float  # share of the steps' variance that is explained
    residual: float  # sd of a step's residual over the mean step
    expert_ms_error: float  # standard error of the cost of an expert


@dataclass(frozen=True)
class Calibration:
    """A fit on a real engine."""

    fit: Fit
    expert_ms_of_bandwidth: float | None  # to read an expert's bytes at the probe's speed; None: not known

    @property
    def costs(self) -> StepCosts:
        return self.fit.costs


def fit_costs(steps: TimedSteps, source: str) -> Fit:
    """Least squares with Huber's weights: a base per batch size, a cost per expert, a cost per prompt token; none < 0.

    Steps at batch sizes with fewer than LEAST_STEPS steps are left out.

    Raises:
        RoutingError: no batch size has enough steps, or the number of experts never differed at the same batch size.
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
            f"{len(steps.ms)} timed steps cannot separate the cost of an expert from that of a batch: capture more "
            "prompts, or prompts whose experts differ more"
        )
    ms = steps.ms[kept].astype(np.float64)
    plain = np.linalg.lstsq(design, ms)[0]
    spread = 1.4826 * float(np.median(np.abs(ms - design @ plain)))
    scale = max(HUBER_SD * spread, np.finfo(np.float64).tiny * 1e9)
    found = least_squares(
        lambda constants: design @ constants - ms,
        np.maximum(plain, 0),
        lambda _: design,
        bounds=(0, np.inf),  # noise larger than a cost would otherwise make it negative
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
    """The fit to all passes. The steps of one pass share the machine's state, so the error of an expert's cost is the
    larger of the fit's own and the delete-one-pass jackknife's (Efron, 1982).

    Raises:
        RoutingError: see `fit_costs`.
    """
    whole, costs = fit_costs(join_steps(passes), source), []
    for left_out in range(len(passes)):
        with contextlib.suppress(RoutingError):  # the other passes alone cannot tell an expert's cost
            rest = [steps for k, steps in enumerate(passes) if k != left_out]
            costs.append(fit_costs(join_steps(rest), source).costs.expert_ms)
    between = float(np.sqrt((len(costs) - 1) * np.var(costs))) if costs else 0.0
    return replace(whole, expert_ms_error=max(whole.expert_ms_error, between))


def join_steps(passes: Sequence[TimedSteps]) -> TimedSteps:
    """The steps of several passes, one pass after the other."""
    names = TimedSteps.__annotations__
    return TimedSteps(*(np.concatenate([getattr(steps, name) for steps in passes]) for name in names))


def calibrate(
    engine: Engine,
    job: Job,
    prompts: TokenizedPrompts,
    routes: Routes,
    bytes_per_expert: int | None = None,
    seed: int = 0,
) -> Calibration:
    """Time a few passes of captured prompts on a started engine, and fit the costs.

    Args:
        prompts: the job's; those without routes are left out.
        bytes_per_expert: to compare the cost of an expert with the memory's speed, where the engine runs on CPUs (the
            probe streams the host's memory, which says nothing about an accelerator's).

    Raises:
        RoutingError: too few captured prompts, failed requests, or an engine whose steps differ from the simulation.
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
    shuffled, grouped = sample, sample[_group_by_experts(sample, prompts, routes, len(sample) // batch, seed)]
    small = [generator.choice(sample, max(1, int(share * batch)), replace=False) for share in SMALL_BATCHES]
    _timed_pass(engine, job, prompts, routes, shuffled[:batch])  # warms the engine up
    # There and back, so that a steady drift of the machine is no difference between the two orders.
    orders = [shuffled, grouped, *small, *small[::-1], grouped, generator.permutation(shuffled)]
    passes = [_timed_pass(engine, job, prompts, routes, order) for order in orders]
    timed = sum(len(steps.ms) for steps in passes)
    fit = fit_passes(passes, f"{timed} steps timed on {engine.info.machine.get('device', 'this engine')}")
    return Calibration(fit, _expert_ms_of_bandwidth(engine, job, bytes_per_expert))


def _group_by_experts(
    sample: NDArray[np.int64], prompts: TokenizedPrompts, routes: Routes, clusters: int, seed: int
) -> NDArray[np.int64]:
    """An order of the sample that puts prompts together whose generated tokens used the same experts."""
    from sklearn.cluster import KMeans

    record = routes.record
    used = [frequencies(routes[routes.place[prompts.ids[k]]].decode, record.experts) for k in sample.tolist()]
    labels = KMeans(clusters, n_init=1, random_state=seed).fit_predict(np.stack(used))
    order: NDArray[np.int64] = np.argsort(labels, kind="stable")
    return order


def _timed_pass(
    engine: Engine, job: Job, prompts: TokenizedPrompts, routes: Routes, order: NDArray[np.int64]
) -> TimedSteps:
    """Run prompts in an order, and pair each timed step with its simulation."""
    answers: list[Output | Failure] = []
    sent = order.tolist()
    requests = [Request(k, prompts.token_ids(k), prompts.samplings[k]) for k in sent]
    stats = engine.run(requests, job.sampling, answers.append)
    source = captured_routes(routes, prompts.ids)
    simulated = simulate_pass(
        _sim_requests(requests, answers, log_text=job.reporting.log_text), source, _engine_shape(engine, job)
    )
    if len(simulated.running) != len(stats.step_ms):
        raise RoutingError(
            f"the engine took {len(stats.step_ms)} steps for {len(sent)} prompts, and the simulation "
            f"{len(simulated.running)}: the engine schedules differently ({stats.preempted} preempted), so what its "
            "steps cost cannot be told. Try again with engine.args.async_scheduling set to false"
        )
    ms = stats.step_ms.astype(np.float64)
    return TimedSteps(ms, simulated.running, simulated.experts, simulated.prefill_tokens)


def _sim_requests(
    requests: Sequence[Request], answers: Sequence[Output | Failure], *, log_text: bool
) -> list[SimRequest]:
    """The requests with the lengths that were generated, one per sample."""
    by_number = {answer.number: answer for answer in answers}
    sim_requests = []
    for request in requests:
        answer = by_number.get(request.number)
        if not isinstance(answer, Output):
            raise RoutingError("a prompt failed while steps were timed").about_prompts(
                answer.reason if answer else "no answer", log_text=log_text
            )
        tokens = len(request.token_ids)
        lengths = [len(completion.token_ids) for completion in answer.completions]
        sim_requests += [SimRequest(request.number, tokens, length, sample) for sample, length in enumerate(lengths)]
    return sim_requests


def _engine_shape(engine: Engine, job: Job) -> EngineShape:
    room = engine.info.settings.get("max_num_batched_tokens", BATCHED_TOKENS)
    return replace(EngineShape.of(job), batched_tokens=int(room), replicas=1)


def _expert_ms_of_bandwidth(engine: Engine, job: Job, bytes_per_expert: int | None) -> float | None:
    if bytes_per_expert is None or engine.info.machine.get("device_type") != "cpu":
        return None
    mib = job.measure.validity.probe_mib
    bytes_per_ms = 2 * (mib << 20) / (1000 * engine.probe(mib))  # a copy reads every byte and writes it
    return bytes_per_expert / bytes_per_ms
