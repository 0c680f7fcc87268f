"""pyproject.toml says what the package holds and what it needs."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
CODE = [path for folder in ("orderproof", "flows", "tasks") for path in sorted((ROOT / folder).rglob("*.py"))]
# worker.py runs where vLLM is, which needs the others; torch is here too, with sentence-transformers.
OF_THE_ENGINE = {"vllm", "torch", "msgspec"}


def imported(path: Path) -> set[str]:
    """Top-level names of all imports of a file, also of those inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.add(node.module.split(".")[0])
    return found


def test_every_library_that_is_imported_is_required() -> None:
    required = {canonicalize_name(Requirement(text).name) for text in PROJECT["project"]["dependencies"]}
    distributions = packages_distributions()
    names = (
        set().union(*map(imported, CODE)) - sys.stdlib_module_names - {"orderproof", "flows", "tasks"} - OF_THE_ENGINE
    )
    missing = {name for name in names if not required & {canonicalize_name(one) for one in distributions.get(name, ())}}
    assert missing == set()


def test_only_the_worker_needs_vllm() -> None:
    users = {path.relative_to(ROOT).as_posix() for path in CODE if "vllm" in imported(path)}
    assert users == {"orderproof/engines/worker.py", "orderproof/engines/worker_routing.py"}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What an installation of the wheel holds."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", folder, ROOT]
    subprocess.run(build, check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site-packages")
    return folder / "site-packages"


def test_the_wheel_holds_one_package_with_its_templates(installed: Path) -> None:
    assert {path.name for path in installed.iterdir() if path.suffix != ".dist-info"} == {"orderproof"}
    kept = [path for path in (ROOT / "orderproof").rglob("*") if path.suffix in (".py", ".j2")]
    assert [path for path in kept if not (installed / path.relative_to(ROOT)).is_file()] == []


def test_an_installation_writes_the_same_project_as_this_checkout(installed: Path, tmp_path: Path) -> None:
    script = "import sys\nfrom orderproof.cli import main\nprint(main.__file__, file=sys.stderr)\nmain.main()"
    done = subprocess.run(
        [sys.executable, "-c", script, "init", "--json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert str(installed) in done.stderr
    written = json.loads(done.stdout)["written"]
    assert {"params.yaml", "dvc.yaml", "infra/prefect.yaml", "flows/measure.py", "tasks/measure.py"} <= set(written)
    same = [name for name in written if name not in ("params.yaml", "dvc.yaml")]  # without the demo's parts
    assert [name for name in same if (tmp_path / name).read_bytes() != (ROOT / name).read_bytes()] == []
