"""pyproject.toml says what the package holds and what it needs."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
CODE = [path for folder in ("orderproof", "flows") for path in sorted((ROOT / folder).rglob("*.py"))]
OF_THE_ENGINE = {"vllm", "torch"}  # worker.py runs where both are; torch is here too, with sentence-transformers


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


def test_the_wheel_holds_one_package_with_its_templates(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", tmp_path, ROOT]
    subprocess.run(build, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    held = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in held if ".dist-info/" not in name} == {"orderproof"}
    kept = [path for path in (ROOT / "orderproof").rglob("*") if path.suffix in (".py", ".j2")]
    assert {path.relative_to(ROOT).as_posix() for path in kept} <= set(held)
