"""Batches on the stand-in for vLLM: a project in a folder, and a run of its job without Prefect.

Run as a script it is the process that the kill tests kill: `python batches.py FOLDER [STREAM [OUTPUT]]`.
"""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from orderproof.engines.protocol import Engine
from orderproof.engines.start import create_engine
from orderproof.generate import checkpoint_folder, generation, select_order, windowed_ordering
from orderproof.generate.delivery import Delivered, deliver
from orderproof.generate.generation import Batch, Generated
from orderproof.generate.lock import only_run
from orderproof.generate.output_lines import OutputLines, open_output
from orderproof.generate.record import BatchRun, record_of
from orderproof.job.files import write_atomically
from orderproof.job.hashing import md5_of
from orderproof.job.params import load_job
from orderproof.job.spec import EngineSpec, Job
from orderproof.orders.order_table import write_order
from orderproof.orders.registry import make_order
from orderproof.prompts.prompt import Prompt
from orderproof.prompts.request_defaults import RequestDefaults
from orderproof.prompts.source import PromptSource
from orderproof.prompts.stream import Stream
from orderproof.reproduce import baseline_file
from orderproof.reproduce.record import Reproduction
from orderproof.reproduce.reproduction import compare
from orderproof.runs.promotion import ORDER_FILE, RECORD_FILE
from orderproof.runs.promotion_record import Promotion

DRIVER = Path(__file__)
STANDIN = Path(__file__).parents[1] / "standin"
MAX_NUM_SEQS, MAX_MODEL_LEN, MAX_TOKENS = 16, 64, 8
LABELS = 7


class Bytes:
    """A tokenizer that loads in no time."""

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
    env = {"PYTHONPATH": str(STANDIN), "STANDIN_STEP_MS": str(step_ms), "STANDIN_LOG": str(root / "generated.log")}
    engine: dict[str, Any] = {"args": {"max_num_seqs": MAX_NUM_SEQS, "max_model_len": MAX_MODEL_LEN}, "env": env}
    if replicas > 1:
        engine |= {"replicas": replicas, "env": {**env, "STANDIN_DEVICES": str(replicas)}}
    job = {"prompts": "data/it/prompts.jsonl", "model": "m", "engine": engine, "sampling": {"max_tokens": MAX_TOKENS}}
    params = {"defaults": {"measure": {"seed": 0}}, "jobs": {"it": job}, "generate": {"it": generate or {}}}
    (root / "params.yaml").write_text(json.dumps(params))  # JSON is YAML
    made = load_job(root / "params.yaml", "it")
    write_prompts(made, [f"prompt {k}" for k in range(prompts)])
    return made


def make_real_project(root: Path, model: Path, spec: EngineSpec, sampling: dict[str, Any], texts: Sequence[str]) -> Job:
    """A job `it` on a real engine."""
    engine = {"args": spec.args, "env": spec.env}
    job = {"prompts": "data/it/prompts.jsonl", "model": str(model), "engine": engine, "sampling": sampling}
    root.mkdir(parents=True)
    (root / "params.yaml").write_text(json.dumps({"defaults": {}, "jobs": {"it": job}}))
    made = load_job(root / "params.yaml", "it")
    write_prompts(made, texts)
    return made


def write_prompts(job: Job, texts: Sequence[str]) -> None:
    job.prompts_path.parent.mkdir(parents=True, exist_ok=True)
    with open(job.prompts_path, "w") as sink:
        for k, text in enumerate(texts):
            sink.write(json.dumps({"id": f"p{k}", "text": text, "label": f"domain {k * 3 % LABELS}"}) + "\n")


def promote_label_order(job: Job, window: int | None = None) -> None:
    """Pin the label order, as a trial's promotion would."""
    rows = [json.loads(line) for line in job.prompts_path.read_text().splitlines()]
    prompts = [{"id": row.get("custom_id"), **row} for row in rows]
    ids = [prompt["id"] for prompt in prompts]
    order = make_order(
        job.order.model_copy(update={"method": "label", "window": window}), prompts, md5_of(job.prompts_path)
    )
    write_order(job.data_dir / ORDER_FILE, order, ids)
    record = Promotion(
        job=job.name,
        promoted=True,
        order=order.record(),
        order_md5=md5_of(job.data_dir / ORDER_FILE),
        prompts=len(ids),
        trial="20261129T144640Z-3f9a",
        created_utc="2026-11-29T15:00:00+00:00",
    )
    write_atomically(job.data_dir / RECORD_FILE, record.model_dump_json())


Start = Callable[[Job], AbstractContextManager[Engine]]


def run_batch(job: Job, **how: Any) -> tuple[Generated, Delivered]:
    """What flows/batch.py does, without Prefect, trackers and DVC."""
    generated, delivered, _ = recorded_batch(job, **how)
    return generated, delivered


def recorded_batch(
    job: Job,
    *,
    restart: bool = False,
    start: Start | None = None,
    stream: Stream | None = None,
    output: str | None = None,
) -> tuple[Generated, Delivered, BatchRun]:
    """The same, with the record of the run."""
    started = datetime.datetime.now(datetime.UTC)
    with ExitStack() as held:
        held.enter_context(only_run(job.data_dir, wait=job.generate.when_running == "wait"))
        batch, why = begin_stream(job, stream, restart) if stream else begin(job, restart)
        held.enter_context(batch.source)
        held.enter_context(batch.checkpoint)
        lines = (
            OutputLines(batch.checkpoint, held.enter_context(open_output(output, batch.source.path, job.prompts_path)))
            if output
            else None
        )
        generated, engine = Generated(), None
        if batch.unfinished:
            with (start or standin)(job) as engine:
                generated = generation.generate(batch, engine, kept=lines.add if lines else None)
        batch = generation.complete(batch)
        held.enter_context(batch.file)
        delivered = deliver(batch, job.root / "reports" / "validation" / job.name)
        if stream:
            job = windowed_ordering.store_streamed_prompts(job, batch.file.path)
        run = record_of(batch, why, generated, engine.info if engine else None, delivered, started)
        batch.checkpoint.discard()
        return generated, delivered, run


def reproduce(job: Job, *, start: Callable[[Job], AbstractContextManager[Engine]] | None = None) -> Reproduction:
    """What flows/baseline.py does, without Prefect, trackers and DVC."""
    tokenizer: Any = Bytes()
    started = datetime.datetime.now(datetime.UTC)
    with ExitStack() as held:
        held.enter_context(only_run(job.data_dir, wait=False, lock_file=baseline_file.LOCK_FILE))
        source = held.enter_context(PromptSource(job.prompts_path, RequestDefaults(job)))
        baseline = baseline_file.find_baseline(job, source)
        kept = checkpoint_folder.read_order(job.data_dir / baseline_file.FOLDER)
        order, why = select_order.select_order(job, source, lambda: tokenizer, kept)
        batch = generation.begin(job, source, order, tokenizer, folder=baseline_file.FOLDER)
        held.enter_context(batch.checkpoint)
        generated, engine = Generated(), None
        if batch.unfinished:
            with (start or standin)(job) as engine:
                generated = generation.generate(batch, engine)
        batch = generation.complete(batch)
        made = compare(batch, baseline, why, generated, engine.info if engine else None, started)
        batch.checkpoint.discard()
    return made


def begin(job: Job, restart: bool) -> tuple[Batch, str]:
    tokenizer: Any = Bytes()
    source = PromptSource(job.prompts_path, RequestDefaults(job))
    kept = checkpoint_folder.read_order(job.data_dir / checkpoint_folder.FOLDER)
    order, why = select_order.select_order(job, source, lambda: tokenizer, kept)
    return generation.begin(job, source, order, tokenizer, restart=restart), why


def begin_stream(job: Job, stream: Stream, restart: bool) -> tuple[Batch, str]:
    tokenizer: Any = Bytes()
    order, why = select_order.select_stream_order(job)
    return generation.begin_stream(job, stream, order, tokenizer, restart=restart), why


def standin(job: Job) -> Any:
    return create_engine(job.engine, job.model_path, job.sampling, job.root / "engine.log", k0=job.lossy_k0)


def generated_places(job: Job) -> np.ndarray:
    """Places in the file of all that the engine ever finished, in the order in which it did."""
    log = job.root / "generated.log"
    return np.array([int(line) for line in log.read_text().split("\n")[:-1]] if log.exists() else [], np.int64)


if __name__ == "__main__":
    source = sys.argv[2] if len(sys.argv) > 2 else None
    run_batch(
        load_job(Path(sys.argv[1]) / "params.yaml", "it"),
        stream=Stream(source, linger_s=0.2) if source else None,
        output=sys.argv[3] if len(sys.argv) > 3 else None,
    )
