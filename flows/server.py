"""Prefect's temporary server must not outlive the process that it was started for, nor end before it.

In: nothing. Out: a watcher that ends the server when this process dies, however it dies. Prefect ends its server
itself when a run ends; after a SIGKILL nobody would, and the server would hold its memory and its pipes for ever.
Ctrl-C reaches every process of a terminal: without its server an interrupted run would ask for it for minutes.
"""

from __future__ import annotations

import signal
import subprocess
import sys

# Standard input ends when the process that holds its other end dies. A number may belong to somebody else by then.
WATCH = """
import os, pathlib, signal, sys
sys.stdin.read()
command = pathlib.Path("/proc", sys.argv[1], "cmdline")
if not pathlib.Path("/proc/self").exists() or command.exists() and b"prefect.server" in command.read_bytes():
    os.kill(int(sys.argv[1]), signal.SIGTERM)
"""

_watchers: list[subprocess.Popen[bytes]] = []  # held: a collected Popen closes its pipe, which would end the server


def spare_server_the_terminal_s_interrupt() -> None:
    """If a temporary server is started, SIGINT will be blocked in it; Prefect and the watcher end it with SIGTERM.

    Prefect starts it in this process group and has no setting for that; a signal mask goes on to the child.
    """
    from prefect.settings import get_current_settings

    if get_current_settings().api.url:
        return
    from prefect.server.api.server import SubprocessASGIServer

    server = SubprocessASGIServer()  # the one that Prefect will start
    start = server._run_uvicorn_command

    def started() -> subprocess.Popen[bytes]:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    server._run_uvicorn_command = started  # type: ignore[method-assign]


def end_server_with_this_process() -> None:
    """Watch over the temporary server, if Prefect started one in this process. Calling it again changes nothing."""
    if _watchers:
        return
    server = sys.modules.get("prefect.server.api.server")  # imported by whoever starts one, and seconds of work
    for started in server.SubprocessASGIServer._instances.values() if server else ():
        if started.server_process is not None:
            command = [sys.executable, "-S", "-c", WATCH, str(started.server_process.pid)]
            quiet = subprocess.DEVNULL
            _watchers.append(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True)
            )
