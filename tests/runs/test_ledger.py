"""The ledger has each trial and each generation once, whatever happens to the file."""

from __future__ import annotations

import csv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from orderproof.job.spec import EngineSpec, Job
from orderproof.runs.ledger import FILE, Entry, LedgerError, add, entry_of, read
from orderproof.runs.ledger_picture import draw_ledger
from orderproof.runs.run import Basis, Figure, Run

TRIAL = "20261101T010000Z-0001"


@pytest.fixture
def job(tmp_path: Path) -> Job:
    engine = EngineSpec(args={"max_num_seqs": 4})
    return Job(name="it", root=tmp_path, prompts="p.jsonl", model="m", engine=engine)


def run_of(verb: Any, run_id: str, answer: str, figures: dict[str, float], **details: Any) -> Run:
    basis = Basis(prompts="p", dataset_md5="0" * 32, prompts_total=9, model="m", model_fingerprint="f")
    return Run(
        job="it", verb=verb, id=run_id, started_utc=when(run_id), ended_utc=when(run_id), answer=answer, sentence="",
        basis=basis, figures=tuple(Figure(name=name, value=value) for name, value in figures.items()), details=details,
    )  # fmt: skip


def when(run_id: str) -> str:
    return f"{run_id[:4]}-{run_id[4:6]}-{run_id[6:8]}T{run_id[9:11]}:{run_id[11:13]}:00+00:00"


def trial(run_id: str = TRIAL, answer: str = "promote") -> Run:
    figures = {"gain": 0.2, "blocks": 2, "measured_s": 90.0, "alpha": 0.0125}
    run = run_of("measure", run_id, answer, figures, question="q", attempt=2)
    return run.model_copy(update={"figures": (Figure(name="gain", value=0.2, low=0.1, high=0.3), *run.figures[1:])})


def generation(run_id: str) -> Run:
    promotion = {"trial": TRIAL, "gain": 0.2, "gain_low": 0.1, "gain_high": 0.3}
    return run_of("generate", run_id, "complete", {"generated": 9, "wall_s": 3600.0}, promotion=promotion)


def test_each_run_is_a_line_with_its_evidence(job: Job) -> None:
    for run in (trial(), generation("20261102T010000Z-0002"), trial()):
        add(job, run)
    first, second = read(job.data_dir / FILE)
    assert (first.question, first.attempt, first.alpha, first.blocks, first.seconds) == ("q", 2, 0.0125, 2, 90)
    assert (first.answer, first.gain, first.gain_low, first.gain_high) == ("promote", 0.2, 0.1, 0.3)
    assert (second.verb, second.trial, second.gain, second.requests, second.seconds) == (
        "generate", TRIAL, 0.2, 9, 3600,
    )  # fmt: skip
    with open(job.data_dir / FILE, newline="") as lines:
        assert len(list(csv.DictReader(lines))) == 2


@pytest.mark.parametrize("versions", [{"vllm": "1.2"}, {"engine_vllm": "1.2", "orderproof": "0"}])
def test_the_engine_is_its_version(job: Job, versions: dict[str, str]) -> None:
    run = trial()
    entry = entry_of(job, run.model_copy(update={"basis": run.basis.model_copy(update={"versions": versions})}))
    assert entry is not None
    assert entry.engine == "1.2"


def test_other_verbs_are_not_in_it(job: Job) -> None:
    assert entry_of(job, run_of("plan", TRIAL, "measure", {})) is None
    add(job, run_of("plan", TRIAL, "measure", {}))
    assert not (job.data_dir / FILE).exists()


def test_the_line_of_a_run_that_is_kept_again_with_more_replaces_the_first(job: Job) -> None:
    add(job, trial(answer="inconclusive"))
    add(job, trial())
    assert [entry.answer for entry in read(job.data_dir / FILE)] == ["promote"]


def test_a_line_that_a_crash_tore_costs_only_itself(job: Job) -> None:
    add(job, trial())
    whole = (job.data_dir / FILE).read_bytes()
    add(job, generation("20261102T010000Z-0002"))
    (job.data_dir / FILE).write_bytes((job.data_dir / FILE).read_bytes()[: len(whole) + 20])
    add(job, generation("20261103T010000Z-0003"))
    assert [entry.run for entry in read(job.data_dir / FILE)] == [TRIAL, "20261103T010000Z-0003"]


def test_runs_that_end_at_once_are_all_in_it(job: Job) -> None:
    runs = [generation(f"20261102T01{k:02}00Z-{k:04x}") for k in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda run: add(job, run), runs))
    assert len(read(job.data_dir / FILE)) == 40


def test_a_ledger_that_is_no_text_is_an_error_that_names_it(job: Job) -> None:
    job.data_dir.mkdir(parents=True)
    (job.data_dir / FILE).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(LedgerError, match=r"ledger\.csv cannot be read"):
        add(job, trial())


def test_it_is_drawn_with_its_changes(job: Job, tmp_path: Path) -> None:
    draw_ledger(job, tmp_path / "x.png")
    assert not (tmp_path / "x.png").exists()
    for run in (trial(), trial("20261104T010000Z-0004", "keep"), generation("20261105T010000Z-0005")):
        add(job, run)
    draw_ledger(job, tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_an_entry_reads_as_it_was_written() -> None:
    entry = Entry(verb="measure", run=TRIAL, ended_utc=when(TRIAL), answer="keep", gain=None, toy=True)
    assert entry.toy is True
