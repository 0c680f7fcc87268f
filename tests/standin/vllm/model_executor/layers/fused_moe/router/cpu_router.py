"""The class of router that a lossy routing looks for."""

from .base_router import BaseRouter


class CPURouter(BaseRouter):
    scoring_func, use_grouped_topk, custom_routing_function = "softmax", False, None
