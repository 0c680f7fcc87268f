"""The baseline of a job, data/<job>/outputs.parquet, and what changed since it was generated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from orderproof.generate.provenance import Provenance, read_provenance
from orderproof.job.errors import OrderproofError
from orderproof.job.hashing import md5_of
from orderproof.job.output_key import differences
from orderproof.job.paths import OUTPUTS_FILE
from orderproof.job.spec import Job
from orderproof.outputs.scorers import ScorerError, score
from orderproof.prompts.file_kinds import row_word
from orderproof.prompts.source import PromptSource
from orderproof.reproduce.join_outputs import refuse_unusable_columns

FOLDER, LOCK_FILE = "reproduced.partial", ".reproduced.lock"  # next to those of `generate`
REPRODUCED_FILE = "reproduced.parquet"
ROWS_AT_ONCE = 65_536
SHOWN_IDS = 3


class BaselineError(OrderproofError):
    """There is no baseline, or it is for other prompts. The message says why, and what to do."""


@dataclass(frozen=True)
class Baseline:
    """Outputs that are generated again to compare them."""

    path: Path
    md5: str
    provenance: Provenance | None  # None: the file does not record it

    def refuse_replaced(self) -> None:
        """Raise BaselineError if the file was replaced since it was found."""
        if not self.path.exists() or md5_of(self.path) != self.md5:
            raise BaselineError(
                f"{self.path} was replaced during the run. The new outputs are kept: run the command again to compare "
                "them with the new baseline; no prompt is sent twice"
            )


def find_baseline(job: Job, source: PromptSource) -> Baseline:
    """The outputs that the job generated before.

    Raises:
        BaselineError: there are none, they cannot be read, or they are not for the job's current prompts.
        ScorerError: the job's scorer cannot use a prompt's reference.
    """
    path = job.data_dir / OUTPUTS_FILE
    if not path.is_file():
        raise BaselineError(
            f"{path} does not exist, so there is nothing to compare with. Create it with `orderproof generate "
            f"{job.name}`, or get a recorded one with `dvc pull`"
        )
    try:
        refuse_unusable_columns(path)  # now, not after hours of generation
        _refuse_other_prompts(job, path, source)
        _refuse_unusable_references(job, source)
        return Baseline(path, md5_of(path), read_provenance(path))
    except (OSError, pa.ArrowException) as error:
        why = " ".join(str(error).split()).rstrip(".")
        raise BaselineError(
            f"{path} cannot be read as outputs: {why}. Restore it with `dvc checkout`, or create a new one with "
            f"`orderproof generate {job.name}`"
        ) from None


def changes(baseline: Provenance | None, now: Provenance) -> tuple[str, ...]:
    """What differs from the baseline among everything that determines an output, each as "name: then → now".

    What is not known yet is not a difference: the engine before it starts, an order that is computed during the run.
    Empty for a baseline without provenance.
    """
    if baseline is None:
        return ()
    order = now.key.get("order", baseline.key.get("order"))
    known = Provenance(key={**now.key, "order": order}, engine=now.engine or baseline.engine)
    return tuple(differences(baseline.everything, known.everything))


def _refuse_other_prompts(job: Job, path: Path, source: PromptSource) -> None:
    found, extra = np.zeros(len(source), np.bool_), list[str]()
    extra_count = 0
    with pq.ParquetFile(path) as outputs:
        for batch in outputs.iter_batches(ROWS_AT_ONCE, columns=["id"]):
            ids = batch["id"].to_pylist()
            places = source.places(ids)
            found[places[places >= 0]] = True
            unknown = [ids[row] for row in np.flatnonzero(places < 0)]
            extra_count += len(unknown)
            extra += unknown[: SHOWN_IDS - len(extra)]
    new = np.flatnonzero(~found)
    if not extra_count and not len(new):
        return
    differ = [
        *([f"{extra_count} outputs are for prompts that were removed ({_shown(extra, extra_count)})"] if extra else []),
        *([f"{len(new)} prompts have no output in it ({_new_ids(source, new)})"] if len(new) else []),
    ]
    raise BaselineError(
        f"{path} is not a baseline of {job.prompts_name}: {' and '.join(differ)}. Restore the prompts "
        f"(`dvc checkout`), or create a new baseline with `orderproof generate {job.name}`"
    )


def _refuse_unusable_references(job: Job, source: PromptSource) -> None:
    scorer = job.measure.scorer
    for prompt in source.prompts() if scorer else ():
        if scorer and prompt.reference is not None:
            try:
                score(scorer, "", prompt.reference)
            except ScorerError as error:
                where = f"{source.path}, {row_word(source.path)} {prompt.line} (id {prompt.id!r})"
                raise ScorerError(f"{where}: {error}") from None


def _new_ids(source: PromptSource, new: NDArray[np.int64]) -> str:
    return _shown([prompt.id for prompt in source.read(new[:SHOWN_IDS].tolist())], len(new))


def _shown(ids: list[str], total: int) -> str:
    return ", ".join(map(repr, ids)) + (" …" if total > len(ids) else "")
