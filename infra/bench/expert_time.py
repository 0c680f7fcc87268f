"""What one more expert costs on this GPU: decode time of one MoE layer against the number of distinct experts.

The weights are random, bfloat16, of Qwen3-30B-A3B's shape (128 experts of 9.4 MB, top-8), several layers used in turn,
so that no cache holds an expert until it is needed again. It prints a table, or with --json one object: microseconds
per extra expert, the line's R², and its share of the card's measured memory bandwidth.

Before anything is timed the kernels are compared with a float32 reference. Needs only torch and Triton.

    python infra/bench/expert_time.py                     # on a CUDA or ROCm device, in some minutes
    TRITON_INTERPRET=1 python infra/bench/expert_time.py --check    # on CPUs: compares the kernels, times nothing

The time of a step is `base(batch) + c × Σ_layers distinct experts`; the slope is `c`. A token's eight experts are drawn
so that exactly so many are touched, evenly: the same batch, the same arithmetic, and only the weights read differ.
Which tokens go to which expert is laid out beforehand: the routers' and the sorting's own time is no part of the slope.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from dataclasses import asdict, dataclass

import torch
import triton
import triton.language as tl

HIDDEN, EXPERT_SIZE, EXPERTS, TOP_K = 2048, 768, 128, 8
LAYERS = 4  # 4.8 GB of weights in turn; the largest caches hold 0.3 GB
BATCHES = (8, 16, 32, 64, 128)
DISTINCT = (8, 16, 24, 32, 48, 64, 80, 96, 112, 128)
REPEATS = 8  # times all layers, in one graph
REPLAYS = 15  # of the graph; the median counts
ROWS = 16  # of a tile: tokens of one expert, and the least that tensor cores take
COLUMNS, DEPTH = 64, 128  # of a tile of weights
TOLERANCE = 0.02  # of the reference's largest value: bfloat16 holds 8 bits, and sums of 2,048 products are rounded once


@triton.jit
def _gate_up(x, w, y, token, expert, start, stop, K: tl.constexpr, N: tl.constexpr,
             ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr):  # fmt: skip
    """y[pair] = silu(x[token] @ gate[expert]ᵀ) · (x[token] @ up[expert]ᵀ) for one tile; w[expert] = gate over up."""
    tile, column = tl.program_id(0), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    pair = tl.load(start + tile) + tl.arange(0, ROWS)
    there = pair < tl.load(stop + tile)
    row = tl.load(token + pair, mask=there, other=0)
    weights = w + tl.load(expert + tile).to(tl.int64) * (2 * N * K)
    gate = tl.zeros((ROWS, COLUMNS), tl.float32)
    up = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, K, DEPTH):
        k = first + tl.arange(0, DEPTH)
        left = tl.load(x + row[:, None] * K + k[None, :], mask=there[:, None], other=0.0)
        gate += tl.dot(left, tl.load(weights + column[None, :] * K + k[:, None]))
        up += tl.dot(left, tl.load(weights + (N + column[None, :]) * K + k[:, None]))
    values = gate * tl.sigmoid(gate) * up
    tl.store(y + pair[:, None] * N + column[None, :], values.to(y.dtype.element_ty), mask=there[:, None])


@triton.jit
def _down(x, w, y, expert, start, stop, K: tl.constexpr, N: tl.constexpr,
          ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr):  # fmt: skip
    """y[pair] = x[pair] @ w[expert]ᵀ for one tile."""
    tile, column = tl.program_id(0), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    pair = tl.load(start + tile) + tl.arange(0, ROWS)
    there = pair < tl.load(stop + tile)
    weights = w + tl.load(expert + tile).to(tl.int64) * (N * K)
    values = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, K, DEPTH):
        k = first + tl.arange(0, DEPTH)
        left = tl.load(x + pair[:, None] * K + k[None, :], mask=there[:, None], other=0.0)
        values += tl.dot(left, tl.load(weights + column[None, :] * K + k[:, None]))
    tl.store(y + pair[:, None] * N + column[None, :], values.to(y.dtype.element_ty), mask=there[:, None])


@dataclass(frozen=True)
class Shape:
    """Of one MoE layer."""

    hidden: int = HIDDEN
    expert_size: int = EXPERT_SIZE
    experts: int = EXPERTS
    top_k: int = TOP_K
    dtype: torch.dtype = torch.bfloat16

    @property
    def bytes_per_expert(self) -> int:
        return 3 * self.hidden * self.expert_size * self.dtype.itemsize


class Layer:
    """Random weights of one MoE layer."""

    def __init__(self, shape: Shape, device: str, generator: torch.Generator) -> None:
        def weights(rows: int, columns: int) -> torch.Tensor:
            values = torch.randn(shape.experts, rows, columns, device=device, dtype=shape.dtype, generator=generator)
            return values / math.sqrt(columns)

        self.shape = shape
        self.gate_up = weights(2 * shape.expert_size, shape.hidden)
        self.down = weights(shape.hidden, shape.expert_size)


class Routing:
    """Which tokens go to which experts, sorted by expert and cut into tiles of one expert."""

    def __init__(self, shape: Shape, batch: int, distinct: int, device: str, generator: torch.Generator) -> None:
        chosen = torch.randperm(shape.experts, generator=generator)[:distinct]
        # Dealt out in turn: every token gets top_k different ones, and each is used equally often, give or take one.
        self.choice = chosen[torch.arange(batch * shape.top_k) % distinct].view(batch, shape.top_k)
        expert = self.choice.flatten()
        pairs = torch.argsort(expert, stable=True)
        tiles = [
            (int(one), first, min(first + ROWS, end))
            for one, begin, end in _runs(expert[pairs].tolist())
            for first in range(begin, end, ROWS)
        ]
        expert_of, start, stop = (torch.tensor(column, dtype=torch.int32) for column in zip(*tiles, strict=True))
        self.tiles, self.batch = len(tiles), batch
        self.token, self.expert, self.start, self.stop = (
            part.to(device) for part in ((pairs // shape.top_k).int(), expert_of, start, stop)
        )
        self.back = torch.argsort(pairs).to(device)  # from pairs sorted by expert to pairs in the order of tokens


def _runs(values: list[int]) -> list[tuple[int, int, int]]:
    """(value, first, one after the last) of each run of equal values."""
    edges = [0, *(k for k in range(1, len(values)) if values[k] != values[k - 1]), len(values)]
    return [(values[first], first, end) for first, end in itertools.pairwise(edges)]


def apply(layer: Layer, routing: Routing, x: torch.Tensor) -> torch.Tensor:
    """The layer's output for x, bfloat16[batch, hidden]; every expert counts alike."""
    shape, pairs = layer.shape, len(routing.token)
    middle = torch.empty(pairs, shape.expert_size, device=x.device, dtype=x.dtype)
    out = torch.empty(pairs, shape.hidden, device=x.device, dtype=x.dtype)
    tiles = (routing.expert, routing.start, routing.stop)
    sizes = {"ROWS": ROWS, "COLUMNS": COLUMNS, "DEPTH": DEPTH}
    grid = (routing.tiles, shape.expert_size // COLUMNS)
    _gate_up[grid](x, layer.gate_up, middle, routing.token, *tiles, K=shape.hidden, N=shape.expert_size, **sizes)
    grid = (routing.tiles, shape.hidden // COLUMNS)
    _down[grid](middle, layer.down, out, *tiles, K=shape.expert_size, N=shape.hidden, **sizes)
    return out[routing.back].view(routing.batch, shape.top_k, shape.hidden).sum(1)


def reference(layer: Layer, routing: Routing, x: torch.Tensor) -> torch.Tensor:
    """The same in float32, one token and expert at a time."""
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for token, experts in enumerate(routing.choice.tolist()):
        for expert in experts:
            gate, up = (layer.gate_up[expert].float() @ x[token].float()).chunk(2)
            out[token] += layer.down[expert].float() @ (torch.nn.functional.silu(gate) * up)
    return out


def check(shape: Shape, device: str, generator: torch.Generator) -> float:
    """The largest error as a share of the reference's largest value. Raises SystemExit above TOLERANCE."""
    layer, worst = Layer(shape, device, _on(device)), 0.0
    for batch, distinct in ((4, shape.top_k), (8, 2 * shape.top_k), (40, shape.top_k)):
        routing = Routing(shape, batch, distinct, device, generator)
        x = torch.randn(batch, shape.hidden, device=device, dtype=shape.dtype, generator=_on(device))
        wanted = reference(layer, routing, x)
        error = (apply(layer, routing, x).float() - wanted).abs().max() / wanted.abs().max()
        worst = max(worst, float(error))
    if not worst <= TOLERANCE:
        raise SystemExit(f"the kernels differ from a float32 reference by {worst:.3f} of its largest value: no timing")
    return worst


def microseconds(layers: list[Layer], routings: list[Routing], x: torch.Tensor) -> float:
    """Of one layer: the median over replays of one graph that runs all layers REPEATS times."""
    for layer, routing in zip(layers, routings, strict=True):
        apply(layer, routing, x)  # compiles, and fills the allocator's pools
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(REPEATS):
            for layer, routing in zip(layers, routings, strict=True):
                apply(layer, routing, x)
    graph.replay()
    times = []
    for _ in range(REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / (REPEATS * len(layers)))
    return sorted(times)[len(times) // 2]


def bandwidth_gb_s() -> float:
    """Bytes that a copy of 2 GiB reads and writes per second; the best of several, in 10⁹ bytes."""
    source = torch.empty(1 << 31, dtype=torch.uint8, device="cuda")
    sink, best = torch.empty_like(source), float("inf")
    for _ in range(10):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        sink.copy_(source)
        end.record()
        end.synchronize()
        best = min(best, begin.elapsed_time(end))
    return 2 * source.numel() / (best / 1000) / 1e9


@dataclass(frozen=True)
class Line:
    """Time against distinct experts at one batch: least squares."""

    batch: int
    base_us: float
    us_per_expert: float
    r2: float
    points: list[tuple[int, float]]


def fitted(batch: int, points: list[tuple[int, float]]) -> Line:
    x, y = (torch.tensor(column, dtype=torch.float64) for column in zip(*points, strict=True))
    slope = ((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum()
    base = y.mean() - slope * x.mean()
    residual = ((y - base - slope * x) ** 2).sum() / ((y - y.mean()) ** 2).sum()
    return Line(batch, float(base), float(slope), float(1 - residual), points)


def measure(shape: Shape, generator: torch.Generator) -> list[Line]:
    layers, lines = [Layer(shape, "cuda", _on("cuda")) for _ in range(LAYERS)], []
    for batch in BATCHES:
        x = torch.randn(batch, shape.hidden, device="cuda", dtype=shape.dtype, generator=_on("cuda"))
        points = []
        for distinct in (d for d in DISTINCT if d <= batch * shape.top_k):
            routings = [Routing(shape, batch, distinct, "cuda", generator) for _ in layers]
            points.append((distinct, microseconds(layers, routings, x)))
            print(f"batch {batch:4d}  experts {distinct:4d}  {points[-1][1]:8.1f} µs a layer", file=sys.stderr)
        lines.append(fitted(batch, points))
    return lines


def _on(device: str) -> torch.Generator:
    return torch.Generator(device).manual_seed(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare small kernels with the reference, time nothing")
    parser.add_argument("--json", action="store_true", help="one object on standard output")
    options = parser.parse_args()
    generator = _on("cpu")
    if options.check:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        dtype = torch.bfloat16 if device == "cuda" else torch.float16  # Triton's interpreter multiplies no bfloat16
        error = check(Shape(hidden=256, expert_size=128, experts=16, top_k=4, dtype=dtype), device, generator)
        print(f"largest error {error:.4f} of the reference's largest value, on {device}")
        return
    if not torch.cuda.is_available():
        raise SystemExit(
            "no GPU that torch can use is here. To compare the kernels on CPUs: TRITON_INTERPRET=1, --check"
        )
    shape = Shape()
    error, rate = check(shape, "cuda", generator), bandwidth_gb_s()
    lines = measure(shape, generator)
    _tell(shape, error, rate, lines, options.json)


def _tell(shape: Shape, error: float, rate: float, lines: list[Line], as_json: bool) -> None:
    shares = [shape.bytes_per_expert / (line.us_per_expert * 1e-6) / 1e9 / rate for line in lines]
    if as_json:
        machine = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__,
                "bytes_per_expert": shape.bytes_per_expert, "largest_error": error, "bandwidth_gb_s": rate}  # fmt: skip
        rows = [{**asdict(line), "share_of_bandwidth": share} for line, share in zip(lines, shares, strict=True)]
        print(json.dumps({**machine, "batches": rows}))
        return
    print(f"{torch.cuda.get_device_name()}: {rate:.0f} GB/s copying; largest error {error:.4f}")
    print("batch   base µs   µs per expert      R²   share of bandwidth")
    for line, share in zip(lines, shares, strict=True):
        print(f"{line.batch:5d} {line.base_us:9.1f} {line.us_per_expert:15.2f} {line.r2:7.4f} {share:20.0%}")


if __name__ == "__main__":
    main()
