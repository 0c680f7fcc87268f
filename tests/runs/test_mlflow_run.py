"""A run and its children in a real MLflow on a real SQLite file: sent once, completed later, never doubled."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run as MlflowEntity

from orderproof.job.spec import Job
from orderproof.runs.mlflow_client import connected, tracking_uri
from orderproof.runs.mlflow_run import LONGEST_PARAMETER_CHARS, Child, Tracking, epoch_ms, find_runs, send_run
from orderproof.runs.run import Run
from orderproof.runs.run_store import write_run
from tests.support.run_maker import make_basis, make_job_run
from tests.support.trial_maker import make_job

NOON_MS = 1_795_953_600_000
SERIES = tuple(round(10 + k / 96, 3) for k in range(96))
CHILDREN = tuple(
    Child(
        key=f"b{block:02d}-{arm}",
        name=f"b{block:02d} {arm}",
        start_ms=NOON_MS + 1_000 * turn,
        end_ms=NOON_MS + 1_000 * turn + 900,
        tags={"arm": arm},
        params={"arm": arm},
        metrics={"throughput_req_s": 12.5, "cost_per_1k_requests": None},
        series={"step_time_ms": SERIES},
    )
    for turn, (block, arm) in enumerate((block, arm) for block in (1, 2) for arm in ("control", "candidate"))
)
TRACKING = Tracking(name="a name", tags={"verdict": "promote", "nothing": None}, params={"k": 4}, children=CHILDREN)


@pytest.fixture(autouse=True)
def local_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture(scope="module")
def job(tracked_root: Path) -> Job:
    return make_job(tracked_root)


def kept(job: Job, run_id: str, **changes: object) -> Run:
    """A run on disk."""
    run = make_job_run(job, run_id, prefect_run="flow-1", dvc_revision="abc123", **changes)
    write_run(job, run)
    return run


def held(job: Job, run: Run) -> tuple[MlflowEntity, list[MlflowEntity]]:
    """What MLflow has of a run: the parent, and its children in time order."""
    client = MlflowClient(tracking_uri(job.root))
    experiment = client.get_experiment_by_name(f"orderproof/{job.name}")
    found = client.search_runs([experiment.experiment_id], f"tags.`orderproof.run` = '{run.verb}/{run.id}'")
    parents = [entity for entity in found if "mlflow.parentRunId" not in entity.data.tags]
    assert len(parents) == 1
    children = [entity for entity in found if entity.data.tags.get("mlflow.parentRunId") == parents[0].info.run_id]
    assert len(children) == len(found) - 1
    return parents[0], sorted(children, key=lambda entity: entity.info.start_time)


@pytest.fixture(scope="module")
def sent(job: Job) -> tuple[Run, MlflowEntity, list[MlflowEntity]]:
    run = kept(job, "20261129T144640Z-0001", reason="The reason.")
    folder = job.paths.run_dir("generate", run.id)
    (folder / "steps.png").write_bytes(b"png")
    (folder / "page.html").write_text("<html>")
    (folder / "evidence.json").write_text("{}")
    (folder / "private.json").write_text("{}")
    (folder / "tokens").mkdir()
    (folder / "tokens" / "b01-control.parquet").write_bytes(b"text")
    files = [folder / "evidence.json", folder / "missing.json"]
    parent = send_run(job, run, replace(TRACKING, files=files, text_folder=folder / "tokens"))
    found, children = held(job, run)
    assert found.info.run_id == parent
    return run, found, children


def test_a_run_is_a_parent_with_its_children(sent: tuple[Run, MlflowEntity, list[MlflowEntity]]) -> None:
    run, parent, children = sent
    assert [child.data.tags["orderproof.child"] for child in children] == [child.key for child in CHILDREN]
    assert {entity.info.status for entity in (parent, *children)} == {"FINISHED"}
    assert (parent.info.run_name, [child.info.run_name for child in children]) == (
        "a name",
        [child.name for child in CHILDREN],
    )
    assert (parent.info.start_time, parent.info.end_time) == (epoch_ms(run.started_utc), epoch_ms(run.ended_utc))
    assert [(child.info.start_time, child.info.end_time) for child in children] == [
        (child.start_ms, child.end_ms) for child in CHILDREN
    ]


def test_the_parent_holds_the_figures_and_what_the_run_rests_on(
    sent: tuple[Run, MlflowEntity, list[MlflowEntity]],
) -> None:
    run, parent, _ = sent
    assert parent.data.metrics == {"gain": 0.06, "gain_low": 0.05, "gain_high": 0.07, "wall_s": 600.0}
    tags, params = parent.data.tags, parent.data.params
    assert (tags["verb"], tags["answer"], tags["toy"]) == ("generate", "complete", "no")
    assert (tags["prefect_run"], tags["dvc_revision"], tags["verdict"]) == ("flow-1", "abc123", "promote")
    assert (tags["dataset_md5"], tags["model"]) == (run.basis.dataset_md5, run.basis.model)
    assert (tags["model_fingerprint"], tags["order_sha256"]) == (run.basis.model_fingerprint, "0a1b")
    assert tags["mlflow.note.content"] == f"{run.sentence} The reason."
    assert not {"nothing", "lossy"} & tags.keys()
    assert (params["order"], params["k"]) == ("label", "4")
    assert '"max_num_seqs":8' in params["engine.args"]


def test_every_run_has_the_prompts_as_its_dataset(sent: tuple[Run, MlflowEntity, list[MlflowEntity]]) -> None:
    run, parent, children = sent
    for entity in (parent, *children):
        (held_input,) = entity.inputs.dataset_inputs
        assert held_input.dataset.digest == run.basis.dataset_md5


def test_a_lossy_routing_and_a_toy_model_are_tagged(job: Job) -> None:
    run = kept(job, "20261129T144640Z-0002", basis=make_basis(job, lossy_k0=2, toy=True))
    send_run(job, run, Tracking())
    parent, _ = held(job, run)
    assert (parent.data.tags["lossy"], parent.data.tags["toy"]) == ("k0 = 2", "yes")


def test_a_run_without_a_name_of_its_own_is_named_by_verb_job_and_time(job: Job) -> None:
    run = kept(job, "20261129T144640Z-0003", basis=make_basis(job, dataset_md5=None))
    send_run(job, run, Tracking())
    parent, children = held(job, run)
    assert (parent.info.run_name, children) == ("generate · six-domains · 2026-11-29 14:46", [])
    assert not parent.inputs.dataset_inputs, "the hash is not known"


def test_an_unknown_metric_is_left_out(sent: tuple[Run, MlflowEntity, list[MlflowEntity]]) -> None:
    assert all(set(child.data.metrics) == {"throughput_req_s", "step_time_ms"} for child in sent[2])


def test_a_series_is_over_the_percentage_of_its_part(
    job: Job, sent: tuple[Run, MlflowEntity, list[MlflowEntity]]
) -> None:
    history = MlflowClient(tracking_uri(job.root)).get_metric_history(sent[2][1].info.run_id, "step_time_ms")
    assert [point.value for point in sorted(history, key=lambda point: point.step)] == list(SERIES)
    assert (min(point.step for point in history), max(point.step for point in history)) == (0, 98)


def test_generated_text_is_sent_only_where_the_job_allows_it(
    job: Job, sent: tuple[Run, MlflowEntity, list[MlflowEntity]]
) -> None:
    client = MlflowClient(tracking_uri(job.root))
    run, parent, _ = sent
    names = {item.path for item in client.list_artifacts(parent.info.run_id)}
    assert names == {"run.json", "steps.png", "page.html", "evidence.json"}
    open_job = job.model_copy(update={"reporting": job.reporting.model_copy(update={"log_text": True})})
    tokens = job.paths.run_dir("generate", run.id) / "tokens"
    sent_run = send_run(open_job, run, Tracking(text_folder=tokens))
    assert [item.path for item in client.list_artifacts(sent_run, "tokens")] == ["tokens/b01-control.parquet"]


def test_sending_a_run_again_doubles_nothing_and_keeps_its_first_origin(
    job: Job, sent: tuple[Run, MlflowEntity, list[MlflowEntity]]
) -> None:
    run, parent, children = sent
    elsewhere = run.model_copy(update={"prefect_run": "flow-2", "dvc_revision": "def456"})
    assert send_run(job, elsewhere, TRACKING) == parent.info.run_id
    again, same_children = held(job, run)
    assert [child.info.run_id for child in same_children] == [child.info.run_id for child in children]
    assert (again.data.tags["prefect_run"], again.data.tags["dvc_revision"]) == ("flow-1", "abc123")
    client = MlflowClient(tracking_uri(job.root))
    assert len(client.get_metric_history(parent.info.run_id, "gain")) == 1
    assert len(client.get_metric_history(children[1].info.run_id, "step_time_ms")) == len(SERIES)
    assert len(same_children[1].inputs.dataset_inputs) == 1


def test_a_figure_that_changed_is_the_newest_one(job: Job) -> None:
    run = kept(job, "20261129T144640Z-0004")
    send_run(job, run, replace(TRACKING, children=CHILDREN[:1]))
    dearer = replace(CHILDREN[0], metrics={"throughput_req_s": 12.5, "cost_per_1k_requests": 2.0})
    send_run(job, run, replace(TRACKING, children=(dearer,)))
    assert held(job, run)[1][0].data.metrics["cost_per_1k_requests"] == 2.0


def test_a_run_that_was_sent_in_part_is_completed(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    run = kept(job, "20261129T144640Z-0005")

    def dies(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "log_artifact", dies)
        with pytest.raises(KeyboardInterrupt):
            send_run(job, run, replace(TRACKING, children=CHILDREN[:2]))
    parent, children = held(job, run)
    assert (parent.info.status, len(children)) == ("RUNNING", 2)
    assert send_run(job, run, TRACKING) == parent.info.run_id
    parent, children = held(job, run)
    assert (parent.info.status, len(children)) == ("FINISHED", len(CHILDREN))


def test_a_value_too_long_for_a_parameter_is_named_and_lies_in_an_artifact(job: Job) -> None:
    long_value = "x" * 7000
    engine = {"args": {"max_num_seqs": 8, "hf_overrides": long_value}}
    run = kept(job, "20261129T144640Z-0006", basis=make_basis(job, engine=engine))
    sent_run = send_run(job, run, Tracking())
    client = MlflowClient(tracking_uri(job.root))
    params = client.get_run(sent_run).data.params
    assert "run.json" in params["engine.args"]
    assert max(map(len, params.values())) <= LONGEST_PARAMETER_CHARS
    assert long_value in Path(client.download_artifacts(sent_run, "run.json")).read_text()


def test_a_run_is_found_without_its_children(job: Job, sent: tuple[Run, MlflowEntity, list[MlflowEntity]]) -> None:
    run, parent, _ = sent
    with connected(job, "a question", job.root) as (client, experiment):
        assert [entity.info.run_id for entity in find_runs(client, experiment, "generate", run.id)] == [
            parent.info.run_id
        ]
        assert find_runs(client, experiment, "measure", run.id) == []


def test_nothing_is_written_outside_the_state_folder(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    send_run(job, kept(job, "20261129T144640Z-0007"), Tracking())
    assert list(tmp_path.iterdir()) == []
    assert {entry.name for entry in job.root.iterdir()} == {".orderproof", "reports"}


def test_three_processes_that_start_at_once_on_an_empty_home_all_arrive(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    runs = [kept(job, f"20261129T144640Z-000{k}") for k in range(3)]
    (tmp_path / "job.json").write_text(job.model_dump_json())
    program = (
        "import sys; from pathlib import Path\n"
        "from orderproof.job.spec import Job\n"
        "from orderproof.runs.mlflow_run import Child, Tracking, send_run\n"
        "from orderproof.runs.run_store import read_runs\n"
        "job = Job.model_validate_json(Path(sys.argv[1], 'job.json').read_text())\n"
        "run = next(run for run in read_runs(job, 'generate') if run.id == sys.argv[2])\n"
        "send_run(job, run, Tracking(children=[Child('b01', 'b01', 0, 1)]))\n"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", program, tmp_path, run.id], stderr=subprocess.PIPE, text=True)
        for run in runs
    ]
    errors = [process.communicate()[1] for process in started]
    assert [process.returncode for process in started] == [0, 0, 0], errors
    for run in runs:
        assert len(held(job, run)[1]) == 1
