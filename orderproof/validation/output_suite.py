"""The checks that a job's outputs must pass, and the derived columns that they look at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from orderproof.job.sampling import FINISHED, is_cut_short
from orderproof.prompts.prompt import shown
from orderproof.validation.checks import SHOWN_ROWS, Check, is_true

if TYPE_CHECKING:
    import pandas as pd


def build_frame(ids: Sequence[str], outputs: pa.Table | pd.DataFrame) -> pd.DataFrame:
    """One row per output, numbered from 1, without any text. Without `sample` and `n` each prompt has one output.

    Args:
        ids: of all prompts, distinct, in the file's order.
    """
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
    has_error = table["error"].notna().to_numpy() if "error" in table else np.zeros(len(frame), bool)
    frame["is_finished"] = frame["finish_reason"].isin(FINISHED) | has_error
    frame["n_tokens"] = pd.array(table["n_tokens"].tolist(), dtype="Int64")
    frame["asked_tokens"] = pd.array(table["asked_tokens"].tolist(), dtype="Int64")
    counts = (frame[name].astype(object).where(frame[name].notna(), None) for name in ("n_tokens", "asked_tokens"))
    cut_short = [is_cut_short(*row) for row in zip(frame["finish_reason"], *counts, strict=True)]
    frame["is_whole"] = ~np.array(cut_short, bool) | has_error
    return frame.set_axis(pd.RangeIndex(1, len(frame) + 1), axis="index")


def build_checks(ids: Sequence[str], frame: pd.DataFrame) -> list[Check]:
    """The suite for a job's outputs; `frame` is that of `build_frame`."""
    again = "Run the job again: finished outputs are kept, and only missing ones are generated"
    asked = _asked(ids, frame)
    samples = f" that ask for {asked}" if asked != len(ids) else ""
    return [
        Check(
            "ExpectTableRowCountToEqual",
            {"value": asked},
            "There is one output for each sample that was asked",
            problem=f"{len(frame)} output{'s' if len(frame) != 1 else ''} for {len(ids)} prompts{samples}"
            f"{_missing(ids, frame)}",
            remedy=again,
        ),
        is_true(
            "has_prompt",
            "Every output belongs to a prompt",
            problem="output without a prompt",
            remedy="The prompts changed since the job started: start again with --restart",
        ),
        is_true(
            "is_asked",
            "Every output is a sample that was asked",
            problem="sample that was not asked",
            remedy=again,
            detail=lambda r: f"sample {r['sample']} of {r['n']}",
        ),
        is_true("is_single", "No sample has two outputs", problem="more than one output", remedy=again),
        Check(
            "ExpectColumnValuesToBeIncreasing",
            {"column": "place"},
            "Outputs are in the file's order, samples of a prompt in theirs",
            problem="not in the file's order",
            remedy="Restore the order: orderproof restore OUT --like IN",
        ),
        is_true(
            "is_finished",
            "Every request finished, or its error is recorded",
            problem="not finished",
            remedy=again,
            detail=lambda r: f"finish reason {r['finish_reason']!r}",
        ),
        is_true(
            "is_whole",
            "No output was cut short by the model's length, or its error is recorded",
            problem="cut short",
            remedy="Raise engine.args.max_model_len, or ask for fewer tokens",
            detail=lambda r: f"{r['n_tokens']} of {r['asked_tokens']} tokens",
        ),
    ]


def _asked(ids: Sequence[str], frame: pd.DataFrame) -> int:
    """Samples of all prompts; one for a prompt without outputs, whose number is not known."""
    known = frame.drop_duplicates("id").set_index("id")["n"]
    return int(known.reindex(list(ids)).fillna(1).sum())


def _missing(ids: Sequence[str], frame: pd.DataFrame) -> str:
    there = set(frame["id"])
    missing = [id for id in ids if id not in there]
    more = " …" if len(missing) > SHOWN_ROWS else ""
    return f", none for {', '.join(map(shown, missing[:SHOWN_ROWS]))}{more}" if missing else ""
