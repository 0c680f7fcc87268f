"""The child process's second file: records the decisions of vLLM's routers, or overrides them.

It imports only the standard library and what vLLM brings. worker.py runs it only if the parent sent it, which never
happens when orders are measured.

On CPUs the routers' own hook records, so the model runs eagerly and the engine's core in this process: each step's rows
follow the input batch, and belong to the requests and positions that the model runner was about to compute. Elsewhere
vLLM returns the experts itself (`enable_return_routed_experts`), if the version can; that way is written from vLLM's
source and was not tried on a GPU.

A pass's field `routing`: {"capture": true} for events `routes`, {"oea": {"k0": 2}} for another routing (see `Oea`).
"""

from __future__ import annotations

import base64
import dataclasses
import os
from collections.abc import Callable
from typing import Any

import numpy as np

Line = dict[str, Any]
Array = np.ndarray[Any, Any]


def engine_args(args: Line) -> Line:
    """The engine's settings, changed as far as recording needs it.

    Raises ValueError if this vLLM cannot return routes.
    """
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        return {**args, "enforce_eager": True, "async_scheduling": False, "enable_prefix_caching": False}
    if "enable_return_routed_experts" not in {field.name for field in dataclasses.fields(EngineArgs)}:
        raise ValueError("this version of vLLM does not return routed experts on this device: use a newer one")
    os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "1")  # the only one that returns them,
    return {**args, "enable_return_routed_experts": True, "enable_prefix_caching": True}  # and only with this cache


def attach(engine: Any) -> Routing:
    """The way to record this engine's routes."""
    if getattr(engine.vllm_config, "aux_output_config", None) and engine.vllm_config.aux_output_config.enabled:
        return ReturnedRouting()
    alone = os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") == "0"
    if not alone or engine.vllm_config.parallel_config.world_size > 1:
        raise ValueError(
            "routes can be recorded only where the whole engine runs in one process: remove tensor_parallel_size and "
            "other parallelism from engine.args"
        )
    (runner,) = engine.collective_rpc(lambda worker: worker.model_runner)
    return HookRouting(runner)


class Routing:
    """What worker.py calls: `begin` before a pass, `take` for each finished request."""

    def begin(self, options: Line) -> None:
        """Forget the last pass; `options` is the pass's field `routing`."""
        raise NotImplementedError

    def take(self, output: Any) -> Line | None:
        """The fields of a finished request's event `routes`; None if the pass does not capture."""
        raise NotImplementedError


class ReturnedRouting(Routing):
    """Routes that vLLM returns with a request's output: [tokens, all layers, top_k], zeros where a layer is dense."""

    capturing = False

    def begin(self, options: Line) -> None:
        self.capturing = bool(options.get("capture"))
        if options.get("oea"):
            raise ValueError(
                "Opportunistic Expert Activation works with vLLM's CPU router only. On a GPU the place is "
                "FusedTopKRouter._compute_routing, with the rows that decode on the device and no CUDA graphs"
            )

    def take(self, output: Any) -> Line | None:
        if not self.capturing:
            return None
        experts = output.outputs[0].routed_experts
        if experts is None:
            return {"missing": "vLLM returned no experts"}
        if (
            experts.shape[-1] > 1
        ):  # a dense layer has zeros alone; at top-1 a router may choose only expert 0, so all layers stay
            experts = experts[:, experts.any(axis=(0, 2))]
        return _fields(output, experts)


class HookRouting(Routing):
    """Routes recorded by the routers' hook, step by step."""

    def __init__(self, runner: Any) -> None:
        from vllm.model_executor.layers.fused_moe.router.base_router import BaseRouter

        layers = {
            module.layer_id: module.router
            for module in runner.get_model().modules()
            if hasattr(module, "layer_id") and isinstance(getattr(module, "router", None), BaseRouter)
        }
        if not layers:
            raise ValueError("no layer of this model has a router that can be recorded")
        self.routers = [layers[layer] for layer in sorted(layers)]
        self.step = Step([], [])
        self.traces: dict[str, Trace] = {}
        self.capturing = self.active = False
        self.prepare = runner._prepare_inputs
        runner._prepare_inputs = lambda scheduled, *rest, **more: self.begin_step(runner, scheduled, rest, more)

    def begin(self, options: Line) -> None:
        self.step, self.traces = Step([], []), {}
        self.capturing, oea = bool(options.get("capture")), options.get("oea")
        self.active = self.capturing or bool(oea)
        for layer, router in enumerate(self.routers):
            router.set_capture_fn(self.recorder(layer) if self.capturing else None)
            router.__dict__.pop("_compute_routing", None)
            if oea:
                router._compute_routing = Oea(router, oea["k0"], self.decoding)

    def begin_step(self, runner: Any, scheduled: Any, rest: Any, more: Any) -> Any:
        """Remember whose rows the model is about to compute, once the batch is in its final order."""
        prepared = self.prepare(scheduled, *rest, **more)
        if self.active:
            if self.capturing:  # otherwise the traces of all requests would stay in memory
                self.assign_rows()
            batch, counts = runner.input_batch, scheduled.num_scheduled_tokens
            spans = [
                Span(name, int(batch.num_computed_tokens_cpu[i]), int(counts[name]), int(batch.num_prompt_tokens[i]))
                for i, name in enumerate(batch.req_ids)
            ]
            self.step = Step(spans, [None] * len(self.routers))
        return prepared

    def recorder(self, layer: int) -> Callable[[Any], None]:
        """The function that one layer's router calls with the experts of a step's rows, [rows, top_k]."""
        dtype = np.uint8 if self.routers[layer].global_num_experts <= 256 else np.uint16

        def record(experts: Any) -> None:
            if self.step.spans:
                self.step.layers[layer] = experts.cpu().numpy().astype(dtype)

        return record

    def decoding(self, rows: int) -> Array:
        """bool[rows]: which rows of this step decode; rows that only pad the batch do not."""
        mask, at = np.zeros(rows, bool), 0
        for span in self.step.spans:
            mask[at : at + span.count] = span.decodes
            at += span.count
        return mask

    def assign_rows(self) -> None:
        """Assign the last step's rows to their requests; further rows only padded the batch."""
        step, at = self.step, 0
        recorded = [layer for layer in step.layers if layer is not None]
        whole = np.stack(recorded, axis=1) if len(recorded) == len(self.routers) else None
        for span in step.spans:
            trace = self.traces.setdefault(span.request.partition("-")[0], Trace())  # vLLM appends random letters
            trace.add(span, None if whole is None else whole[at : at + span.count])
            at += span.count
        self.step = Step([], [])

    def take(self, output: Any) -> Line | None:
        if not self.capturing:
            return None
        self.assign_rows()
        trace = self.traces.pop(output.request_id, None)
        if trace is None:
            return {"missing": "no step computed it"}
        return {"missing": trace.fault} if trace.fault else _fields(output, np.concatenate(trace.rows))


@dataclasses.dataclass(frozen=True)
class Span:
    """Successive rows of one request in a step."""

    request: str
    computed: int  # tokens of the request before these
    count: int
    prompt_tokens: int

    @property
    def decodes(self) -> bool:
        """Whether it makes the next token from a generated one; a prompt computed again after preemption does not."""
        return self.count == 1 and self.computed >= self.prompt_tokens


@dataclasses.dataclass(frozen=True)
class Step:
    """One step of the model: whose rows they are, in order, and what each layer's router chose for them."""

    spans: list[Span]
    layers: list[Array | None]  # each [rows, top_k]


class Trace:
    """One request's experts, as far as it has been computed."""

    def __init__(self) -> None:
        self.rows: list[Array] = []  # [tokens, layers, top_k], end to end
        self.tokens = 0
        self.fault = ""

    def add(self, span: Span, rows: Array | None) -> None:
        if self.fault:
            return
        if rows is None or len(rows) < span.count:
            self.fault = f"not every layer reported the experts of {span.count} tokens from {span.computed} on"
        elif span.computed < self.tokens:
            self.fault = "it was preempted, and computed again among other requests"
        elif span.computed > self.tokens:
            self.fault = f"its tokens {self.tokens} to {span.computed - 1} were not computed in this pass"
        else:
            self.rows.append(rows)
            self.tokens += span.count


def _fields(output: Any, experts: Array) -> Line:
    """An event's fields: the experts as bytes, uint8 or little-endian uint16, in base64."""
    expected = len(output.prompt_token_ids) + len(output.outputs[0].token_ids) - 1  # the last token enters no layer
    if len(experts) != expected:
        return {"missing": f"{len(experts)} tokens have experts, but {expected} were computed"}
    content = experts.astype(experts.dtype.newbyteorder("<")).tobytes()
    return {
        "shape": list(experts.shape),
        "bytes_per_expert": experts.dtype.itemsize,
        "experts": base64.b64encode(content).decode(),
    }


class Oea:
    """Opportunistic Expert Activation (arXiv 2511.02237): lossy, because tokens get other experts than the model's.

    Each decoding token keeps its best `k0` experts. All of these are loaded from memory, and so are the
    experts of the step's other rows, whose routing stays the model's. Each decoding token then fills up to `top_k` with
    the best of the loaded experts, and its weights are computed over the chosen ones.
    """

    def __init__(self, router: Any, k0: int, decoding: Callable[[int], Array]) -> None:
        from vllm.model_executor.layers.fused_moe.router.cpu_router import CPURouter

        plain = isinstance(router, CPURouter) and router.scoring_func == "softmax"
        if not plain or router.use_grouped_topk or router.custom_routing_function is not None:
            raise ValueError("Opportunistic Expert Activation works only with routers that take the top k of a softmax")
        if not 1 <= k0 <= router.top_k:
            raise ValueError(f"k0 must be 1 to {router.top_k}, the experts of a token, not {k0}")
        self.top_k, self.renormalize = router.top_k, router.renormalize
        self.k0, self.decoding = k0, decoding

    def __call__(
        self, hidden_states: Any, router_logits: Any, indices_type: Any, *, input_ids: Any = None
    ) -> tuple[Any, Any]:
        """In place of the router's `_compute_routing`: float32 weights and int32 experts, [rows, top_k] both."""
        import torch

        decoding = torch.from_numpy(self.decoding(len(router_logits)))
        return opportunistic(router_logits, self.top_k, self.k0, decoding, self.renormalize)


def opportunistic(router_logits: Any, top_k: int, k0: int, decoding: Any, renormalize: bool) -> tuple[Any, Any]:
    """The two phases of Opportunistic Expert Activation on one layer and step.

    Args:
        router_logits: [rows, experts].
        decoding: bool[rows]; the other rows keep the model's routing.
        renormalize: whether the weights of a token's experts sum to 1, as the model's own do or not.

    Returns:
        float32 weights and int32 experts, [rows, top_k] both. Where fewer than top_k experts are loaded, the rest
        of a row points to its best expert, with weight 0.
    """
    import torch

    logits, best = torch.topk(router_logits, top_k, dim=-1)
    if decoding.any():
        loaded = torch.zeros(router_logits.shape[-1], dtype=torch.bool)
        loaded[best[decoding, :k0].flatten()] = True
        loaded[best[~decoding].flatten()] = True
        allowed = router_logits[decoding].masked_fill(~loaded, -torch.inf)
        logits[decoding], best[decoding] = torch.topk(allowed, top_k, dim=-1)
        best = torch.where(logits == -torch.inf, best[:, :1], best)
    if renormalize:
        weights = torch.softmax(logits, dim=-1)
    else:
        weights = (logits - torch.logsumexp(router_logits, dim=-1, keepdim=True)).exp()
    return weights.to(torch.float32), best.to(torch.int32)
