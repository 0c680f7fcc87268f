"""A flow as a command: options from its parameters, the answer as text, and a user's mistake as one message."""

from __future__ import annotations

import importlib
import json
import logging
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect import Flow
from prefect.context import FlowRunContext
from prefect.logging.handlers import APILogHandler

from orderproof.doctor import services
from orderproof.job.errors import OrderproofError
from orderproof.job.params import load_job
from orderproof.runs.run import Run
from tasks.terminal import RunPageHandler, run_as_command
from tests.conftest import ROOT
from tests.support.run_maker import make_job_run

FLOWS = {
    "capture": "capture_routes",
    "generate": "generate_outputs",
    "lossy": "compare_routings",
    "measure": "measure_order",
    "reproduce": "reproduce_outputs",
}
JOB = {"prompts": "p.jsonl", "model": "m", "engine": {"args": {"max_num_seqs": 8}}}


class StandIn:
    """A flow without Prefect."""

    def __init__(self, function: Callable[..., Run]) -> None:
        self.fn = function

    def __call__(self, *arguments: Any, **parameters: Any) -> Run:
        return self.fn(*arguments, **parameters)


def command(monkeypatch: pytest.MonkeyPatch, flow: Any, *words: str) -> int:
    """Run a flow as a command. Returns its exit status."""
    monkeypatch.setattr(sys, "argv", ["flow", *words])
    with pytest.raises(SystemExit) as ended:
        run_as_command(flow)
    return int(ended.value.code or 0)


@pytest.fixture
def params(tmp_path: Path) -> Path:
    path = tmp_path / "params.yaml"
    path.write_text(json.dumps({"defaults": {}, "jobs": {"it": JOB}}))
    return path


@pytest.mark.parametrize(("module", "name"), FLOWS.items())
def test_every_flow_has_an_option_for_each_of_its_parameters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], module: str, name: str
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    flow: Flow[..., Run] = getattr(importlib.import_module(f"flows.{module}"), name)
    assert command(monkeypatch, flow, "--help") == 0
    shown = re.sub("\x1b\\[[0-9;]*m", "", capsys.readouterr().out)
    for parameter in flow.parameters.properties:
        assert (f"--{parameter.replace('_', '-')}" in shown) == (parameter != "job")


def test_the_run_is_printed_for_a_person(
    params: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[tuple[str, int]] = []

    def measure(job: str, params: str = "params.yaml", blocks: int = 5) -> Run:
        """Measure."""
        given.append((job, blocks))
        return make_job_run(load_job(Path(params), job), sentence="it: done", next_command="orderproof status")

    assert command(monkeypatch, StandIn(measure), "it", "--params", str(params), "--blocks", "7") == 0
    assert given == [("it", 7)]
    assert capsys.readouterr().out.splitlines() == ["it: done", "next: orderproof status"]


def test_a_mistake_of_the_user_is_one_message_and_no_traceback(
    params: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(job: str) -> Run:
        """Measure."""
        raise OrderproofError("the prompts are missing. Put them there")

    assert command(monkeypatch, StandIn(measure), "it") == 1
    written = capsys.readouterr()
    assert (written.out, written.err) == ("", "orderproof: the prompts are missing. Put them there\n")


def test_a_server_that_is_gone_is_one_message_too(
    params: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(job: str) -> Run:
        """Measure."""
        raise httpx.ConnectError("Connection refused")

    assert command(monkeypatch, StandIn(measure), "it") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("orderproof: the Prefect server does not answer (Connection refused)")


def test_an_interrupt_that_also_ended_prefects_server_is_told_as_one(
    params: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(job: str) -> Run:
        """Measure."""
        try:
            raise KeyboardInterrupt
        finally:
            raise httpx.ConnectError("Connection refused")

    assert command(monkeypatch, StandIn(measure), "it") == 130
    assert "interrupted; what was finished is kept" in capsys.readouterr().err


def test_a_server_that_takes_connections_and_never_answers_is_one_message_before_the_flow_begins(
    params: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(job: str) -> Run:
        """Measure."""
        raise AssertionError("the flow began")

    monkeypatch.setattr(services, "SERVER_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{listening.getsockname()[1]}/api")
        assert command(monkeypatch, StandIn(measure), "it") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "does not answer (no answer within" in line
    assert "unset PREFECT_API_URL" in line


@pytest.mark.parametrize(("server", "retries"), [("", 1), ("http://127.0.0.1:4200/api", 3)])
def test_prefect_reads_the_settings_of_a_flow_that_is_a_command(tmp_path: Path, server: str, retries: int) -> None:
    show = (
        "import flows.measure, prefect.settings as s; s = s.get_current_settings(); "
        "print(s.server.ephemeral.startup_timeout_seconds, s.api.request_timeout, s.client.max_retries)"
    )
    foreign = ("PREFECT_", "COVERAGE")
    env = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    env |= {"PREFECT_HOME": str(tmp_path), "PREFECT_API_URL": server, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", show], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["180", "20.0", str(retries)]


def test_the_librarys_lines_are_for_the_page_of_a_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    monkeypatch.setattr(APILogHandler, "emit", lambda _, record: sent.append(record.getMessage()))

    def log(message: str) -> None:
        RunPageHandler().emit(logging.LogRecord("orderproof", logging.INFO, "", 0, message, None, None))

    log("outside")
    monkeypatch.setattr(FlowRunContext, "get", lambda: object())
    log("inside")
    assert sent == ["inside"]


@pytest.mark.parametrize("name", ["prefect.flow_runs", "prefect.task_runs"])
@pytest.mark.parametrize(("error", "kept"), [(OrderproofError("a mistake"), False), (ZeroDivisionError(), True)])
def test_prefect_logs_the_traceback_of_a_defect_alone(name: str, error: Exception, kept: bool) -> None:
    logger = logging.getLogger(name)
    record = logging.LogRecord(name, logging.ERROR, "", 0, "failed", None, (type(error), error, None))
    assert all(one.filter(record) for one in logger.filters if isinstance(one, logging.Filter))
    assert (record.exc_info is not None) == kept
