"""Does the job still give the outputs that it gave? All of it again, in the pinned order, beside its baseline.

In: the name of a job in params.yaml that has outputs. Out: reports/baseline/<job>/baseline.json, a `Reproduction`, and
what MLflow, DVC and Prefect hold of it. data/<job>/outputs.parquet is only read. A run that was killed goes on where it
was; works with and without a Prefect server.

    orderproof reproduce six-domains
"""

from __future__ import annotations

import datetime
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path

from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from flows.baseline_reporting import announce_changes, announce_engine, announce_reproduction
from flows.batch import choose_order, generate_pending, validate
from flows.reporting import flow_run_id
from flows.server import end_server_with_this_process
from orderproof.engines.protocol import EngineInfo
from orderproof.generate import generation
from orderproof.generate.generation import Batch, Generated
from orderproof.generate.lock import only_run
from orderproof.job.params import load_job
from orderproof.job.spec import Job
from orderproof.prompts.source import PromptSource
from orderproof.prompts.tokenization import Tokenizer
from orderproof.reproduce import baseline_file, reproduction
from orderproof.reproduce import recording as baseline_recording
from orderproof.reproduce.baseline_file import Baseline
from orderproof.reproduce.record import Reproduction
from orderproof.runs import recording


@flow(name="reproduce-baseline", flow_run_name="reproduce {job}", persist_result=False)
def reproduce_baseline(job: str, params: str = "params.yaml", restart: bool = False) -> Reproduction:
    """Generate a job's outputs again and compare them with those that it has.

    Args:
        job: its name in params.yaml.
        params: path of params.yaml.
        restart: begin anew; an unfinished reproduction's results are moved aside, never deleted.
    """
    end_server_with_this_process()
    this, started = load_job(Path(params), job), datetime.datetime.now(datetime.UTC)
    with ExitStack() as held:
        held.enter_context(_only_reproduction(this))
        inputs = recording.inputs_of(this)
        source = held.enter_context(validate(this))
        baseline = find_baseline(this, source)
        tokenizer = Tokenizer(this)
        order, why = choose_order(this, source, tokenizer, baseline_file.FOLDER)
        batch = generation.begin(this, source, order, tokenizer, restart=restart, folder=baseline_file.FOLDER)
        held.enter_context(batch.checkpoint)
        announce_changes(batch, baseline)
        batch, generated, engine = generate_pending(batch, ready=partial(announce_engine, baseline))
        made = report(this, compare(batch, baseline, why, generated, engine, started))
        batch.checkpoint.discard()  # only now: a comparison that is nowhere on record is made again from it
    return announce_reproduction(record(this, made, inputs), this)


@task(name="baseline", task_run_name="find the baseline", cache_policy=NO_CACHE)
def find_baseline(job: Job, source: PromptSource) -> Baseline:
    """The outputs that the job has, if they are of these prompts."""
    return baseline_file.find_baseline(job, source)


@task(name="compare", task_run_name="compare with the baseline", cache_policy=NO_CACHE)
def compare(
    batch: Batch,
    baseline: Baseline,
    why: str,
    generated: Generated,
    engine: EngineInfo | None,
    started: datetime.datetime,
) -> Reproduction:
    """Output by output, and scores where there is a scorer."""
    return reproduction.compare(batch, baseline, why, generated, engine, started)


@task(name="report", task_run_name="draw the picture, tell MLflow", cache_policy=NO_CACHE)
def report(job: Job, made: Reproduction) -> Reproduction:
    """The record and its picture; MLflow now, or later where it is down."""
    return baseline_recording.report(job, made, flow_run_id())


@task(name="record", task_run_name="record in DVC", cache_policy=NO_CACHE)
def record(job: Job, made: Reproduction, inputs: recording.Inputs) -> Reproduction:
    """The comparison in DVC, and published as far as the job asks for it."""
    return baseline_recording.record(job, made, inputs)


def _only_reproduction(job: Job) -> AbstractContextManager[None]:
    wait = job.generate.when_running == "wait"
    return only_run(job.data_dir, wait=wait, waiting=_waiting, lock_file=baseline_file.LOCK_FILE)


def _waiting(holder: str) -> None:
    get_run_logger().info("%s reproduces this job: waiting for it to end", holder)
