"""Jobs, verbs and runs have files of their own."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import get_args

from orderproof.job.paths import JobPaths, Verb

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
