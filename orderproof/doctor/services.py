"""Check git, DVC, MLflow's store and Prefect's server.

Starts no service and imports none of these tools. Of a server it only checks that it answers.
"""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import tomllib
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from orderproof.doctor.check import Check
from orderproof.job.spec import Job
from orderproof.runs.dvc import lock_problem
from orderproof.runs.mlflow_client import tracking_uri

SERVER_TIMEOUT_S = 5.0
DATABASE_PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}


def git(root: Path, jobs: Sequence[Job]) -> Check:
    """The repository, and the author of the commits that `publish` makes."""
    publishing = [job.name for job in jobs if job.reporting.publish != "none"]
    state: Literal["fail", "warn"] = "fail" if publishing else "warn"
    needed = f" (needed to publish {', '.join(publishing)})" if publishing else ""
    if shutil.which("git") is None:
        return Check("git", state, f"is not installed{needed}", "install git: without it, evidence names no commit")
    if _git(root, "rev-parse", "--is-inside-work-tree") != "true":
        return Check("git", state, f"{root} is not in a git repository{needed}", "git init")
    name = os.environ.get("GIT_AUTHOR_NAME") or _git(root, "config", "user.name")
    email = os.environ.get("GIT_AUTHOR_EMAIL") or _git(root, "config", "user.email")
    if not name or not email:
        remedy = "git config user.name 'Your Name' && git config user.email you@example.org"
        return Check("git", state, f"no author for commits is set{needed}", remedy)
    return Check("git", "ok", f"commits as {name} <{email}>")


def dvc(root: Path) -> Check:
    """The DVC repository, and the pipeline whose stages record promotions."""
    home = next((folder for folder in (root, *root.parents) if (folder / ".dvc").is_dir()), None)
    if home is None:
        return Check("DVC", "warn", "no DVC repository, so promotions are not recorded", "git init; dvc init")
    if not (root / "dvc.yaml").is_file():
        remedy = "copy the stage `measure` from the sample project's dvc.yaml"
        return Check("DVC", "warn", f"{root} has no dvc.yaml, so promotions are not recorded", remedy)
    if problem := lock_problem(root):
        finding, _, remedy = problem.partition(". ")
        return Check("DVC", "fail", finding, remedy or "restore it: git checkout dvc.lock")
    return Check("DVC", "ok", f"repository {home}")


def mlflow(root: Path) -> Check:
    """Where runs are logged, and whether it answers."""
    uri = tracking_uri(root)
    parts = urlsplit(uri)
    if parts.hostname is None:
        return _local_store(uri, Path(parts.path.removeprefix("/")) if parts.scheme.startswith("sqlite") else None)
    shown = _without_credentials(uri)
    why = _unreachable(uri, "/health") if parts.scheme in ("http", "https") else _closed(uri)
    if why is None:
        return Check("MLflow", "ok", f"server {shown}")
    remedy = "start it or fix MLFLOW_TRACKING_URI; `orderproof log JOB` sends runs later"
    return Check("MLflow", "warn", f"{shown} does not answer ({why})", remedy)


def prefect() -> Check:
    """The server, if one is set. Flows also run without one."""
    url = prefect_api()
    if not url:
        return Check("Prefect", "ok", "no server is set (PREFECT_API_URL): flows run without one")
    shown = _without_credentials(url)
    why = _unreachable(url, "/health")
    if why is None:
        return Check("Prefect", "ok", f"server {shown}")
    remedy = "start it (`prefect server start`), or unset PREFECT_API_URL: flows run without one"
    return Check("Prefect", "fail", f"{shown} does not answer ({why})", remedy)


def _git(root: Path, *arguments: str) -> str:
    """The output of a git command; empty if it fails."""
    process = subprocess.run(
        ["git", *arguments], cwd=root, capture_output=True, text=True, errors="replace", check=False
    )
    return process.stdout.strip()


def _is_file_store(uri: str) -> bool:
    return urlsplit(uri).scheme == "file" or (not urlsplit(uri).scheme and not uri.startswith("databricks"))


def _is_true(value: str) -> bool:
    """As MLflow reads a boolean variable."""
    return value.lower() in ("true", "1")


def _local_store(uri: str, database: Path | None) -> Check:
    if database is None:
        if _is_file_store(uri) and not _is_true(os.environ.get("MLFLOW_ALLOW_FILE_STORE", "")):
            finding = f"{uri} is a folder of files, which MLflow refuses since 3.13"
            remedy = (
                "unset MLFLOW_TRACKING_URI, or set it to sqlite:////path/mlflow.db; `mlflow migrate-filestore` takes "
                "the old runs along"
            )
            return Check("MLflow", "warn", finding, remedy)
        return Check("MLflow", "ok", _without_credentials(uri))
    if database.exists():
        writable = os.access(database, os.W_OK)
    else:
        writable = os.access(next(folder for folder in database.absolute().parents if folder.exists()), os.W_OK)
    if not writable:
        return Check(
            "MLflow", "warn", f"{database} cannot be written", "fix its permissions, or set MLFLOW_TRACKING_URI"
        )
    return Check("MLflow", "ok", f"local, {database}" + ("" if database.exists() else " (created by the first run)"))


def prefect_api() -> str:
    """PREFECT_API_URL from the environment or Prefect's active profile; empty if not set."""
    if "PREFECT_API_URL" in os.environ:
        return os.environ["PREFECT_API_URL"]
    home = Path(os.environ.get("PREFECT_HOME") or "~/.prefect").expanduser()
    path = Path(os.environ.get("PREFECT_PROFILES_PATH") or home / "profiles.toml").expanduser()
    try:
        profiles = tomllib.loads(path.read_text("utf-8"))
        active = os.environ.get("PREFECT_PROFILE") or profiles.get("active", "")
        return str(profiles["profiles"][active].get("PREFECT_API_URL", ""))
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return ""  # no profile sets one


def _unreachable(url: str, path: str) -> str | None:
    """Why an HTTP server does not answer; None if it gives any answer."""
    request = _without_credentials(url).rstrip("/") + path
    try:
        with urllib.request.urlopen(request, timeout=SERVER_TIMEOUT_S):
            return None
    except urllib.error.HTTPError:  # an error page is also an answer
        return None
    except urllib.error.URLError as error:
        # A private certificate authority is configured in the tool itself; the server answered.
        return None if isinstance(error.reason, ssl.SSLError) else _reason(error.reason)
    except (OSError, ValueError) as error:
        return _reason(error)


def _closed(uri: str) -> str | None:
    """Why a database's port cannot be opened; None if it can, or if the port is unknown."""
    parts = urlsplit(uri)
    port = parts.port or DATABASE_PORTS.get(parts.scheme.split("+")[0])
    if parts.hostname is None or port is None:
        return None
    try:
        with socket.create_connection((parts.hostname, port), timeout=SERVER_TIMEOUT_S):
            return None
    except OSError as error:
        return _reason(error)


def _reason(reason: object) -> str:
    if isinstance(reason, TimeoutError):
        return f"no answer within {SERVER_TIMEOUT_S:.0f} s"
    return getattr(reason, "strerror", None) or str(reason)


def _without_credentials(uri: str) -> str:
    parts = urlsplit(uri)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
