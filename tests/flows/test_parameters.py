"""Every flow gives its parameters to the library's story, which runs with that flow's tasks."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from orderproof.job.spec import Job
from orderproof.prompts.stream import LINGER_S, Stream
from orderproof.runs.run import Run
from tests.support.run_maker import make_job_run

JOB = {"prompts": "p.jsonl", "model": "m", "engine": {"args": {"max_num_seqs": 8}}}
STREAM = {"prompts": "-", "follow": 5.0, "linger": 0.5, "output": "out.jsonl"}


@pytest.mark.parametrize(
    ("module", "flow", "story", "given", "handed_on"),
    [
        ("measure", "measure_order", "measure", {}, {"aa": False, "only_if_changed": False}),
        ("measure", "measure_order", "measure", {"aa": True}, {"aa": True, "only_if_changed": False}),
        ("measure", "measure_order", "measure", {"only_if_changed": True}, {"aa": False, "only_if_changed": True}),
        ("generate", "generate_outputs", "generate", {}, {"restart": False, "stream": None, "output": None}),
        (
            "generate",
            "generate_outputs",
            "generate",
            STREAM,
            {"restart": False, "stream": Stream("-", 5.0, 0.5), "output": "out.jsonl"},
        ),
        (
            "generate",
            "generate_outputs",
            "generate",
            {"restart": True, "prompts": "grows.jsonl"},
            {"restart": True, "stream": Stream("grows.jsonl", None, LINGER_S), "output": None},
        ),
        ("reproduce", "reproduce_outputs", "reproduce", {"restart": True}, {"restart": True}),
        ("lossy", "compare_routings", "compare", {"k0": 3, "blocks": 7}, {"k0": 3, "blocks": 7}),
        (
            "capture",
            "capture_routes",
            "capture",
            {"prompts": 64, "seed": 1, "time_steps": False},
            {"prompts": 64, "seed": 1, "time_steps": False},
        ),
    ],
)
def test_a_flow_hands_on_what_it_is_given(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    flow: str,
    story: str,
    given: dict[str, Any],
    handed_on: dict[str, Any],
) -> None:
    (tmp_path / "params.yaml").write_text(json.dumps({"defaults": {}, "jobs": {"it": JOB}}))
    flows = importlib.import_module(f"flows.{module}")
    called: list[tuple[str, dict[str, Any]]] = []
    published: list[Run] = []

    def run(job: Job, **parameters: Any) -> Run:
        called.append((job.name, parameters))
        return make_job_run(job)

    def publish(job: Job, run: Run) -> Run:
        published.append(run)
        return run

    monkeypatch.setattr(flows, story, run)
    monkeypatch.setattr(flows, "publish_run", publish)
    answer = getattr(flows, flow).fn("it", params=str(tmp_path / "params.yaml"), **given)
    steps = importlib.import_module(f"tasks.{module}").STEPS
    assert called == [("it", {**handed_on, "run_with": steps})]
    assert published == [answer]
