"""Stands where vLLM stands, as far as worker.py uses it: put this folder's parent on the child's PYTHONPATH.

The worker, its pipes, its process group and its steps are the real ones; only the model is not. What a request
generates is a function of its prompt's tokens alone, so a test can tell a lost, doubled or swapped output. A step
takes STANDIN_STEP_MS milliseconds, SLOWER times as long on STANDIN_SLOW_DEVICE, and STANDIN_KIND_MS more for each kind
of prompt in the batch (its last token), so that order pays. STANDIN_LOG names a file that is told each finished
request, STANDIN_STEPS one that is told process and time of each step, STANDIN_ARGS one that is told the EngineArgs.
A prompt that ends with the token STANDIN_POISON kills the process that runs it.
With STANDIN_DRIFT=k about every k-th output is another one from its fourth token on; STANDIN_VERSION is the version.
Its one layer has a router: while another routing is in place of its own, every output is another one from there on.
"""

from __future__ import annotations

import os

from .sampling_params import RequestOutputKind, SamplingParams

__all__ = ["RequestOutputKind", "SamplingParams"]
__version__ = os.environ.get("STANDIN_VERSION", "stand-in")
