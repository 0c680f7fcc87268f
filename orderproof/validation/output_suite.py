"""What outputs must be: the suite that they are held against, and the derived columns that it looks at.

In: the ids of all prompts, and a table of outputs. Out: a frame without any text, and checks for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from orderproof.job.sampling import FINISHED, is_cut_short
from orderproof.prompts.prompt import shown
from orderproof.validation.checks import SHOWN_ROWS, Check, holds

if TYPE_CHECKING:
    import pandas as pd


def frame_of(ids: Sequence[str], outputs: pa.Table | pd.DataFrame) -> pd.DataFrame:
    """One row per output, numbered from 1. `ids` are distinct. Without `sample` and `n`, each prompt asks for one."""
    import pandas as pd

    table = outputs.to_pandas() if isinstance(outputs, pa.Table) else outputs
    place = pd.Series(np.arange(len(ids)), index=pd.Index(list(ids), dtype="str"))
    frame = pd.DataFrame({"id": table["id"].to_numpy()}).astype("str")
    for column, usual in (("sample", 0), ("n", 1)):
        frame[column] = table[column].to_numpy() if column in table else usual
    prompt = frame["id"].map(place).astype("Int64")
    frame["has_prompt"] = prompt.notna()
    frame["is_asked"] = frame["sample"].between(0, frame["n"] - 1)
    frame["is_single"] = ~frame.duplicated(["id", "sample"], keep=False)
    frame["place"] = prompt * max(1, int(frame["n"].max() if len(frame) else 1)) + frame["sample"]
    frame["finish_reason"] = table["finish_reason"].to_numpy()
    told = table["error"].notna().to_numpy() if "error" in table else np.zeros(len(frame), bool)
    frame["is_finished"] = frame["finish_reason"].isin(FINISHED) | told
    frame["n_tokens"] = pd.array(table["n_tokens"].tolist(), dtype="Int64")
    frame["asked_tokens"] = pd.array(table["asked_tokens"].tolist(), dtype="Int64")
    counts = (frame[name].astype(object).where(frame[name].notna(), None) for name in ("n_tokens", "asked_tokens"))
    cut_short = [is_cut_short(*row) for row in zip(frame["finish_reason"], *counts, strict=True)]
    frame["is_whole"] = ~np.array(cut_short, bool) | told
    return frame.set_axis(pd.RangeIndex(1, len(frame) + 1), axis="index")


def checks_of(ids: Sequence[str], frame: pd.DataFrame) -> list[Check]:
    """The suite for a job's outputs; `frame` is that of `frame_of`."""
    again = "Run the batch again: what is finished is kept, and only what is missing is sent"
    asked = _asked(ids, frame)
    samples = f" that ask for {asked}" if asked != len(ids) else ""
    return [
        Check(
            "ExpectTableRowCountToEqual",
            {"value": asked},
            "There are as many outputs as samples were asked of the prompts",
            wrong=f"{len(frame)} output{'s' if len(frame) != 1 else ''} for {len(ids)} prompts{samples}"
            f"{_missing(ids, frame)}",
            remedy=again,
        ),
        holds(
            "has_prompt",
            "Every output belongs to a prompt",
            wrong="an output of no prompt",
            remedy="The prompts changed since the batch began: run it from the start",
        ),
        holds(
            "is_asked",
            "Every output is of a sample that was asked",
            wrong="a sample that was not asked",
            remedy=again,
            detail=lambda r: f"sample {r['sample']} of {r['n']}",
        ),
        holds("is_single", "No sample has two outputs", wrong="more than one output", remedy=again),
        Check(
            "ExpectColumnValuesToBeIncreasing",
            {"column": "place"},
            "Outputs stand in the file's order, and a prompt's samples in theirs",
            wrong="not in the file's order",
            remedy="Restore the order: orderproof restore OUT --like IN",
        ),
        holds(
            "is_finished",
            "Every request finished, or its failure is on record",
            wrong="not finished",
            remedy=again,
            detail=lambda r: f"finish reason {r['finish_reason']!r}",
        ),
        holds(
            "is_whole",
            "No output was cut short by the model's length, or that is on record",
            wrong="cut short",
            remedy="Raise engine.args.max_model_len, or ask for less",
            detail=lambda r: f"{r['n_tokens']} of {r['asked_tokens']} tokens",
        ),
    ]


def _asked(ids: Sequence[str], frame: pd.DataFrame) -> int:
    """Samples of all prompts; at least one of a prompt that has no output and tells nothing."""
    known = frame.drop_duplicates("id").set_index("id")["n"]
    return int(known.reindex(list(ids)).fillna(1).sum())


def _missing(ids: Sequence[str], frame: pd.DataFrame) -> str:
    there = set(frame["id"])
    missing = [id for id in ids if id not in there]
    more = " …" if len(missing) > SHOWN_ROWS else ""
    return f", none for {', '.join(map(shown, missing[:SHOWN_ROWS]))}{more}" if missing else ""
