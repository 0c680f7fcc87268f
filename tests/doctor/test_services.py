"""git, DVC, MLflow and Prefect: found, missing, or not answering."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from orderproof.doctor import services
from tests.support.doctor_project import only, write_params

CONFLICT = "schema: '2.0'\nstages:\n<<<<<<< HEAD\n  a: {}\n=======\n  b: {}\n>>>>>>> other\n"


def git_init(root: Path) -> None:
    subprocess.run(["git", "init", "--quiet", root], check=True)


def test_a_repository_with_an_identity_is_fine(root: Path) -> None:
    git_init(root)
    assert (only(root, "git").state, only(root, "git").finding) == ("ok", "commits as a NAME <a EMAIL>")


@pytest.mark.parametrize(("publish", "state"), [("none", "warn"), ("commit", "fail"), ("push", "fail")])
def test_without_a_repository_only_publishing_fails(root: Path, publish: str, state: str) -> None:
    write_params(root, reporting={"it": {"publish": publish}})
    check = only(root, "git")
    assert (check.state, check.remedy) == (state, "git init")


def test_a_missing_identity_comes_with_the_commands_that_set_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git_init(root)
    monkeypatch.delenv("GIT_AUTHOR_EMAIL")
    check = only(root, "git")
    assert check.state == "warn"
    assert "git config user.email" in check.remedy
    subprocess.run(["git", "-C", root, "config", "user.email", "me@example.org"], check=True)
    assert only(root, "git").state == "ok"


def test_dvc_is_found_in_a_folder_above(root: Path) -> None:
    assert only(root, "DVC").state == "warn"
    (root.parent / ".dvc").mkdir()
    assert "dvc.yaml" in only(root, "DVC").finding
    (root / "dvc.yaml").write_text("stages: {}\n")
    assert only(root, "DVC").state == "ok"


def test_a_lock_with_conflict_markers_is_named_with_its_remedy(root: Path) -> None:
    (root.parent / ".dvc").mkdir()
    (root / "dvc.yaml").write_text("stages: {}\n")
    (root / "dvc.lock").write_text(CONFLICT)
    check = only(root, "DVC")
    assert check.state == "fail"
    assert "conflict markers" in check.finding
    assert "git checkout --ours dvc.lock" in check.remedy


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
    assert f"local, {root}/.orderproof/" in check.finding
    assert "created by" in check.finding


def test_a_tracking_server_that_answers_is_fine(root: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:secret@{server}")
    assert (only(root, "MLflow").state, only(root, "MLflow").finding) == ("ok", f"server http://{server}")


@pytest.mark.parametrize("scheme", ["http", "postgresql"])
def test_a_tracking_server_that_is_down_is_told_without_its_password(
    root: Path, nobody: str, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{scheme}://me:secret@{nobody}/store")
    check = only(root, "MLflow")
    assert check.state == "warn"
    assert "Connection refused" in check.finding
    assert "secret" not in check.line()


def test_a_server_that_never_answers_is_not_waited_for(
    root: Path, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "SERVER_TIMEOUT_S", 0.2)
    monkeypatch.setenv("PREFECT_API_URL", f"http://{silent}/api")
    check = only(root, "Prefect")
    assert check.state == "fail"
    assert "within" in check.finding
    assert "unset PREFECT_API_URL" in check.remedy


@pytest.mark.parametrize(
    "uri", ["databricks", "file:///tmp/mlruns", "http://", "http://[::1", "postgresql://x:notaport/y"]
)
def test_an_odd_tracking_address_is_no_traceback(root: Path, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert only(root, "MLflow").finding


@pytest.mark.parametrize("uri", ["file:///tmp/mlruns", "./mlruns", "mlruns"])
def test_a_store_that_mlflow_refuses_is_named_with_the_way_out(
    root: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    check = only(root, "MLflow")
    assert check.state == "warn"
    assert "mlflow migrate-filestore" in check.remedy
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    assert only(root, "MLflow").state == "ok"


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
    assert only(root, "Prefect").finding == f"server http://{server}/api"
    monkeypatch.setenv("PREFECT_PROFILE", "down")
    assert only(root, "Prefect").state == "fail"
    monkeypatch.setenv("PREFECT_PROFILE", "none")
    assert only(root, "Prefect").state == "ok"
