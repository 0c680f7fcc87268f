"""Published constants, for models that were not measured here.

Source: "Sort your prompts" (Badaoui et al., 19 October 2026): vLLM 0.27.1 on an MI300X, 768 prompts of six domains, 256
tokens each, greedy, fixed lengths, against shuffled.
"""

from __future__ import annotations

from collections.abc import Mapping

from synthetic import RoutingShape, statistics_of

from orderproof.routing.step_costs import StepCosts

DOMAINS = 6
SEED = 0  # of every drawn routing

# Qwen3-30B-A3B. A domain sends 68-80 % of its routing to its favourite 32 experts; a mixed batch of 32 touches about 94
# of 128; one of a single domain 19-25 % fewer. Two spreads meet the middle of all three (73 %, 94, 22 %); the other two
# shapes stand at the ends of the last range.
QWEN3_ROUTING = RoutingShape(layers=48, experts=128, top_k=8, domains=DOMAINS, common=0.63, own=1.28)
QWEN3_NEAR = RoutingShape(layers=48, experts=128, top_k=8, domains=DOMAINS, common=0.69, own=1.15)  # 19 % fewer
QWEN3_FAR = RoutingShape(layers=48, experts=128, top_k=8, domains=DOMAINS, common=0.57, own=1.41)  # 25 % fewer
QWEN3_EXPERT_MS = 0.0029  # of 9.4 MB
QWEN3_SHUFFLED_TOK_S = {16: 1154.0, 32: 1949.0}

# gpt-oss-120b. Of its routing only one figure is published: 8-11 % fewer experts in a batch of one domain. It leaves
# open how uneven the experts are for all domains alike; two shapes that meet 9.5 % at batch 32 stand for that.
GPT_OSS_EVEN = RoutingShape(layers=36, experts=32, top_k=4, domains=DOMAINS, common=0.6, own=0.875)
GPT_OSS_UNEVEN = RoutingShape(layers=36, experts=32, top_k=4, domains=DOMAINS, common=1.5, own=0.89)


def costs_from_throughput(
    routing: RoutingShape, expert_ms: float, tokens_per_s: Mapping[int, float], source: str
) -> StepCosts:
    """Base at each batch size: what a step takes beyond its experts.

    A step makes one token per sequence, so it takes batch / throughput.

    Args:
        tokens_per_s: batch size → throughput of shuffled prompts.
    """
    base = {
        batch: 1000 * batch / rate - expert_ms * routing.layers * statistics_of(routing, SEED, batch).mixed
        for batch, rate in sorted(tokens_per_s.items())
    }
    return StepCosts(tuple(base), tuple(base.values()), expert_ms, source)


# costs_from_throughput(QWEN3_ROUTING, QWEN3_EXPERT_MS, QWEN3_SHUFFLED_TOK_S), which takes seconds.
QWEN3_COSTS = StepCosts((16, 32), (4.129, 3.321), QWEN3_EXPERT_MS, "published for Qwen3-30B-A3B on an MI300X")
