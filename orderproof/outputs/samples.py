"""Several samples of a prompt: a table with a row per sample becomes one with a row per prompt, in memory only."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from orderproof.outputs.errors import OutputsError

SAMPLE_END = -1  # never a token id, so two prompts' joined tokens are equal exactly if each of their samples is


def join_samples(pass_id: str, table: pa.Table) -> pa.Table:
    """Join the samples of each prompt; a table without the column `sample` has one sample per prompt and is returned.

    Args:
        table: rows in any order, with `prompt_id`, `sample` (from 0), `token_ids`, and possibly `text` and `score`.

    Returns:
        One row per prompt: `token_ids` with SAMPLE_END between samples, `text` with a blank line between them, and the
        mean of `score`.

    Raises:
        OutputsError: a sample is missing or given twice, or has no tokens.
    """
    if "sample" not in table.column_names:
        return table
    encoded = table["prompt_id"].combine_chunks().dictionary_encode()
    prompts, samples = encoded.indices.to_numpy(), table["sample"].to_numpy()
    order = np.lexsort((samples, prompts))
    prompts, samples = prompts[order], samples[order]
    starts = np.flatnonzero(np.diff(prompts, prepend=-1))
    counts = np.diff(starts, append=len(prompts))
    expected = np.arange(len(prompts)) - np.repeat(starts, counts)
    wrong = np.flatnonzero(samples != expected)
    if wrong.size:
        row = wrong[0]
        raise OutputsError(
            f"pass {pass_id}: prompt {encoded.dictionary[int(prompts[row])].as_py()!r} has sample {samples[row]} where "
            f"sample {expected[row]} is expected: measure the job again"
        )
    lists = table["token_ids"].combine_chunks().take(pa.array(order))
    if lists.null_count:
        raise OutputsError(f"pass {pass_id}: {lists.null_count} samples have no token_ids, so it cannot be compared")
    lengths = pc.list_value_length(lists).to_numpy().astype(np.int64)
    inner = np.delete(np.cumsum(lengths), starts + counts - 1)  # ends of samples that another one follows
    tokens = np.insert(lists.flatten().to_numpy(), inner, SAMPLE_END)
    sums = np.add.reduceat(lengths, starts) if len(starts) else lengths
    offsets = np.concatenate([[0], np.cumsum(sums + counts - 1)])
    columns = {
        "prompt_id": encoded.dictionary.take(pa.array(prompts[starts])),
        "token_ids": pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(tokens, pa.int32())),
    }
    if "text" in table.column_names:
        texts = table["text"].take(pa.array(order)).to_pylist()
        columns["text"] = pa.array(["\n\n".join(texts[a : a + n]) for a, n in zip(starts, counts, strict=True)])
    if "score" in table.column_names:
        scores = table["score"].cast(pa.float64()).to_numpy()[order]  # null becomes NaN
        means = np.add.reduceat(scores, starts) / counts if len(starts) else scores
        columns["score"] = pa.array(means, pa.float64(), from_pandas=True)  # and NaN null
    return pa.table(columns)
