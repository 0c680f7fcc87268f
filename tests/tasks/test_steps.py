"""Every step of a story has its Prefect task, which runs the library's own step."""

from __future__ import annotations

import importlib
from dataclasses import fields
from typing import Any

import pytest
from prefect import Task
from prefect.cache_policies import NO_CACHE

from tasks.accelerator import accelerator
from tasks.artifacts import prefect_run
from tasks.progress import PrefectProgress

VERBS = ("capture", "generate", "lossy", "measure", "reproduce")
SURROUNDINGS = {"accelerator": accelerator, "progress": PrefectProgress, "prefect_run": prefect_run}


def steps_of(verb: str) -> tuple[Any, Any]:
    """The tasks of a verb, and the library's own steps."""
    tasks, story = importlib.import_module(f"tasks.{verb}"), importlib.import_module(f"orderproof.{verb}.story")
    assert type(tasks.STEPS) is story.Steps
    return tasks.STEPS, story.Steps()


@pytest.mark.parametrize("verb", VERBS)
def test_every_step_is_a_task_and_all_around_it_is_prefects(verb: str) -> None:
    tasks, own = steps_of(verb)
    for name in (field.name for field in fields(own)):
        task, step = getattr(tasks, name), getattr(own, name)
        if name in SURROUNDINGS:
            assert task is SURROUNDINGS[name]
        elif name == "generation":
            assert task is steps_of("generate")[0]
        else:
            assert isinstance(task, Task), f"{name} of {verb} would run beside Prefect"
            assert task.fn is step or (verb, name) == ("measure", "run_block"), "which adds a table"


@pytest.mark.parametrize("verb", VERBS)
def test_no_task_is_cached_or_tried_again(verb: str) -> None:
    tasks, _ = steps_of(verb)
    found = [task for task in vars(tasks).values() if isinstance(task, Task)]
    assert found
    assert all((task.cache_policy, task.retries) == (NO_CACHE, 0) for task in found)


@pytest.mark.parametrize("verb", VERBS)
def test_every_task_has_a_name_that_a_person_reads(verb: str) -> None:
    names = [task.task_run_name for task in vars(steps_of(verb)[0]).values() if isinstance(task, Task)]
    assert all(isinstance(name, str) and name for name in names)
    assert len(set(names)) == len(names)
