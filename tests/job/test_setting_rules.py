"""Settings of a job that do not go together are refused before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.params_files import engine_with, job_with, refusal, refusal_of_job


@pytest.mark.parametrize(
    "args", [{}, {"max_num_seqs": None}, {"max_num_seqs": 0}, {"max_num_seqs": "16"}, {"max_num_seqs": True}]
)
def test_a_job_must_state_its_batch_size(tmp_path: Path, args: dict[str, Any]) -> None:
    assert "jobs.it.engine.args.max_num_seqs must be given" in refusal_of_job(tmp_path, engine={"args": args})


def test_a_job_without_an_engine_is_refused_with_what_it_must_state(tmp_path: Path) -> None:
    message = refusal(tmp_path, {"jobs": {"it": {"prompts": "p", "model": "m"}}})
    assert "jobs.it.engine" in message
    assert "max_num_seqs" in message


@pytest.mark.parametrize("key", ["model", "trust_remote_code"])
def test_what_the_project_sets_cannot_be_set_in_its_args(tmp_path: Path, key: str) -> None:
    message = refusal_of_job(tmp_path, engine={"args": {"max_num_seqs": 16, key: True}})
    assert f"jobs.it.engine.args.{key} cannot be set here" in message


@pytest.mark.parametrize("samples", [0, -1, 2.0, True, None, "4", 2**31])
def test_samples_are_counted_in_whole_numbers_from_one(tmp_path: Path, samples: Any) -> None:
    assert "jobs.it.sampling.n must be a whole number" in refusal_of_job(tmp_path, sampling={"n": samples})


@pytest.mark.parametrize("key", ["prompt_logprobs", "output_kind"])
def test_sampling_that_would_be_dropped_is_refused(tmp_path: Path, key: str) -> None:
    assert f"jobs.it.sampling.{key} is not supported" in refusal_of_job(tmp_path, sampling={key: 1})


def test_adapters_are_relative_to_the_project_and_need_an_engine_that_takes_them(tmp_path: Path) -> None:
    modules = {"tone": "adapters/tone", "far": "/adapters/far"}
    args = {"max_num_seqs": 16, "enable_lora": True}
    job = job_with(tmp_path, engine={"args": args, "lora_modules": modules})
    assert job.adapters == {"tone": tmp_path / "adapters/tone", "far": Path("/adapters/far")}
    message = refusal_of_job(tmp_path, engine={"args": {"max_num_seqs": 16}, "lora_modules": modules})
    assert "jobs.it.engine.args.enable_lora must be true" in message


def test_batch_invariance_of_random_draws_without_a_seed_is_refused(tmp_path: Path) -> None:
    asked = engine_with(batch_invariant=True)
    assert "set sampling.temperature to 0, or give sampling.seed" in refusal_of_job(tmp_path, **asked)
    assert job_with(tmp_path, **asked, sampling={"temperature": 0.7, "seed": 1}).engine.batch_invariant


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"replicas": 0}, "jobs.it.engine.replicas: Input should be greater than or equal to 1"),
        ({"replicas": 2, "devices": [[0]]}, "jobs.it.engine.devices must list the devices of each of the 2 replicas"),
        ({"replicas": 2, "devices": [[0], []]}, "jobs.it.engine.devices must list the devices of each"),
        ({"replicas": 2, "devices": [[0], [1, 0]]}, "jobs.it.engine.devices: 0 is listed twice"),
        ({"args": {"max_num_seqs": 1, "tensor_parallel_size": "2"}}, "tensor_parallel_size must be a whole number"),
        ({"args": {"max_num_seqs": 1, "data_parallel_size": 2}}, "set engine.replicas"),
    ],
)
def test_devices_that_cannot_be_shared_are_refused_before_anything_starts(
    tmp_path: Path, changes: Any, message: str
) -> None:
    assert message in refusal_of_job(tmp_path, engine={"args": {"max_num_seqs": 16}, **changes})


def test_a_list_of_prompts_is_refused_where_dvc_could_run_no_job_with_it(tmp_path: Path) -> None:
    (tmp_path / "dvc.yaml").write_text("deps: ['${item.prompts}']")
    assert job_with(tmp_path, prompts=["a.jsonl", "b.jsonl"]).prompts_list == ("a.jsonl", "b.jsonl")
    (tmp_path / ".dvc").mkdir()
    assert "jobs.it.prompts is a list" in refusal_of_job(tmp_path, prompts=["a.jsonl", "b.jsonl"])
    assert job_with(tmp_path, prompts="*.jsonl").prompts == "*.jsonl"
    (tmp_path / "dvc.yaml").write_text("deps: [a.jsonl, b.jsonl]")
    assert job_with(tmp_path, prompts=["a.jsonl", "b.jsonl"])
