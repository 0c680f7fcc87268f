"""How a reproduction is recorded: the newest comparison beside the outputs, and the run with its figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orderproof.job.spec import Job
from orderproof.reproduce.comparison import OutputComparison
from orderproof.reproduce.record import (
    EXIT_CODES,
    NEWEST_FILE,
    Reproduction,
    ReproductionError,
    answer_of,
    read_newest,
    write_newest,
)
from orderproof.reproduce.scores import ScoreComparison
from tests.support.trial_maker import make_job


def make_outputs(**changes: Any) -> OutputComparison:
    fields: dict[str, Any] = dict.fromkeys(OutputComparison.model_fields, 0)
    fields |= {"first_divergence": {}, "same_until": (), "finish_changes": {}}
    fields |= {"most_different": (), "outputs": 3, "compared": 3, "identical": 3}
    return OutputComparison.model_validate({**fields, **changes})


def make_reproduction(**changes: Any) -> Reproduction:
    fields = {
        "answer": "reproduced",
        "changes": (),
        "changes_known": True,
        "rebased": (),
        "outputs": make_outputs(),
        "scores": None,
        "baseline": "data/it/outputs.parquet",
        "baseline_md5": "a",
        "provenance": None,
        "reproduced": "data/it/reproduced.parquet",
        "reproduced_md5": "a",
        "batch_invariant": False,
    }
    return Reproduction.model_validate({**fields, **changes})


def scores(answer: str) -> ScoreComparison:
    fields = {"scorer": "exact", "outputs": 3, "then": 1, "now": 0, "difference": -1, "se": 0.1, "half_width": 0.2}
    return ScoreComparison.model_validate({**fields, "changed": 3, "answer": answer})


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return make_job(tmp_path)


def test_the_newest_comparison_comes_back_from_its_file_as_it_was(job: Job) -> None:
    job.data_dir.mkdir(parents=True)
    assert read_newest(job) is None
    compared = make_reproduction(changes=("sampling.max_tokens: 8 → 6",))
    write_newest(job, compared)
    assert read_newest(job) == compared


def test_a_comparison_that_cannot_be_written_or_read_is_named(job: Job) -> None:
    job.data_dir.mkdir(parents=True)
    (job.data_dir / NEWEST_FILE).mkdir()
    with pytest.raises(ReproductionError, match=f"{NEWEST_FILE} cannot be written"):
        write_newest(job, make_reproduction())
    (job.data_dir / NEWEST_FILE).rmdir()
    (job.data_dir / NEWEST_FILE).write_text("{}")
    with pytest.raises(ReproductionError, match=f"{NEWEST_FILE} cannot be read"):
        read_newest(job)


def test_bit_exact_is_claimed_only_of_outputs_that_were_all_seen_again() -> None:
    assert "3 of 3 outputs" in (make_reproduction().bit_exact() or "")
    assert make_reproduction(outputs=make_outputs(identical=2, diverged=1)).bit_exact() is None


def test_scores_decide_before_outputs_do() -> None:
    same, other = make_outputs(), make_outputs(identical=2, diverged=1)
    assert [answer_of(same, None), answer_of(other, None)] == ["reproduced", "outputs differ"]
    assert [answer_of(other, scores("as before")), answer_of(other, scores("moved"))] == [
        "outputs differ",
        "scores moved",
    ]
    assert EXIT_CODES == {"reproduced": 0, "outputs differ": 20, "scores moved": 21}
