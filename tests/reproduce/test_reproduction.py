"""A job generated again beside its baseline. The engine is the stand-in behind the real worker."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orderproof.engines.protocol import EngineError
from orderproof.generate.checkpoint_folder import KEY_FILE, CheckpointError
from orderproof.generate.lock import only_run
from orderproof.generate.provenance import read_provenance
from orderproof.job.hashing import md5_of
from orderproof.job.paths import OUTPUTS_FILE
from orderproof.job.spec import Job
from orderproof.outputs.scorers import ScorerError
from orderproof.reproduce.baseline_file import FOLDER, LOCK_FILE, BaselineError, changes
from orderproof.reproduce.picture import draw_divergence
from orderproof.reproduce.record import Reproduction, read_newest
from orderproof.runs.promotion import demote
from orderproof.runs.run import Run
from tests.support.batches import (
    count,
    edit_job,
    generate,
    make_project,
    promote_label_order,
    reproduce,
    reproduce_and,
    write_prompts,
)
from tests.support.interrupted import kill

PROMPTS = 120
DRIFT = 4


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    made = make_project(tmp_path / "p", PROMPTS, step_ms=2)
    promote_label_order(made)
    generate(made)
    return made


def compare(job: Job) -> tuple[Run, Reproduction]:
    """A reproduction: its run, and how the outputs compare."""
    run, compared = reproduce(job), read_newest(job)
    assert compared is not None
    return run, compared


def order_method(run: Run) -> str | None:
    return run.basis.order and run.basis.order.method


def compared_outputs(job: Job) -> Any:
    return compare(job)[1].outputs


def test_an_unchanged_job_is_reproduced_and_its_outputs_are_only_read(job: Job) -> None:
    before = md5_of(job.data_dir / OUTPUTS_FILE)
    run, compared = compare(job)
    assert (run.answer, run.exit_code, compared.changes) == ("reproduced", 0, ())
    assert count(run, "outputs", "identical", "diverged", "generated") == (PROMPTS, PROMPTS, 0, PROMPTS)
    assert f"{PROMPTS} of {PROMPTS} outputs" in (compared.bit_exact() or "")
    assert (order_method(run), compared.changes_known) == ("label", True)
    assert md5_of(job.data_dir / OUTPUTS_FILE) == before == compared.reproduced_md5
    assert not (job.data_dir / FOLDER).exists()


def test_outputs_that_drift_are_counted_and_named_with_their_first_other_token(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN_DRIFT", str(DRIFT))
    run, compared = compare(job)
    seen = compared.outputs
    assert 0 < seen.diverged == PROMPTS - seen.identical
    assert (run.answer, run.exit_code, compared.changes, compared.bit_exact()) == ("outputs differ", 20, (), None)
    assert (seen.first_divergence["median"], seen.first_divergence["share_within_8"]) == (3, 1)
    assert {one.first_divergence for one in seen.most_different} == {3}
    assert {(one.then, one.now) for one in seen.most_different} == {(None, None)}, "texts without log_text"
    assert seen.same_until[0] == (0, 1.0)
    assert seen.same_until[-1] == (4, pytest.approx(seen.identical / PROMPTS))
    draw_divergence(run, compared, job.root / "d.png")
    assert (job.root / "d.png").read_bytes().startswith(b"\x89PNG")


def test_texts_are_kept_only_where_they_may_be_shown(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDIN_DRIFT", "1")
    shown = job.model_copy(update={"reporting": job.reporting.model_copy(update={"log_text": True})})
    worst = compared_outputs(shown).most_different[0]
    assert worst.then
    assert worst.now
    assert worst.then.split()[:3] == worst.now.split()[:3]
    assert worst.then != worst.now


def test_what_changed_since_is_named_and_the_job_still_runs(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDIN_VERSION", "next")
    (job.model_path / "config.json").write_text('{"model_type": "qwen3_moe", "hidden_size": 8}')
    _, compared = compare(edit_job(job, sampling={"max_tokens": 6}))
    named = {change.split(":")[0] for change in compared.changes}
    assert named == {"sampling.max_tokens", "model", "engine.versions.vllm"}
    assert "sampling.max_tokens: 8 → 6" in compared.changes
    assert compared.outputs.diverged == PROMPTS
    assert compared.outputs.first_divergence["median"] == 6


def test_an_engine_that_did_not_start_yet_is_no_change(job: Job) -> None:
    held = read_provenance(job.data_dir / OUTPUTS_FILE)
    assert held is not None
    assert changes(held, held.model_copy(update={"engine": None})) == ()
    assert changes(None, held) == ()


def test_an_order_that_is_made_in_windows_while_it_is_sent_is_the_same_edit_job(job: Job) -> None:
    promote_label_order(job, window=32)
    write_prompts(job, [f"new prompt {k}" for k in range(PROMPTS)])
    generate(job)
    run, compared = compare(job)
    assert run.basis.order is not None
    assert (run.basis.order.parameters["window"], compared.changes) == (32, ())
    assert compared.outputs.identical == PROMPTS
    held = read_provenance(job.data_dir / OUTPUTS_FILE)
    assert held is not None
    unsent = {name: part for name, part in held.key.items() if name != "order"}
    assert changes(held, held.model_copy(update={"key": unsent})) == ()


def test_an_order_that_was_demoted_is_named_and_outputs_are_still_compared_by_id(job: Job) -> None:
    demote(job, [f"p{k}" for k in range(PROMPTS)])
    run, compared = compare(job)
    assert {"order.method", "order.sha256"} <= {change.split(":")[0] for change in compared.changes}
    assert 'order.method: "label" → "file"' in compared.changes
    assert (order_method(run), compared.outputs.identical) == ("file", PROMPTS)


def test_prompts_of_other_ids_are_another_baseline(job: Job) -> None:
    write_prompts(job, [f"prompt {k}" for k in range(PROMPTS + 2)])
    with pytest.raises(BaselineError, match=r"2 prompts .*\('p120', 'p121'\)"):
        reproduce(job)
    write_prompts(job, [f"prompt {k}" for k in range(PROMPTS - 4)])
    with pytest.raises(BaselineError, match=r"4 outputs .* \('p116', 'p117', 'p118' …\)"):
        reproduce(job)
    assert not (job.data_dir / FOLDER).exists(), "something was begun"


def test_edited_texts_under_the_same_ids_are_a_change_that_is_named(job: Job) -> None:
    write_prompts(job, [f"prompt {k + (k == 5)}" for k in range(PROMPTS)])
    _, compared = compare(job)
    assert any(change.startswith("dataset_md5:") for change in compared.changes)
    assert [output.id for output in compared.outputs.most_different] == ["p5"]


def test_a_file_in_another_order_is_compared_by_id(job: Job) -> None:
    lines = job.prompts_path.read_text().splitlines(keepends=True)
    job.prompts_path.write_text("".join(reversed(lines)))
    _, compared = compare(job)
    assert compared.outputs.identical == PROMPTS
    assert any(change.startswith("dataset_md5:") for change in compared.changes)


def test_samples_of_one_prompt_are_kept_apart(job: Job) -> None:
    several = edit_job(job, sampling={"max_tokens": 8, "n": 3})
    run, fewer = compare(several)
    assert (fewer.outputs.outputs, fewer.outputs.only_now, run.answer) == (PROMPTS, 2 * PROMPTS, "outputs differ")
    assert fewer.outputs.identical == PROMPTS
    assert fewer.bit_exact() is None
    generate(several)
    assert compared_outputs(several).identical == 3 * PROMPTS


def test_batch_invariance_is_refused_where_vllm_has_none(job: Job) -> None:
    asked = edit_job(job, engine={**job.engine.model_dump(), "batch_invariant": True}, sampling={"temperature": 0})
    with pytest.raises(EngineError, match=r"no batch-invariant mode .* compute capability 8\.0"):
        reproduce(asked)


@pytest.mark.parametrize("column", ["id", "text", "token_ids", "finish_reason"])
def test_a_baseline_without_a_column_is_refused_before_anything_is_generated(job: Job, column: str) -> None:
    path = job.data_dir / OUTPUTS_FILE
    pq.write_table(pq.read_table(path).drop_columns([column]), path)
    with pytest.raises(BaselineError, match=f"no column {column}.*`dvc checkout`"):
        reproduce(job)
    assert not (job.data_dir / FOLDER).exists()


def test_a_baseline_of_other_types_is_refused_before_anything_is_generated(job: Job) -> None:
    path = job.data_dir / OUTPUTS_FILE
    table = pq.read_table(path)
    pq.write_table(table.set_column(table.column_names.index("token_ids"), "token_ids", table["text"]), path)
    with pytest.raises(BaselineError, match="Unsupported cast from string to list"):
        reproduce(job)
    assert not (job.data_dir / FOLDER).exists()


def test_a_baseline_that_pandas_wrote_again_is_compared_as_before(job: Job) -> None:
    path = job.data_dir / OUTPUTS_FILE
    pq.read_table(path).to_pandas().to_parquet(path)
    assert pq.read_schema(path).field("id").type == pa.large_string()
    assert compared_outputs(job).identical == PROMPTS


def test_there_must_be_a_baseline(job: Job) -> None:
    (job.data_dir / OUTPUTS_FILE).unlink()
    with pytest.raises(BaselineError, match="`orderproof generate it`"):
        reproduce(job)
    (job.data_dir / OUTPUTS_FILE).write_bytes(b"no parquet")
    with pytest.raises(BaselineError, match="`dvc checkout`"):
        reproduce(job)


def test_a_baseline_that_does_not_say_what_it_rests_on_is_compared_all_the_same(job: Job) -> None:
    path = job.data_dir / OUTPUTS_FILE
    pq.write_table(pq.read_table(path).replace_schema_metadata(None), path)
    _, compared = compare(edit_job(job, sampling={"max_tokens": 6}))
    assert (compared.changes, compared.changes_known, compared.outputs.diverged) == ((), False, PROMPTS)


def test_a_killed_reproduction_goes_on_where_it_was(job: Job) -> None:
    with pytest.raises(EngineError, match="SIGKILL"):
        reproduce_and(job, kill, after=40)
    assert (job.data_dir / FOLDER / KEY_FILE).exists()
    resumed, generated, identical = count(reproduce(job), "resumed", "generated", "identical")
    assert resumed >= 40
    assert resumed + generated == PROMPTS == identical


def test_one_reproduction_at_a_time_and_none_waits_for_a_batch(job: Job) -> None:
    with only_run(job.data_dir, wait=False):  # as a batch holds it
        assert reproduce(job).answer == "reproduced"
    refusing = job.model_copy(update={"generate": job.generate.model_copy(update={"when_running": "refuse"})})
    held = only_run(job.data_dir, wait=False, lock_file=LOCK_FILE)
    with held, pytest.raises(CheckpointError, match="when_running"):
        reproduce(refusing)


def test_a_baseline_that_is_replaced_meanwhile_is_not_compared(job: Job) -> None:
    def replace(_: Any) -> None:
        (job.data_dir / OUTPUTS_FILE).write_bytes(b"another")

    with pytest.raises(BaselineError, match="was replaced"):
        reproduce_and(job, replace, after=1)
    generate(job)
    assert count(reproduce(job), "resumed", "generated") == (PROMPTS, 0), "what was generated was lost"


def test_requests_that_fail_now_are_counted_and_no_reason_to_stop(job: Job) -> None:
    shorter = edit_job(job, engine={**job.engine.model_dump(), "args": {"max_num_seqs": 16, "max_model_len": 10}})
    run, compared = compare(shorter)
    assert compared.outputs.failed_then == 0
    assert compared.outputs.failed_now == PROMPTS - 100, "prompts of 10 characters and more do not fit"
    assert compared.outputs.compared == 100
    assert compared.outputs.finish_changes == {"length → failed": PROMPTS - 100}
    assert run.answer == "outputs differ"


def test_another_baseline_than_the_last_time_is_told_with_what_differs(job: Job) -> None:
    reproduce(job)
    assert compare(job)[1].rebased == ()
    other = edit_job(job, sampling={"max_tokens": 6})
    generate(other)
    _, compared = compare(other)
    assert (compared.changes, compared.outputs.identical) == ((), PROMPTS)
    assert compared.rebased == ("sampling.max_tokens: 8 → 6",)


def with_references(job: Job, scorer: str, reference: Callable[[str], str]) -> Job:
    texts = pq.read_table(job.data_dir / OUTPUTS_FILE)["text"].to_pylist()
    rows = [json.loads(line) for line in job.prompts_path.read_text().splitlines()]
    for row, text in zip(rows, texts, strict=True):
        row["reference"] = reference(text)
    job.prompts_path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    scored = edit_job(job, measure={"scorer": scorer})
    promote_label_order(scored)
    generate(scored)
    return scored


@pytest.mark.parametrize(
    ("scorer", "reference"), [("exact", str), ("numeric", str), ("regex", lambda text: rf"\b{text.split()[-1]}\b$")]
)
def test_scores_that_stay_are_as_before_and_scores_that_fall_moved(
    job: Job, monkeypatch: pytest.MonkeyPatch, scorer: str, reference: Callable[[str], str]
) -> None:
    scored = with_references(job, scorer, reference)
    same = compare(scored)[1].scores
    assert same is not None
    assert (same.scorer, same.then, same.now, same.answer) == (scorer, 1.0, 1.0, "as before")
    monkeypatch.setenv("STANDIN_DRIFT", "2")
    run, compared = compare(scored)
    assert compared.scores is not None
    assert compared.scores.changed == compared.outputs.diverged > 20
    assert compared.scores.difference == pytest.approx(-compared.outputs.diverged / PROMPTS)
    assert (compared.scores.answer, run.answer, run.exit_code) == ("moved", "scores moved", 21)


def test_without_references_nothing_is_scored(job: Job) -> None:
    assert compare(edit_job(job, measure={"scorer": "exact"}))[1].scores is None


def test_a_reference_that_is_no_pattern_is_told_before_anything_is_generated(job: Job) -> None:
    with pytest.raises(ScorerError, match=r"prompts.jsonl, line 1 \(id 'p0'\): .*'regex'"):
        reproduce(with_references(job, "regex", lambda text: "(" + text))
    assert not (job.data_dir / FOLDER).exists()
