"""The baseline of a job, data/<job>/outputs.parquet, and what changed since it was generated.

In: a job, its prompts on disk, what the generation at hand rests on. Out: a `Baseline` and named differences; or a
`BaselineError`. Changes nothing. Knows nothing of engines, trackers or DVC.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from orderproof.generate.delivery import OUTPUTS_FILE
from orderproof.generate.provenance import Provenance, read_provenance
from orderproof.job.errors import OrderproofError
from orderproof.job.hashing import md5_of
from orderproof.job.output_key import differences
from orderproof.job.spec import Job
from orderproof.outputs.scorers import ScorerError, score
from orderproof.prompts.prompt import row_word
from orderproof.prompts.prompt_file import read_prompts
from orderproof.prompts.source import PromptSource
from orderproof.reproduce.join_outputs import refuse_other_rows

FOLDER, LOCK_FILE = "reproduced.partial", ".reproduced.lock"  # beside the job's own checkpoint and lock
REPRODUCED_FILE = "reproduced.parquet"
ROWS_AT_ONCE = 65_536
SHOWN_IDS = 3


class BaselineError(OrderproofError):
    """There is no baseline, or not of these prompts: why, and what to do."""


@dataclass(frozen=True)
class Baseline:
    """Outputs that shall be reproduced."""

    path: Path
    md5: str
    provenance: Provenance | None  # None: the file does not say what it rests on

    def refuse_another(self) -> None:
        """Raise BaselineError if the file was replaced since it was found."""
        if not self.path.exists() or md5_of(self.path) != self.md5:
            raise BaselineError(
                f"{self.path} was replaced while it was reproduced. What was generated is kept: run the job again, "
                "which sends nothing twice and compares with the new one"
            )


def find_baseline(job: Job, source: PromptSource) -> Baseline:
    """The outputs that the job gave before.

    Raises:
        BaselineError: there are none, they cannot be read, or they are not of the prompts that the job has now.
        ScorerError: a prompt's reference cannot be used by the job's scorer, which must not show after hours.
    """
    path = job.data_dir / OUTPUTS_FILE
    if not path.is_file():
        raise BaselineError(
            f"{path} is not there, so there is nothing to reproduce: `orderproof generate {job.name}` makes a "
            "baseline, `dvc pull` brings one that was recorded"
        )
    try:
        refuse_other_rows(path)  # which must not show after hours
        _refuse_other_prompts(job, path, source)
        _refuse_unusable_references(job, source)
        return Baseline(path, md5_of(path), read_provenance(path))
    except (OSError, pa.ArrowException) as error:
        why = " ".join(str(error).split()).rstrip(".")
        raise BaselineError(
            f"{path} is not readable as outputs: {why}. `dvc checkout` brings a recorded one back, "
            f"`orderproof generate {job.name}` makes a new one"
        ) from None


def changes(baseline: Provenance | None, now: Provenance) -> tuple[str, ...]:
    """What differs from the baseline in what decides an output, each as "name: then → now".

    What is not known yet is no difference: the engine before it has started, an order that is made while it is sent.
    A baseline without provenance has no differences that could be named.
    """
    if baseline is None:
        return ()
    order = now.key.get("order", baseline.key.get("order"))
    known = Provenance(key={**now.key, "order": order}, engine=now.engine or baseline.engine)
    return tuple(differences(baseline.everything, known.everything))


def _refuse_other_prompts(job: Job, path: Path, source: PromptSource) -> None:
    found, gone = np.zeros(len(source), np.bool_), list[str]()
    lost = 0
    with pq.ParquetFile(path) as outputs:
        for batch in outputs.iter_batches(ROWS_AT_ONCE, columns=["id"]):
            ids = batch["id"].to_pylist()
            places = source.places(ids)
            found[places[places >= 0]] = True
            missing = [ids[row] for row in np.flatnonzero(places < 0)]
            lost += len(missing)
            gone += missing[: SHOWN_IDS - len(gone)]
    new = np.flatnonzero(~found)
    if not lost and not len(new):
        return
    differ = [
        *([f"{lost} of its outputs are of prompts that are not there any more ({_shown(gone, lost)})"] if lost else []),
        *([f"{len(new)} prompts are not in it ({_new_ids(source, new)})"] if len(new) else []),
    ]
    raise BaselineError(
        f"{path} is not a baseline of {job.prompts}: {' and '.join(differ)}. Put the prompts back (`dvc checkout`), or "
        f"make a new baseline with `orderproof generate {job.name}`"
    )


def _refuse_unusable_references(job: Job, source: PromptSource) -> None:
    scorer = job.measure.scorer
    for prompt in read_prompts(source.path) if scorer else ():
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
