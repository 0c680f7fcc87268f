"""Projects with one job `it`, and the library's own stories run on them without MLflow, DVC and pictures.

The engine is the stand-in for vLLM, which the job's engine settings name.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from orderproof.generate import steps as generate_steps
from orderproof.generate import story as generate_story
from orderproof.generate.generation import Batch, Generated
from orderproof.job.hashing import md5_of
from orderproof.job.params import load_job
from orderproof.job.paths import OUTPUTS_FILE
from orderproof.job.spec import EngineSpec, Job
from orderproof.orders.registry import make_order
from orderproof.prompts.openai_body import CHAT, COMPLETIONS
from orderproof.prompts.prompt import Prompt
from orderproof.prompts.tokenization import Tokenizer
from orderproof.reproduce import story as reproduce_story
from orderproof.reproduce.record import Reproduction, write_newest
from orderproof.runs.promotion import write_promotion
from orderproof.runs.promotion_record import Evidence
from orderproof.runs.run import Run
from orderproof.runs.run_store import write_run
from tests.support.interrupted import Interrupted
from tests.support.tiny_tokenizer import save_byte_tokenizer

STANDIN = Path(__file__).parents[1] / "standin"
MAX_NUM_SEQS, MAX_MODEL_LEN, MAX_TOKENS = 16, 64, 8
LABELS = 7
TRIAL = "20261129T144640Z-3f9a"


class Bytes(Tokenizer):
    """A tokenizer that loads in no time."""

    def __init__(self) -> None:
        """It needs no job."""

    def __call__(self, prompts: Sequence[Prompt]) -> tuple[list[str], list[list[int]]]:
        texts = [self.render(prompt) for prompt in prompts]
        return texts, [list(text.encode()) for text in texts]

    def render(self, prompt: Prompt) -> str:
        if isinstance(prompt.text, str):
            return prompt.text
        return "".join(message["content"] for message in prompt.text)


def make_project(
    root: Path, prompts: int, *, step_ms: float = 0, generate: dict[str, Any] | None = None, replicas: int = 1
) -> Job:
    """A job `it` of so many prompts with labels in no order, whose engine is the stand-in."""
    (root / "m").mkdir(parents=True)
    (root / "m" / "config.json").write_text('{"model_type": "qwen3_moe"}')
    save_byte_tokenizer(root / "m")
    env = {"PYTHONPATH": str(STANDIN), "STANDIN_STEP_MS": str(step_ms), "STANDIN_LOG": str(root / "generated.log")}
    engine: dict[str, Any] = {"args": {"max_num_seqs": MAX_NUM_SEQS, "max_model_len": MAX_MODEL_LEN}, "env": env}
    if replicas > 1:
        engine |= {"replicas": replicas, "env": {**env, "STANDIN_DEVICES": str(replicas)}}
    job = {"prompts": "data/it/prompts.jsonl", "model": "m", "engine": engine, "sampling": {"max_tokens": MAX_TOKENS}}
    params = {"defaults": {"measure": {"seed": 0}}, "jobs": {"it": job}, "generate": {"it": generate or {}}}
    (root / "params.yaml").write_text(json.dumps(params))  # JSON is YAML
    loaded = load_job(root / "params.yaml", "it")
    write_prompts(loaded, [f"prompt {k}" for k in range(prompts)])
    return loaded


def make_batch_job(folder: Path, requests: int, **generate: Any) -> Job:
    """A job whose prompts are a batch file of both endpoints; request 20 does not fit into the model."""
    job = make_project(folder, requests, generate=generate)
    rows = [
        {
            "custom_id": f"r{k}",
            "method": "POST",
            "url": CHAT if k % 2 else COMPLETIONS,
            "label": f"domain {k * 3 % 7}",
            "body": {"max_tokens": 1 + k % 5, "n": 1 + k % 3, **_words(k)},
        }
        for k in range(requests)
    ]
    job.prompts_path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return job


def _words(k: int) -> dict[str, Any]:
    words = "x" * 100 if k == 20 else f"prompt {k}"
    return {"messages": [{"role": "user", "content": words}]} if k % 2 else {"prompt": words}


def make_real_project(root: Path, model: Path, spec: EngineSpec, sampling: dict[str, Any], texts: Sequence[str]) -> Job:
    """A job `it` on a real engine."""
    engine = {"args": spec.args, "env": spec.env}
    job = {"prompts": "data/it/prompts.jsonl", "model": str(model), "engine": engine, "sampling": sampling}
    root.mkdir(parents=True)
    (root / "params.yaml").write_text(json.dumps({"defaults": {}, "jobs": {"it": job}}))
    loaded = load_job(root / "params.yaml", "it")
    write_prompts(loaded, texts)
    return loaded


def edit_job(job: Job, **changes: Any) -> Job:
    """The job after an edit of params.yaml; None takes a key out."""
    path = job.root / "params.yaml"
    params = json.loads(path.read_text())
    body = params["jobs"][job.name] | changes
    params["jobs"][job.name] = {key: value for key, value in body.items() if value is not None}
    path.write_text(json.dumps(params))
    return load_job(path, job.name)


def write_prompts(job: Job, texts: Sequence[str]) -> None:
    job.prompts_path.parent.mkdir(parents=True, exist_ok=True)
    with open(job.prompts_path, "w") as sink:
        for k, text in enumerate(texts):
            sink.write(json.dumps({"id": f"p{k}", "text": text, "label": f"domain {k * 3 % LABELS}"}) + "\n")


def promote_label_order(job: Job, window: int | None = None) -> None:
    """Pin the label order, as a trial's promotion would."""
    rows = [json.loads(line) for line in job.prompts_path.read_text().splitlines()]
    prompts = [{"id": row.get("custom_id"), **row} for row in rows]
    spec = job.order.model_copy(update={"method": "label", "window": window})
    order = make_order(spec, prompts, md5_of(job.prompts_path))
    write_promotion(job, order, [prompt["id"] for prompt in prompts], Evidence(trial=TRIAL))


def _keep_record(job: Job, run: Run, compared: Reproduction) -> Run:
    write_newest(job, compared)
    write_run(job, run)
    return run


GENERATE = generate_story.Steps(
    report=lambda job, run: run, record=lambda job, run, inputs: run, accelerator=contextlib.nullcontext
)
REPRODUCE = reproduce_story.Steps(
    generation=GENERATE, report=_keep_record, record=lambda job, run, compared, inputs: run
)


def generate(job: Job, *, run_with: generate_story.Steps = GENERATE, **how: Any) -> Run:
    """The job itself. `how`: as the story takes it."""
    return generate_story.generate(job, run_with=run_with, **how)


def reproduce(job: Job, *, run_with: reproduce_story.Steps = REPRODUCE, **how: Any) -> Run:
    """The job again beside its outputs; data/it/reproduced.json has how they compare."""
    return reproduce_story.reproduce(job, run_with=run_with, **how)


def generate_and(job: Job, happens: Callable[[Any], None], after: int = 100, **how: Any) -> Run:
    """`generate`, and something that happens to its engine after so many answers."""
    return generate(job, run_with=interrupted(happens, after), **how)


def reproduce_and(job: Job, happens: Callable[[Any], None], after: int = 100, **how: Any) -> Run:
    """`reproduce`, likewise."""
    return reproduce(job, run_with=replace(REPRODUCE, generation=interrupted(happens, after)), **how)


def interrupted(happens: Callable[[Any], None], after: int) -> generate_story.Steps:
    """Steps of a generation that is interrupted."""

    def step(batch: Batch, engine: Any, *rest: Any) -> Generated:
        return generate_steps.generate(batch, Interrupted(engine, after, happens), *rest)

    return replace(GENERATE, generate=step)


def count(run: Run, *names: str) -> tuple[int, ...]:
    """Some figures of a run that are whole numbers."""
    values = [run.figure(name) for name in names]
    return tuple(-1 if value is None else int(value) for value in values)


def outputs(job: Job) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(job.data_dir / OUTPUTS_FILE).to_pylist()
    return rows


def output_ids(job: Job) -> list[str]:
    return [row["id"] for row in outputs(job)]


def generated_places(job: Job) -> NDArray[np.int64]:
    """Places in the file of all that the engine ever finished, in the order in which it did."""
    log = job.root / "generated.log"
    return np.array([int(line) for line in log.read_text().split("\n")[:-1]] if log.exists() else [], np.int64)
