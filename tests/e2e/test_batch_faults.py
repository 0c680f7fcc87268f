"""What a generation does when the world around it fails: each test states the outcome. The engine is the stand-in."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from orderproof.engines.protocol import EngineError
from orderproof.generate.checkpoint_folder import FOLDER, CheckpointError
from orderproof.generate.delivery import DeliveryError
from orderproof.generate.lock import only_run
from orderproof.job.params import load_job
from orderproof.job.paths import OUTPUTS_FILE
from orderproof.job.spec import Job
from orderproof.prompts.prompt import PromptError
from tests.support.batches import (
    count,
    generate,
    generate_and,
    generated_places,
    make_project,
    output_ids,
    outputs,
    write_prompts,
)
from tests.support.interrupted import kill

pytestmark = pytest.mark.usefixtures("no_tracker")
PROMPTS = 400


def stop_half_way(job: Job) -> int:
    """Leave a checkpoint behind; returns how many results it holds."""
    with pytest.raises(EngineError, match="was killed by SIGKILL"):
        generate_and(job, kill)
    return len((job.data_dir / FOLDER / "results.jsonl").read_bytes().splitlines())


def test_an_engine_that_dies_is_an_error_that_keeps_every_result(tmp_path: Path) -> None:
    job = make_project(tmp_path / "p", PROMPTS, step_ms=1)
    kept = stop_half_way(job)
    assert kept >= 100
    assert count(generate(job), "resumed", "generated") == (kept, PROMPTS - kept)
    assert output_ids(job) == [f"p{k}" for k in range(PROMPTS)]


def test_a_full_disk_is_told_and_what_fitted_on_it_is_kept(tmp_path: Path) -> None:
    job = make_project(tmp_path / "p", PROMPTS)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    full = 20_000  # bytes

    def fill(_: Any) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (full, hard))

    try:
        with pytest.raises(CheckpointError, match="kept there"):
            generate_and(job, fill, after=10)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    results = (job.data_dir / FOLDER / "results.jsonl").read_bytes()
    assert results.endswith(b"}\n"), "half a line stayed"
    kept = len(results.splitlines())
    assert kept > 10
    assert count(generate(job), "generated") == (PROMPTS - kept,)
    assert len(outputs(job)) == PROMPTS


def test_a_disk_that_is_full_when_the_outputs_are_written_costs_no_result(tmp_path: Path) -> None:
    job = make_project(tmp_path / "p", PROMPTS)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(_: Any) -> None:  # the results are there, and outputs.parquet is larger than this
        resource.setrlimit(resource.RLIMIT_FSIZE, (4_000, hard))

    try:
        with pytest.raises(DeliveryError, match="kept"):
            generate_and(job, fill, after=PROMPTS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not (job.data_dir / OUTPUTS_FILE).exists()
    assert not list(job.data_dir.glob("*.part"))
    assert count(generate(job), "resumed", "generated") == (PROMPTS, 0)
    assert len(outputs(job)) == PROMPTS


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_real_full_disk_is_told_and_what_fitted_on_it_is_kept(tmp_path: Path) -> None:
    job = make_project(tmp_path / "p", PROMPTS)
    disk = job.data_dir / FOLDER
    with mounted(disk, "size=64k"):
        with pytest.raises(CheckpointError, match=r"No space left on device.*kept there"):
            generate(job)
        results = (disk / "results.jsonl").read_bytes()
    assert results.endswith(b"}\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_read_only_folder_is_told_before_anything_is_sent(tmp_path: Path) -> None:
    job = make_project(tmp_path / "p", 10)
    content = job.prompts_path.read_text()
    with mounted(job.data_dir, "size=1m"):
        job.prompts_path.write_text(content)
        subprocess.run(["mount", "-o", "remount,ro", job.data_dir], check=True)
        with pytest.raises(CheckpointError, match=r"Read-only file system. Nothing was sent"):
            generate(job)
    assert not len(generated_places(job))


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    """A file system in memory of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", folder], capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount")
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


def test_prompts_edited_in_mid_run_stop_it_and_putting_them_back_goes_on(tmp_path: Path) -> None:
    job = make_project(tmp_path / "p", 2000, step_ms=1)
    whole = job.prompts_path.read_bytes()

    def edit(_: Any) -> None:
        write_prompts(job, [f"other {k}" for k in range(2000)])

    with pytest.raises(PromptError, match="was changed while the job ran"):
        generate_and(job, edit)
    assert not (job.data_dir / OUTPUTS_FILE).exists()
    with pytest.raises(CheckpointError, match=r"dataset_md5.*--restart"):
        generate(job)
    job.prompts_path.write_bytes(whole)
    assert count(generate(job), "generated") < (2000,)
    assert output_ids(job) == [f"p{k}" for k in range(2000)]


def test_prompts_edited_after_the_last_was_read_give_no_outputs(tmp_path: Path) -> None:
    job = make_project(tmp_path / "p", 200)

    def edit(_: Any) -> None:
        with open(job.prompts_path, "a") as sink:
            sink.write('{"id": "late", "text": "late"}\n')

    with pytest.raises(PromptError, match="was changed while the job ran"):
        generate_and(job, edit, after=200)
    assert not (job.data_dir / OUTPUTS_FILE).exists()


def test_prompts_that_were_only_touched_hold_nothing_up(tmp_path: Path) -> None:
    job = make_project(tmp_path / "p", 1000)
    generate_and(job, lambda _: os.utime(job.prompts_path))
    assert len(outputs(job)) == 1000


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"sampling": {"max_tokens": 7}}, "sampling.max_tokens: 8 → 7"),
        ({"engine": {"args": {"max_num_seqs": 16, "max_model_len": 63}}}, "engine.args.max_model_len: 64 → 63"),
        ({"chat_template_args": {"a": 1}}, "chat_template_args.a: absent → 1"),
    ],
)
def test_results_of_other_settings_are_never_mixed(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    job = make_project(tmp_path / "p", PROMPTS, step_ms=1)
    kept = stop_half_way(job)
    params = json.loads((job.root / "params.yaml").read_text())
    body = params["jobs"]["it"]
    body.update({**change, "engine": {**body["engine"], **change.get("engine", {})}})
    (job.root / "params.yaml").write_text(json.dumps(params))
    other = load_job(job.root / "params.yaml", "it")
    with pytest.raises(CheckpointError) as refused:
        generate(other)
    assert named in str(refused.value)
    assert count(generate(other, restart=True), "resumed", "generated") == (0, PROMPTS)
    (aside,) = job.data_dir.glob(f"{FOLDER}.*Z")
    assert len((aside / "results.jsonl").read_bytes().splitlines()) == kept


def test_results_of_another_model_are_never_mixed(tmp_path: Path) -> None:
    job = make_project(tmp_path / "p", PROMPTS, step_ms=1)
    stop_half_way(job)
    (job.model_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match="model: "):
        generate(job)


def test_results_of_another_version_of_the_engine_are_never_mixed(tmp_path: Path) -> None:
    job = make_project(tmp_path / "p", PROMPTS, step_ms=1)
    stop_half_way(job)
    path = job.data_dir / FOLDER / "engine.json"
    path.write_text(path.read_text().replace("stand-in", "0.0.1"))
    with pytest.raises(CheckpointError, match="results of another engine"):
        generate(job)


def test_a_second_run_of_one_job_refuses_where_that_is_asked(tmp_path: Path) -> None:
    job = make_project(tmp_path / "p", 10, generate={"when_running": "refuse"})
    with (
        only_run(job.data_dir, wait=False),
        pytest.raises(CheckpointError, match=rf"process {os.getpid()}"),
    ):
        generate(job)
    generate(job)


def test_a_second_run_of_one_job_waits_and_then_works_alone(tmp_path: Path) -> None:
    job = make_project(tmp_path / "p", 10)
    told, entered = threading.Event(), threading.Event()

    def second() -> None:
        with only_run(job.data_dir, wait=True, waiting=lambda holder: told.set()):
            entered.set()

    with only_run(job.data_dir, wait=False):
        waiter = threading.Thread(target=second)
        waiter.start()
        assert told.wait(30)
        assert not entered.is_set()
    assert entered.wait(30)
    waiter.join()


def test_two_runs_at_once_give_one_output_for_each_prompt(tmp_path: Path) -> None:
    job = make_project(tmp_path / "p", PROMPTS, step_ms=1)
    with ThreadPoolExecutor(2) as pool:
        runs = list(pool.map(generate, [job, job]))
    assert [count(run, "resumed", "generated") for run in runs] == [(0, PROMPTS)] * 2, "one after the other"
    assert output_ids(job) == [f"p{k}" for k in range(PROMPTS)]
    assert sorted(generated_places(job).tolist()) == sorted([*range(PROMPTS)] * 2)


def test_failed_requests_are_collected_and_the_others_go_on(tmp_path: Path) -> None:
    job = make_project(tmp_path / "p", 50, generate={"tolerated_failures": 0.05})
    write_prompts(job, ["x" * (200 if k == 20 else 60 if k == 30 else 5 + k % 7) for k in range(50)])
    assert count(generate(job), "failed") == (2,)
    rows = outputs(job)
    assert len(rows) == 50
    assert (rows[20]["finish_reason"], rows[20]["text"], rows[20]["token_ids"]) == ("failed", None, [])
    assert "200 tokens does not fit" in rows[20]["error"]
    assert (rows[30]["output_tokens"], "cut short after 4 of 8" in rows[30]["error"]) == (4, True)
    assert all(row["error"] is None for k, row in enumerate(rows) if k not in (20, 30))


def test_samples_come_back_in_their_own_rows_also_those_of_a_prompt_that_failed(tmp_path: Path) -> None:
    job = make_project(tmp_path / "p", 30, generate={"tolerated_failures": 0.1})
    rows = [{"id": f"p{k}", "text": "x" * (200 if k == 20 else 5), "sampling": {"n": 1 + k % 3}} for k in range(30)]
    job.prompts_path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = generate(job)
    found = outputs(job)
    assert [(row["id"], row["sample"]) for row in found] == [(f"p{k}", s) for k in range(30) for s in range(1 + k % 3)]
    assert count(run, "generated", "failed", "output_tokens") == (29, 1, (len(found) - 3) * 8)
    assert [row["finish_reason"] for row in found if row["id"] == "p20"] == ["failed"] * 3
    of_one = [row["token_ids"] for row in found if row["id"] == "p2"]
    assert len({tuple(tokens) for tokens in of_one}) == 3


def test_more_failures_than_are_tolerated_end_the_job_after_its_work_and_keep_it(tmp_path: Path) -> None:
    job = make_project(tmp_path / "p", 50, generate={"tolerated_failures": 0.01})
    write_prompts(job, ["x" * (200 if k == 20 else 5) for k in range(50)])
    with pytest.raises(DeliveryError, match=r"1 of 50 prompts.*0.02$") as refused:
        generate(job)
    assert "'p20'" in refused.value.words[0]
    assert not (job.data_dir / OUTPUTS_FILE).exists()
    tolerant = job.model_copy(update={"generate": job.generate.model_copy(update={"tolerated_failures": 0.02})})
    assert count(generate(tolerant), "resumed", "failed") == (49, 1), "only what failed is sent again"
    assert len(outputs(job)) == 50


@pytest.mark.parametrize(("prompts", "failing", "told"), [(3, 1, "0.3334"), (100, 29, "0.29")])
def test_the_share_that_a_refusal_names_is_enough(tmp_path: Path, prompts: int, failing: int, told: str) -> None:
    job = make_project(tmp_path / "p", 1)
    write_prompts(job, ["x" * (200 if k < failing else 5) for k in range(prompts)])
    with pytest.raises(DeliveryError, match=f"{failing} of {prompts} prompts .* {told}$"):
        generate(job)
    tolerant = job.generate.model_copy(update={"tolerated_failures": float(told)})
    assert count(generate(job.model_copy(update={"generate": tolerant})), "failed") == (failing,)
