"""Jobs, verbs and runs have files of their own."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import get_args

import pytest

from orderproof.job.paths import JobPaths, Verb, project_of_copy, state_dir

PATHS = JobPaths(Path("/project"), "it")
NAMES = [name for name, _ in inspect.getmembers(JobPaths, lambda member: isinstance(member, property))]


def test_every_path_of_a_job_is_its_own_and_is_in_its_data_or_reports() -> None:
    paths = [getattr(PATHS, name) for name in NAMES] + [PATHS.verb_dir(verb) for verb in get_args(Verb)]
    assert len(set(paths)) == len(paths) > 15
    roots = (Path("/project/data/it"), Path("/project/reports/it"))
    assert all(any(path.is_relative_to(root) for root in roots) for path in paths)


def test_two_jobs_share_no_path() -> None:
    other = JobPaths(PATHS.root, "validation")
    assert not {getattr(PATHS, name) for name in NAMES} & {getattr(other, name) for name in NAMES}
    assert PATHS.engine_log("measure") != other.engine_log("measure") != other.engine_log("capture")


def test_a_run_is_in_the_folder_of_its_verb_and_job() -> None:
    assert PATHS.run_dir("measure", "20261129T144640Z-3f9a") == Path(
        "/project/reports/it/measure/20261129T144640Z-3f9a"
    )


@pytest.mark.parametrize("copy", ["standalone/tmpa1b2", "tmpa1b2"])
def test_a_temporary_copy_of_an_experiment_keeps_its_state_in_the_project(tmp_path: Path, copy: str) -> None:
    inside = tmp_path / ".dvc" / "tmp" / "exps" / copy
    (tmp_path / "below").mkdir()
    (inside / "below").mkdir(parents=True)
    assert state_dir(inside) == tmp_path / ".orderproof"
    assert state_dir(inside / "below") == tmp_path / "below" / ".orderproof"
    assert state_dir(tmp_path) == tmp_path / ".orderproof"
    assert project_of_copy(tmp_path) is None
