"""The engine arguments that the stand-in takes, by vLLM's names and with defaults of its own."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace


@dataclasses.dataclass
class EngineArgs:
    model: str = ""
    max_num_seqs: int = 8
    max_model_len: int = 64
    dtype: str = "none"
    trust_remote_code: bool = False
    disable_log_stats: bool = False
    enable_prefix_caching: bool = False
    enforce_eager: bool = False
    hf_token: str | None = None
    async_scheduling: bool = True
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    enable_expert_parallel: bool = False

    def create_engine_config(self) -> SimpleNamespace:
        return SimpleNamespace(model_config=None, speculative_config=None, structured_outputs_config=None)
