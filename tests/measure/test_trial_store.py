"""A trial's folder: what a crash tore, an edit changed or a name points to is no evidence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orderproof.job.hashing import canonical_json, sha256_of
from orderproof.measure.trial_store import (
    EvidenceError,
    Trial,
    find_trial,
    read_history,
    read_trials,
    record_slice,
    repair,
)
from tests.support.trial_maker import make_trial


def test_a_pass_that_a_crash_tore_was_not_recorded_and_the_others_count(tmp_path: Path) -> None:
    trial = make_trial(tmp_path / "trial")
    passes = tmp_path / "trial" / "passes.jsonl"
    passes.write_bytes(passes.read_bytes()[:-40])
    again = Trial.read(tmp_path / "trial")
    assert again.passes == trial.passes[:-1]
    assert [block.number for block in again.blocks()] == [1, 2, 3, 4]


def test_a_torn_line_is_cut_off_before_the_next_one_is_written(tmp_path: Path) -> None:
    trial = make_trial(tmp_path / "trial")
    slices = tmp_path / "trial" / "slices.jsonl"
    slices.write_bytes(slices.read_bytes()[:-40])
    again = repair(Trial.read(tmp_path / "trial"))
    record_slice(again, trial.slices[-1])
    assert Trial.read(tmp_path / "trial").slices == trial.slices


def test_a_plan_that_was_edited_after_its_passes_is_no_evidence(tmp_path: Path) -> None:
    make_trial(tmp_path / "trial")
    manifest = tmp_path / "trial" / "manifest.json"
    edited = manifest.read_text().replace('"margin":0.01', '"margin":0.0').replace('"margin": 0.01', '"margin": 0.0')
    assert edited != manifest.read_text()
    manifest.write_text(edited)
    with pytest.raises(EvidenceError, match="changed after slices were timed"):
        Trial.read(tmp_path / "trial")
    assert read_trials(tmp_path) == []


def test_a_trial_is_readable_by_a_version_that_registers_more(tmp_path: Path) -> None:
    """A file without a field that has a default now: its lines have the hash of the file as it was written."""
    trial = make_trial(tmp_path / "trial")
    manifest = tmp_path / "trial" / "manifest.json"
    fields = json.loads(manifest.read_bytes())
    del fields["predicted"]
    manifest.write_text(json.dumps(fields))
    then = sha256_of(canonical_json(fields))
    for name in ("slices.jsonl", "passes.jsonl"):
        path = tmp_path / "trial" / name
        path.write_text(path.read_text().replace(trial.manifest.sha256, then))
    assert Trial.read(tmp_path / "trial").manifest == trial.manifest


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("manifest.json", b"", "Manifest: Invalid JSON"),
        ("manifest.json", b"{}", "Manifest: trial: Field required"),
        ("passes.jsonl", b"{}\n", "Pass: pass_id: Field required"),
        ("slices.jsonl", b"{}\n", "SliceRecord: block: Field required"),
        ("passes.jsonl", b"\xff\n", "not readable as a trial: 'utf-8'"),
    ],
)
def test_a_file_that_cannot_be_understood_is_told_in_one_line(
    tmp_path: Path, file: str, content: bytes, message: str
) -> None:
    make_trial(tmp_path / "trial")
    (tmp_path / "trial" / file).write_bytes(content)
    with pytest.raises(EvidenceError, match=message) as refused:
        Trial.read(tmp_path / "trial")
    assert "\n" not in str(refused.value)


def test_a_slice_that_was_run_again_is_kept_and_does_not_count(tmp_path: Path) -> None:
    trial = make_trial(tmp_path / "trial", repeated_block=2)
    assert [block.number for block in trial.blocks()] == [1, 2, 3, 4, 5]
    assert {(part.block, part.stratum, part.attempt) for part in trial.repeated()} == {(2, 1, 0)}
    assert {part.attempt for part in trial.blocks()[1].slices.values() if part.stratum == 1} == {1}


def test_a_name_never_becomes_a_path_unchecked(tmp_path: Path) -> None:
    make_trial(tmp_path / "reports" / "20261129T144640Z-3f9a")
    make_trial(tmp_path / "elsewhere")
    with pytest.raises(EvidenceError, match="has no trial"):
        find_trial(tmp_path / "reports", "../elsewhere")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    make_trial(tmp_path / "1")
    (tmp_path / "1" / "passes.jsonl").unlink()
    (tmp_path / "1" / "passes.jsonl").mkdir()
    with pytest.raises(EvidenceError, match=r"passes\.jsonl cannot be read: Is a directory"):
        find_trial(tmp_path, None)
    assert read_history(tmp_path).unreadable == ("1",)


def test_a_trial_that_cannot_be_read_is_still_known_to_have_been(tmp_path: Path) -> None:
    for name in ("1", "2", "3"):
        make_trial(tmp_path / name)
    (tmp_path / "2" / "passes.jsonl").unlink()
    history = read_history(tmp_path)
    assert [trial.manifest.trial for trial in history.trials] == ["1", "3"]
    assert history.unreadable == ("2",)
    assert len(history) == 3
    assert [trial.manifest.trial for trial in read_trials(tmp_path)] == ["1", "3"]
