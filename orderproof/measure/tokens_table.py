"""What an arm generated in a block, as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from orderproof.engines.protocol import Completion, Output
from orderproof.measure.trial_records import TOKENS_SCHEMA
from orderproof.outputs.scorers import score
from orderproof.prompts.tokenization import TokenizedPrompts

Scorer = Literal["exact", "contains", "numeric", "regex"]
FAILED = Completion((), "", "failed")


def tokens_table(
    prompts: TokenizedPrompts, order: NDArray[np.int64], outputs: Mapping[int, Output], scorer: Scorer | None
) -> pa.Table:
    """TOKENS_SCHEMA rows in the order of sending.

    Args:
        order: indices of the prompts.
        outputs: by index; a request without one failed.
    """
    sent = order.tolist()
    admitted = _admission([outputs.get(k) for k in sent])
    rows: list[dict[str, Any]] = []
    for position, prompt in enumerate(sent):
        output, reference = outputs.get(prompt), prompts.references[prompt]
        for sample, completion in enumerate(output.completions if output else (FAILED,)):
            rows.append(
                {
                    "prompt_id": prompts.ids[prompt],
                    "sample": sample,
                    "position": position,
                    "admitted": admitted[position],
                    "prompt_tokens": int(prompts.lengths[prompt]),
                    "token_ids": list(completion.token_ids),
                    "finish_reason": completion.finish_reason,
                    "text": completion.text,
                    "score": _score(scorer, completion.text if output else None, reference),
                }
            )
    return pa.Table.from_pylist(rows, TOKENS_SCHEMA)


def _score(scorer: Scorer | None, text: str | None, reference: str | None) -> float | None:
    return None if scorer is None or text is None or reference is None else score(scorer, text, reference)


def _admission(outputs: Sequence[Output | None]) -> list[int]:
    """Each request's place in the scheduler's order of admission; -1 for one that never ran."""
    clock = np.array([output.scheduled_s if output else np.inf for output in outputs])
    rank = np.argsort(np.argsort(clock, kind="stable"), kind="stable")
    return [int(place) if output else -1 for place, output in zip(rank, outputs, strict=True)]
