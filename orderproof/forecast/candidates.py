"""The orders that a job could use, cheapest to make first, and how long each took to make."""

from __future__ import annotations

import time
from dataclasses import dataclass

from orderproof.job.errors import OrderproofError
from orderproof.job.spec import Job, OrderSpec
from orderproof.orders.order import Order
from orderproof.orders.registry import make_order
from orderproof.orders.view import PromptView
from orderproof.signals.registry import ROUTING_SIGNALS

GROUPING = ("cluster", "greedy", "exchange")  # methods that compare prompts by a signal
FINER = ("token", "predicted", "observed")  # signals that distinguish small clusters
WINDOW_BATCHES = 8  # of the windowed order that is always among the candidates
MOST_CLUSTERS = 256  # of the candidates that nobody signals for: more clusters take longer to make


@dataclass(frozen=True)
class Candidate:
    """One way to order these prompts."""

    name: str
    spec: OrderSpec
    order: Order | None  # None: it cannot be made from these prompts
    problem: str | None  # the reason
    seconds: float  # to make it, with models loaded

    @property
    def learns_from_routes(self) -> bool:
        return self.spec.method in GROUPING and self.spec.signal in ROUTING_SIGNALS

    @property
    def remembers(self) -> bool:
        """Whether it uses the routes of the prompts' own earlier answers: its saving is one for the same prompts."""
        return self.spec.method in GROUPING and self.spec.signal == "observed"


def candidates_of(job: Job, prompts: PromptView, dataset_md5: str) -> list[Candidate]:
    """Make every order that these prompts allow, and the job's own with its own parameters."""
    return [_candidate(spec, prompts, dataset_md5) for spec in _specs(job, prompts)]


def name_of(spec: OrderSpec) -> str:
    """The name of an order in a plan."""
    by = f" by {spec.signal}" if spec.method in GROUPING else ""
    by += f", {spec.clusters} clusters" if by and spec.clusters != OrderSpec().clusters else ""
    return f"{spec.method}{by}" + (f", windows of {spec.window}" if spec.window else "")


def _candidate(spec: OrderSpec, prompts: PromptView, dataset_md5: str) -> Candidate:
    started = time.perf_counter()
    try:
        order, problem = make_order(spec, prompts, dataset_md5), None
    except OrderproofError as error:
        order, problem = None, str(error)
    return Candidate(name_of(spec), spec, order, problem, time.perf_counter() - started)


def _specs(job: Job, prompts: PromptView) -> list[OrderSpec]:
    """Cheapest first."""
    own = job.order
    shape = own if own.method in GROUPING else OrderSpec()
    specs = [OrderSpec(method="file"), OrderSpec(method="length")]
    if len(set(prompts.labels)) > 1 and None not in prompts.labels:
        window = WINDOW_BATCHES * job.engine.max_num_seqs
        specs += [OrderSpec(method="label"), OrderSpec(method="label", window=window)]
    signals = [("cluster", signal) for signal in ("lexical", "token", "embedding", "fingerprint", "predicted")]
    signals += [(how, "predicted") for how in ("greedy", "exchange")]
    answers_repeat = job.sampling.get("temperature") == 0 or job.sampling.get("seed") is not None
    signals += [("exchange", "observed")] if answers_repeat else []
    specs += [shape.model_copy(update={"method": how, "signal": signal, "window": None}) for how, signal in signals]
    batches = min(MOST_CLUSTERS, len(prompts) // job.engine.max_num_seqs)
    if batches > shape.clusters:  # also a cluster for each batch
        finer = [spec for spec in specs if spec.method in ("cluster", "exchange") and spec.signal in FINER]
        specs += [spec.model_copy(update={"clusters": batches}) for spec in finer]
    return list({name_of(spec): spec for spec in [*specs, own]}.values())
