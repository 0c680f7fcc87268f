"""Real MLflow on real SQLite files; the passes are synthetic."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from orderproof.job.spec import Job
from orderproof.measure.evaluate import judge
from orderproof.measure.trial_store import Trial
from orderproof.outputs.passes import CANDIDATE, SHUFFLED
from orderproof.runs.mlflow_records import LONGEST_PARAMETER_CHARS, pass_records
from orderproof.runs.trial_tracking import TrackingError, log_trial, send_later, serve_ui, tracking_uri, where_to_see
from tests.support.trial_maker import make_job, make_trial

CHILD_METRICS = {
    "throughput_req_s",
    "throughput_tok_s",
    "wall_s",
    "time_per_batch_ms",
    "cost_per_1k_requests",
    "output_diff_rate",
}
SERIES = {"step_time_ms", "sequences_running"}


@pytest.fixture(autouse=True)
def local_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One project for the module: making MLflow's database takes seconds."""
    return tmp_path_factory.mktemp("project")


@pytest.fixture(scope="module")
def job(root: Path) -> Job:
    return make_job(root, reporting={"price_per_hour": 3.6})


def reports(job: Job, trial: str) -> Path:
    return job.reports_dir / trial


def runs_of(job: Job, trial: Trial) -> tuple[Run, list[Run]]:
    """The trial's parent run and its children in time order."""
    client = MlflowClient(tracking_uri(job.root))
    experiment = client.get_experiment_by_name(f"orderproof/{job.name}")
    found = client.search_runs([experiment.experiment_id], f"tags.trial = '{trial.manifest.trial}'")
    parents = [run for run in found if "mlflow.parentRunId" not in run.data.tags]
    assert len(parents) == 1
    children = [run for run in found if run.data.tags.get("mlflow.parentRunId") == parents[0].info.run_id]
    assert len(children) == len(found) - 1
    return parents[0], sorted(children, key=lambda run: run.info.start_time)


@pytest.fixture(scope="module")
def logged(job: Job) -> tuple[Trial, Run, list[Run]]:
    trial = make_trial(reports(job, "20261129T144640Z-0001"), blocks=5, repeated_block=2)
    (trial.folder / "verdict.json").write_text("{}")
    (trial.folder / "gain.png").write_bytes(b"png")
    parent = log_trial(job, trial, judge(trial), prefect_run="flow-1", dvc_revision="abc123")
    found, children = runs_of(job, trial)
    assert found.info.run_id == parent
    return trial, found, children


def test_a_trial_is_one_parent_run_with_one_child_run_per_pass(logged: tuple[Trial, Run, list[Run]]) -> None:
    trial, parent, children = logged
    assert [child.data.tags["orderproof.pass"] for child in children] == [p.pass_id for p in trial.passes]
    assert {run.info.status for run in (parent, *children)} == {"FINISHED"}
    assert len(trial.passes) == 1 + 5 * 2 + 2


def test_every_pass_that_counts_carries_the_same_metrics_and_its_arm_as_a_parameter(
    logged: tuple[Trial, Run, list[Run]],
) -> None:
    trial, _, children = logged
    counted = [child for child in children if child.data.tags["state"] == "counted"]
    assert len(counted) == 10
    for child in counted:
        assert set(child.data.metrics) == CHILD_METRICS | SERIES
        assert child.data.params["arm"] == child.data.tags["arm"]
    timed = {p.pass_id: p for p in trial.passes}["b03-candidate"]
    metrics = next(c for c in children if c.data.tags["orderproof.pass"] == "b03-candidate").data.metrics
    assert metrics["throughput_req_s"] == timed.throughput_req_s
    # 3.60 an hour is 0.001 a second
    assert metrics["cost_per_1k_requests"] == pytest.approx(1000 * 0.001 * timed.wall_s / timed.requests)


def test_run_names_say_block_arm_and_what_became_of_the_pass(logged: tuple[Trial, Run, list[Run]]) -> None:
    names = {run.info.run_name for run in logged[2]}
    assert {"b00 control (warm-up)", "b03 candidate", "b02 candidate (discarded)", "b02 candidate repeat 1"} <= names


def test_the_parent_holds_the_verdicts_figures_and_where_the_trial_came_from(
    logged: tuple[Trial, Run, list[Run]],
) -> None:
    trial, parent, children = logged
    verdict = judge(trial)
    assert verdict is not None
    assert verdict.outputs is not None
    held = parent.data.metrics
    assert (held["gain"], held["gain_low"], held["gain_high"]) == (verdict.gain, verdict.gain_low, verdict.gain_high)
    assert (held["output_diff_rate"], held["output_diff_floor"]) == (verdict.outputs.d_ab, verdict.outputs.d_aa)
    rates = [
        child.data.metrics["output_diff_rate"]
        for child in children
        if (child.data.tags["arm"], child.data.tags["state"]) == ("candidate", "counted")
    ]
    assert sum(rates) / len(rates) == pytest.approx(verdict.outputs.d_ab)
    tags = parent.data.tags
    assert (tags["verdict"], tags["prefect_run"], tags["dvc_revision"]) == (verdict.verdict, "flow-1", "abc123")
    assert (tags["placebo"], tags["dataset_md5"]) == ("no", trial.manifest.dataset_md5)
    assert parent.inputs.dataset_inputs[0].dataset.digest == trial.manifest.dataset_md5


def test_where_shuffles_are_the_third_arm_the_passes_rates_are_against_them_as_the_trials_is(tmp_path: Path) -> None:
    trial = make_trial(tmp_path / "six-domains" / "20261129T144640Z-0012", third_arm=True, candidate_churn=0.2)
    verdict = judge(trial)
    assert verdict is not None
    assert verdict.outputs is not None
    children = {child.pass_id: child.metrics for child in pass_records(trial, 0.0, "parent")}
    rates = {
        arm: [children[block.passes[arm].pass_id]["output_diff_rate"] for block in trial.blocks()]
        for arm in (CANDIDATE, SHUFFLED)
    }
    assert statistics.fmean(rates[CANDIDATE]) == pytest.approx(verdict.outputs.d_ab)
    assert statistics.fmean(rates[SHUFFLED]) == pytest.approx(verdict.outputs.d_aa)


def test_step_times_are_a_series_over_the_percentage_of_the_pass(
    job: Job, logged: tuple[Trial, Run, list[Run]]
) -> None:
    trial, _, children = logged
    history = MlflowClient(tracking_uri(job.root)).get_metric_history(children[1].info.run_id, "step_time_ms")
    assert [point.value for point in sorted(history, key=lambda p: p.step)] == list(trial.passes[1].step_ms_series)
    assert max(point.step for point in history) <= 99


def test_what_was_generated_is_sent_only_where_the_job_allows_it(
    job: Job, logged: tuple[Trial, Run, list[Run]]
) -> None:
    client = MlflowClient(tracking_uri(job.root))
    sent = {item.path for item in client.list_artifacts(logged[1].info.run_id)}
    assert sent == {"gain.png", "manifest.json", "passes.jsonl", "verdict.json"}
    open_job = job.model_copy(update={"reporting": job.reporting.model_copy(update={"log_text": True})})
    trial = make_trial(reports(job, "20261129T144640Z-0002"), blocks=1)
    run = log_trial(open_job, trial, None)
    assert len(client.list_artifacts(run, "tokens")) == len(trial.passes)


def test_sending_a_trial_again_doubles_nothing(job: Job, logged: tuple[Trial, Run, list[Run]]) -> None:
    trial, parent, children = logged
    assert log_trial(job, trial, judge(trial)) == parent.info.run_id
    again, same_children = runs_of(job, trial)
    assert [run.info.run_id for run in same_children] == [run.info.run_id for run in children]
    assert again.data.tags["prefect_run"] == "flow-1"
    client = MlflowClient(tracking_uri(job.root))
    assert len(client.get_metric_history(parent.info.run_id, "gain")) == 1
    assert len(client.get_metric_history(children[1].info.run_id, "step_time_ms")) == 96
    assert len(same_children[1].inputs.dataset_inputs) == 1


def test_a_trial_that_was_sent_in_part_is_completed(job: Job) -> None:
    trial = make_trial(reports(job, "20261129T144640Z-0003"), blocks=5)
    early = Trial(trial.folder, trial.manifest, trial.passes[:5])
    parent = log_trial(job, early, judge(early))
    assert runs_of(job, trial)[0].data.tags["verdict"] == "unfinished"
    assert log_trial(job, trial, judge(trial)) == parent
    found, children = runs_of(job, trial)
    assert len(children) == len(trial.passes)
    assert found.data.metrics["blocks"] == 5
    assert found.data.tags["verdict"] == "promote"


def test_without_a_price_no_cost_is_claimed(root: Path) -> None:
    free = make_job(root)
    trial = make_trial(reports(free, "20261129T144640Z-0004"), blocks=1)
    log_trial(free, trial, None)
    assert all("cost_per_1k_requests" not in child.data.metrics for child in runs_of(free, trial)[1])


def test_a_value_too_long_for_a_parameter_is_named_and_lies_in_an_artifact(job: Job) -> None:
    engine = {"args": {"max_num_seqs": 8, "hf_overrides": "x" * 7000}, "max_num_seqs": 8, "mode": "eager"}
    trial = make_trial(reports(job, "20261129T144640Z-0005"), blocks=0, engine=engine)
    run = log_trial(job, trial, None)
    client = MlflowClient(tracking_uri(job.root))
    params = client.get_run(run).data.params
    assert "manifest.json" in params["engine.args"]
    assert max(map(len, params.values())) <= LONGEST_PARAMETER_CHARS
    assert "x" * 7000 in Path(client.download_artifacts(run, "manifest.json")).read_text()


def test_a_placebo_is_tagged_and_named_as_one(job: Job) -> None:
    trial = make_trial(reports(job, "20261129T144640Z-0006"), blocks=0, placebo=True)
    log_trial(job, trial, None)
    parent, _ = runs_of(job, trial)
    assert parent.data.tags["placebo"] == "yes"
    assert parent.info.run_name.startswith("placebo")


def test_nothing_is_written_outside_the_state_folder(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    log_trial(job, make_trial(reports(job, "20261129T144640Z-0007"), blocks=0), None)
    assert list(tmp_path.iterdir()) == []
    assert {entry.name for entry in job.root.iterdir()} == {".orderproof", "reports"}


def test_three_processes_that_start_at_once_on_an_empty_home_all_arrive(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    trials = [make_trial(reports(job, f"20261129T144640Z-{k}"), blocks=1, seed=k) for k in range(3)]
    (tmp_path / "job.json").write_text(job.model_dump_json())
    program = (
        "import sys; from pathlib import Path\n"
        "from orderproof.measure.trial_store import Trial\n"
        "from orderproof.job.spec import Job\n"
        "from orderproof.runs.trial_tracking import log_trial\n"
        "job = Job.model_validate_json(Path(sys.argv[1], 'job.json').read_text())\n"
        "log_trial(job, Trial.read(Path(sys.argv[2])), None)\n"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", program, tmp_path, trial.folder], stderr=subprocess.PIPE, text=True)
        for trial in trials
    ]
    told = [process.communicate()[1] for process in started]
    assert [process.returncode for process in started] == [0, 0, 0], told
    for trial in trials:
        assert len(runs_of(job, trial)[1]) == len(trial.passes)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "uri",
    [
        "http://someone:secret@127.0.0.1:9",  # the discard port: nobody listens
        "sqlite:////proc/nowhere/mlflow.db",  # MLflow itself would try for minutes
    ],
)
def test_a_tracker_that_is_down_is_one_error_that_says_what_is_safe(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str
) -> None:
    trial = make_trial(tmp_path / job.name / "20261129T144640Z-0008", blocks=0)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(TrackingError) as caught:
        log_trial(job, trial, None)
    assert f"orderproof log {job.name}" in str(caught.value)
    assert str(trial.folder) in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_trial_that_is_sent_again_keeps_where_it_came_from(job: Job) -> None:
    trial = make_trial(reports(job, "20261129T144640Z-0013"), blocks=0)
    log_trial(job, trial, None, prefect_run="flow-1", dvc_revision="abc123")
    log_trial(job, trial, None, prefect_run="flow-2", dvc_revision="def456")
    tags = runs_of(job, trial)[0].data.tags
    assert (tags["prefect_run"], tags["dvc_revision"]) == ("flow-1", "abc123")


def test_the_command_that_sends_a_trial_later_names_it_and_finds_placebos(job: Job, tmp_path: Path) -> None:
    name = "20261129T144640Z-0014"
    of_the_job = make_trial(tmp_path / job.name / name, blocks=0)
    placebo = make_trial(tmp_path / "placebo" / job.name / name, blocks=0, placebo=True)
    assert send_later(job, of_the_job) == f"orderproof log {job.name} --trial {name}"
    assert send_later(job, placebo) == f"orderproof log {job.name} --trial {name} --placebo"


def test_a_runs_page_is_its_address_on_a_server_without_credentials(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    assert where_to_see(job, "r1") == "`orderproof ui`, then the experiment orderproof/six-domains, run r1"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://user:secret@mlflow.example/")
    assert where_to_see(job, "r1") == "https://mlflow.example/#/runs/r1"


def test_a_deleted_experiment_is_named(job: Job) -> None:
    gone = make_job(job.root, name="gone")
    log_trial(gone, make_trial(reports(gone, "20261129T144640Z-0009"), blocks=0), None)
    client = MlflowClient(tracking_uri(gone.root))
    client.delete_experiment(client.get_experiment_by_name("orderproof/gone").experiment_id)
    with pytest.raises(TrackingError, match="orderproof/gone was deleted"):
        log_trial(gone, make_trial(reports(gone, "20261129T144640Z-0010"), blocks=0), None)


def test_the_pages_of_a_server_are_not_served_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TrackingError, match="does not exist yet"):
        serve_ui(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://user:secret@mlflow.example")
    with pytest.raises(TrackingError, match=r"open https://user:\*\*\*@mlflow.example"):
        serve_ui(tmp_path)


def test_the_users_own_patience_stands(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "5")
    log_trial(job, make_trial(reports(job, "20261129T144640Z-0011"), blocks=0), None)
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "5"
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
