"""`orderproof generate` as a process that is killed with SIGKILL at random moments."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import psutil

from orderproof.generate.checkpoint_folder import FOLDER, RESULTS_FILE
from orderproof.job.paths import OUTPUTS_FILE
from orderproof.job.spec import Job
from tests.support.commands import start

LONGEST_RUN_S = 300
VICTIMS = ("engine", "command", "all")
EARLY = 0.2  # share of the kills that fall between the start of a run and its first result
START_S = 6.0  # of a run, about


class GenerateCommand:
    """`orderproof generate JOB` in a process group of its own, until it ends or is killed."""

    def __init__(self, job: Job, log: Path, piped: Path | None = None) -> None:
        """`piped`: prompts that arrive through a pipe instead of from the job's file."""
        self.log, self._results = log, job.data_dir / FOLDER / RESULTS_FILE
        self._size_before = self._size()
        writer = subprocess.Popen(["cat", piped], stdout=subprocess.PIPE) if piped else None
        stream = ("--prompts", "-", "--linger", "0.2") if piped else ()
        self.process = start(job, "generate", job.name, *stream, log=log, stdin=writer.stdout if writer else None)
        if writer and writer.stdout:
            writer.stdout.close()  # the command has the only reading end of the pipe

    def wait_for_result(self) -> None:
        """Until this run has kept a result."""
        while self._size() <= self._size_before:
            assert self.process.poll() is None, f"the run ended before it was killed; its log is {self.log}"
            time.sleep(0.002)

    def kill(self, victim: str) -> None:
        """Kill an engine, the command, or every process of the run; none may be left."""
        family = self._family()
        engines = [child for child in family if _is_engine(child)]
        if victim == "engine" and engines:
            os.killpg(random.choice(engines).pid, signal.SIGKILL)  # one of several replicas
        else:
            self.process.kill()
            if victim == "all":
                for child in family:
                    child.kill()
        self.process.wait(LONGEST_RUN_S)
        _, alive = psutil.wait_procs(family, 10)
        assert not alive, f"{victim} was killed and left {alive} behind"

    def finish(self) -> None:
        """Wait for its end, which must be a good one."""
        assert self.process.wait(LONGEST_RUN_S) == 0, self.log.read_text()[-4000:]

    def _family(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def _size(self) -> int:
        return self._results.stat().st_size if self._results.exists() else 0


def kept_places(job: Job) -> list[int]:
    """Places with a whole line in the checkpoint."""
    path = job.data_dir / FOLDER / RESULTS_FILE
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [int(line.split(b" ")[2]) for line in lines]


def kill_many(job: Job, kills: int, log: Path, piped: Path | None = None) -> None:
    """Kill so many runs at random moments; what an earlier run kept must be there after each."""
    moments, kept = random.Random(kills), set[int]()
    for kill in range(kills):
        run = GenerateCommand(job, log, piped)
        if moments.random() < EARLY:
            time.sleep(moments.uniform(0, START_S))
        else:
            run.wait_for_result()
            time.sleep(moments.uniform(0, 0.25))
        run.kill(VICTIMS[kill % len(VICTIMS)])
        now = kept_places(job)
        assert len(set(now)) == len(now), "a prompt has two results"
        assert kept <= set(now), "a result that was kept is gone"
        assert not (job.data_dir / OUTPUTS_FILE).exists(), "outputs before all results are there"
        kept = set(now)


def _is_engine(process: psutil.Process) -> bool:
    try:
        return any("worker.py" in word for word in process.cmdline())
    except psutil.NoSuchProcess:
        return False
