"""A job generated again beside its baseline. The engine is the stand-in behind the real worker."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orderproof.engines.protocol import Engine, EngineError
from orderproof.generate.checkpoint_folder import KEY_FILE, CheckpointError
from orderproof.generate.delivery import OUTPUTS_FILE
from orderproof.generate.lock import only_run
from orderproof.generate.provenance import read_provenance
from orderproof.job.hashing import md5_of
from orderproof.job.params import load_job
from orderproof.job.spec import Job
from orderproof.outputs.scorers import ScorerError
from orderproof.reproduce import baseline_file
from orderproof.reproduce.baseline_file import FOLDER, BaselineError, changes
from orderproof.reproduce.picture import draw_divergence
from orderproof.reproduce.record import (
    NEWEST_FILE,
    Reproduction,
    ReproductionError,
    keep,
    keep_newest,
    read_newest,
    reports_of,
)
from orderproof.reproduce.recording import record, report
from orderproof.reproduce.tracking import RUN_TAG, log_waiting
from orderproof.runs.promotion import demote
from orderproof.runs.recording import inputs_of
from orderproof.status.status import job_status
from orderproof.status.text import status_lines
from tests.e2e.test_batch_faults import Interrupted
from tests.generate.test_record import NOWHERE, sent_runs
from tests.support.batches import make_project, promote_label_order, reproduce, run_batch, standin, write_prompts

PROMPTS = 120
DRIFT = 4


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    made = make_project(tmp_path / "p", PROMPTS, step_ms=2)
    promote_label_order(made)
    run_batch(made)
    return made


def again(job: Job, **changes: Any) -> Job:
    """The job after an edit of params.yaml."""
    path = job.root / "params.yaml"
    params = json.loads(path.read_text())
    params["jobs"]["it"] |= changes
    path.write_text(json.dumps(params))
    return load_job(path, "it")


def test_an_unchanged_job_is_reproduced_and_its_outputs_are_only_read(job: Job) -> None:
    before = md5_of(job.data_dir / OUTPUTS_FILE)
    made = reproduce(job)
    assert (made.answer, made.exit_code, made.changes) == ("reproduced", 0, ())
    assert (made.outputs.outputs, made.outputs.identical, made.outputs.diverged) == (PROMPTS, PROMPTS, 0)
    assert made.bit_exact() == f"bit-exact: seen in {PROMPTS} of {PROMPTS} outputs"
    assert (made.order.method, made.generated, made.changes_known) == ("label", PROMPTS, True)
    assert md5_of(job.data_dir / OUTPUTS_FILE) == before == made.reproduced_md5
    assert not (job.data_dir / baseline_file.FOLDER).exists()


def test_outputs_that_drift_are_counted_and_named_with_their_first_other_token(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN_DRIFT", str(DRIFT))
    made = reproduce(job)
    seen = made.outputs
    assert 0 < seen.diverged == PROMPTS - seen.identical
    assert (made.answer, made.exit_code, made.changes, made.bit_exact()) == ("outputs differ", 20, (), None)
    assert (seen.first_divergence["median"], seen.first_divergence["share_within_8"]) == (3, 1)
    assert {one.first_divergence for one in seen.most_different} == {3}
    assert {(one.then, one.now) for one in seen.most_different} == {(None, None)}, "texts without log_text"
    assert seen.same_until[0] == (0, 1.0)
    assert seen.same_until[-1] == (4, pytest.approx(seen.identical / PROMPTS))
    assert draw_divergence(made, job.root / "d.png") == job.root / "d.png"


def test_texts_are_kept_only_where_they_may_be_shown(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDIN_DRIFT", "1")
    shown = job.model_copy(update={"reporting": job.reporting.model_copy(update={"log_text": True})})
    worst = reproduce(shown).outputs.most_different[0]
    assert worst.then
    assert worst.now
    assert worst.then.split()[:3] == worst.now.split()[:3]
    assert worst.then != worst.now


def test_what_changed_since_is_named_and_the_job_still_runs(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDIN_VERSION", "next")
    (job.model_path / "config.json").write_text('{"model_type": "qwen3_moe", "hidden_size": 8}')
    made = reproduce(again(job, sampling={"max_tokens": 6}))
    named = {change.split(":")[0] for change in made.changes}
    assert named == {"sampling.max_tokens", "model", "engine.versions.vllm"}
    assert "sampling.max_tokens: 8 → 6" in made.changes
    assert made.outputs.diverged == PROMPTS
    assert made.outputs.first_divergence["median"] == 6


def test_an_engine_that_did_not_start_yet_is_no_change(job: Job) -> None:
    held = read_provenance(job.data_dir / OUTPUTS_FILE)
    assert held is not None
    assert changes(held, held.model_copy(update={"engine": None})) == ()
    assert changes(None, held) == ()


def test_an_order_that_is_made_in_windows_while_it_is_sent_is_the_same_again(job: Job) -> None:
    promote_label_order(job, window=32)
    write_prompts(job, [f"new prompt {k}" for k in range(PROMPTS)])
    run_batch(job)
    made = reproduce(job)
    assert (made.order.parameters["window"], made.changes, made.outputs.identical) == (32, (), PROMPTS)
    held = read_provenance(job.data_dir / OUTPUTS_FILE)
    assert held is not None
    unsent = {name: part for name, part in held.key.items() if name != "order"}
    assert changes(held, held.model_copy(update={"key": unsent})) == ()


def test_an_order_that_was_demoted_is_named_and_outputs_are_still_compared_by_id(job: Job) -> None:
    demote(job, [f"p{k}" for k in range(PROMPTS)])
    made = reproduce(job)
    assert {"order.method", "order.sha256"} <= {change.split(":")[0] for change in made.changes}
    assert 'order.method: "label" → "file"' in made.changes
    assert (made.order.method, made.outputs.identical) == ("file", PROMPTS)


def test_prompts_of_other_ids_are_another_baseline(job: Job) -> None:
    write_prompts(job, [f"prompt {k}" for k in range(PROMPTS + 2)])
    with pytest.raises(BaselineError, match=r"2 prompts are not in it \('p120', 'p121'\)"):
        reproduce(job)
    write_prompts(job, [f"prompt {k}" for k in range(PROMPTS - 4)])
    with pytest.raises(BaselineError, match=r"4 of its outputs are of prompts .* \('p116', 'p117', 'p118' …\)"):
        reproduce(job)
    assert not (job.data_dir / baseline_file.FOLDER).exists(), "something was begun"


def test_edited_texts_under_the_same_ids_are_a_change_that_is_named(job: Job) -> None:
    write_prompts(job, [f"prompt {k + (k == 5)}" for k in range(PROMPTS)])
    made = reproduce(job)
    assert any(change.startswith("dataset_md5:") for change in made.changes)
    assert [one.id for one in made.outputs.most_different] == ["p5"]


def test_a_file_in_another_order_is_compared_by_id(job: Job) -> None:
    lines = job.prompts_path.read_text().splitlines(keepends=True)
    job.prompts_path.write_text("".join(reversed(lines)))
    assert (made := reproduce(job)).outputs.identical == PROMPTS
    assert any(change.startswith("dataset_md5:") for change in made.changes)


def test_samples_of_one_prompt_are_kept_apart(job: Job) -> None:
    several = again(job, sampling={"max_tokens": 8, "n": 3})
    fewer = reproduce(several)
    assert (fewer.outputs.outputs, fewer.outputs.only_now, fewer.answer) == (PROMPTS, 2 * PROMPTS, "outputs differ")
    assert fewer.outputs.identical == PROMPTS
    assert fewer.bit_exact() is None
    run_batch(several)
    assert reproduce(several).outputs.identical == 3 * PROMPTS


def test_batch_invariance_is_refused_where_vllm_has_none(job: Job) -> None:
    asked = again(job, engine={**job.engine.model_dump(), "batch_invariant": True}, sampling={"temperature": 0})
    with pytest.raises(EngineError, match=r"no batch-invariant mode .* compute capability 8\.0"):
        reproduce(asked)


@pytest.mark.parametrize("column", ["id", "text", "token_ids", "finish_reason"])
def test_a_baseline_without_a_column_is_refused_before_anything_is_generated(job: Job, column: str) -> None:
    path = job.data_dir / OUTPUTS_FILE
    pq.write_table(pq.read_table(path).drop_columns([column]), path)
    with pytest.raises(BaselineError, match=f"outputs: it has no column {column}. `dvc checkout`"):
        reproduce(job)
    assert not (job.data_dir / FOLDER).exists()


def test_a_baseline_of_other_types_is_refused_before_anything_is_generated(job: Job) -> None:
    path = job.data_dir / OUTPUTS_FILE
    table = pq.read_table(path)
    pq.write_table(table.set_column(table.column_names.index("token_ids"), "token_ids", table["text"]), path)
    with pytest.raises(BaselineError, match="is not readable as outputs: Unsupported cast from string to list"):
        reproduce(job)
    assert not (job.data_dir / FOLDER).exists()


def test_a_baseline_that_pandas_wrote_again_is_compared_as_before(job: Job) -> None:
    path = job.data_dir / OUTPUTS_FILE
    pq.read_table(path).to_pandas().to_parquet(path)
    assert pq.read_schema(path).field("id").type == pa.large_string()
    assert reproduce(job).outputs.identical == PROMPTS


def test_there_must_be_a_baseline(job: Job) -> None:
    (job.data_dir / OUTPUTS_FILE).unlink()
    with pytest.raises(BaselineError, match="`orderproof generate it` makes a baseline"):
        reproduce(job)
    (job.data_dir / OUTPUTS_FILE).write_bytes(b"no parquet")
    with pytest.raises(BaselineError, match="not readable as outputs"):
        reproduce(job)


def test_a_baseline_that_does_not_say_what_it_rests_on_is_compared_all_the_same(job: Job) -> None:
    path = job.data_dir / OUTPUTS_FILE
    pq.write_table(pq.read_table(path).replace_schema_metadata(None), path)
    made = reproduce(again(job, sampling={"max_tokens": 6}))
    assert (made.changes, made.changes_known, made.outputs.diverged) == ((), False, PROMPTS)


def test_a_killed_reproduction_goes_on_where_it_was(job: Job) -> None:
    with pytest.raises(EngineError, match="SIGKILL"):
        reproduce(job, start=lambda job: Interrupted(job, 40, lambda engine: os.killpg(engine.pid, signal.SIGKILL)))
    assert (job.data_dir / baseline_file.FOLDER / KEY_FILE).exists()
    made = reproduce(job)
    assert made.resumed >= 40
    assert made.resumed + made.generated == PROMPTS == made.outputs.identical


def test_one_reproduction_at_a_time_and_none_waits_for_a_batch(job: Job) -> None:
    with only_run(job.data_dir, wait=False):  # as a batch holds it
        assert reproduce(job).answer == "reproduced"
    held = only_run(job.data_dir, wait=False, lock_file=baseline_file.LOCK_FILE)
    with held, pytest.raises(CheckpointError, match="when_running"):
        reproduce(job)


def test_a_baseline_that_is_replaced_meanwhile_is_not_compared(job: Job) -> None:
    def start(job: Job) -> Engine:
        (job.data_dir / OUTPUTS_FILE).write_bytes(b"another")
        return standin(job)

    with pytest.raises(BaselineError, match="was replaced while it was reproduced"):
        reproduce(job, start=start)
    run_batch(job)
    assert reproduce(job).resumed == PROMPTS, "what was generated was lost"


def test_requests_that_fail_now_are_counted_and_no_reason_to_stop(job: Job) -> None:
    shorter = again(job, engine={**job.engine.model_dump(), "args": {"max_num_seqs": 16, "max_model_len": 10}})
    made = reproduce(shorter)
    assert made.outputs.failed_then == 0
    assert made.outputs.failed_now == PROMPTS - 100, "prompts of 10 characters and more do not fit"
    assert made.outputs.compared == 100
    assert made.outputs.finish_changes == {"length → failed": PROMPTS - 100}
    assert made.answer == "outputs differ"


def test_another_baseline_than_the_last_time_is_told_with_what_differs(job: Job) -> None:
    keep_newest(job, reproduce(job))
    assert reproduce(job).rebased == ()
    other = again(job, sampling={"max_tokens": 6})
    run_batch(other)
    made = reproduce(other)
    assert (made.changes, made.outputs.identical) == ((), PROMPTS)
    assert made.rebased == ("sampling.max_tokens: 8 → 6",)


def with_references(job: Job, scorer: str, reference: Callable[[str], str]) -> Job:
    texts = pq.read_table(job.data_dir / OUTPUTS_FILE)["text"].to_pylist()
    rows = [json.loads(line) for line in job.prompts_path.read_text().splitlines()]
    for row, text in zip(rows, texts, strict=True):
        row["reference"] = reference(text)
    job.prompts_path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    scored = again(job, measure={"scorer": scorer})
    promote_label_order(scored)
    run_batch(scored)
    return scored


@pytest.mark.parametrize(
    ("scorer", "reference"), [("exact", str), ("numeric", str), ("regex", lambda text: rf"\b{text.split()[-1]}\b$")]
)
def test_scores_that_stay_are_as_before_and_scores_that_fall_moved(
    job: Job, monkeypatch: pytest.MonkeyPatch, scorer: str, reference: Callable[[str], str]
) -> None:
    scored = with_references(job, scorer, reference)
    same = reproduce(scored).scores
    assert same is not None
    assert (same.scorer, same.then, same.now, same.answer) == (scorer, 1.0, 1.0, "as before")
    monkeypatch.setenv("STANDIN_DRIFT", "2")
    made = reproduce(scored)
    assert made.scores is not None
    assert made.scores.changed == made.outputs.diverged > 20
    assert made.scores.difference == pytest.approx(-made.outputs.diverged / PROMPTS)
    assert (made.scores.answer, made.answer, made.exit_code) == ("moved", "scores moved", 21)


def test_without_references_nothing_is_scored(job: Job) -> None:
    assert reproduce(again(job, measure={"scorer": "exact"})).scores is None


def test_a_reference_that_is_no_pattern_is_told_before_anything_is_generated(job: Job) -> None:
    with pytest.raises(ScorerError, match=r"prompts.jsonl, line 1 \(id 'p0'\): .* is no pattern"):
        reproduce(with_references(job, "regex", lambda text: "(" + text))
    assert not (job.data_dir / baseline_file.FOLDER).exists()


def test_the_record_goes_to_mlflow_once_and_baseline_json_stays_as_it_is(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", NOWHERE)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("STANDIN_DRIFT", str(DRIFT))
    made = report(job, reproduce(job), "prefect-run")
    assert "`orderproof log it` sends it later" in made.notes[0]
    newest = (reports_of(job) / NEWEST_FILE).read_bytes()
    assert (reports_of(job) / f"{made.run}.png").exists()
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    (sent,) = log_waiting(job)
    assert log_waiting(job) == []
    (held,) = sent_runs(job)
    assert held.info.run_id == sent.mlflow_run
    assert held.data.tags[RUN_TAG] == made.run
    assert held.data.metrics["identical_share"] == made.outputs.identical_share
    assert held.data.metrics["diverged"] == made.outputs.diverged
    assert (reports_of(job) / NEWEST_FILE).read_bytes() == newest, "DVC's output changed when a tracker was told"


def test_the_newest_reproduction_stands_in_the_status(job: Job) -> None:
    assert job_status(job)["reproduction"] is None
    made = reproduce(job)
    keep_newest(job, made)
    told = job_status(job)["reproduction"]
    assert told == {
        "run": made.run, "ended": made.ended_utc, "answer": "reproduced", "identical": PROMPTS, "compared": PROMPTS,
        "scores": None, "changes": 0, "current": True,
    }  # fmt: skip
    assert f"{PROMPTS} of {PROMPTS} outputs identical" in "\n".join(status_lines([job_status(job)]))
    run_batch(again(job, sampling={"max_tokens": 6}))
    assert "of other outputs than the job has now" in "\n".join(status_lines([job_status(job)]))
    (reports_of(job) / NEWEST_FILE).write_text("{}")
    assert any("as the record of a reproduction" in problem for problem in job_status(job)["problems"])


def test_a_record_that_cannot_be_written_is_told(job: Job) -> None:
    made = reproduce(job)
    reports_of(job).parent.mkdir(parents=True, exist_ok=True)
    reports_of(job).write_text("in the way")
    for write, name in ((keep, f"{made.run}.json"), (keep_newest, NEWEST_FILE)):
        with pytest.raises(ReproductionError, match=rf"{name} cannot be written"):
            write(job, made)


def test_a_record_comes_back_from_its_file_as_it_was(job: Job) -> None:
    made = reproduce(job).noting("a note")
    assert Reproduction.model_validate_json(keep(job, made).read_bytes()) == made
    keep_newest(job, made)
    assert read_newest(job) == made.model_copy(update={"notes": ()})


def test_outside_of_dvc_a_note_says_so(job: Job) -> None:
    assert "is not inside a DVC repository" in record(job, reproduce(job), inputs_of(job)).notes[0]
