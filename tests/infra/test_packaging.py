"""pyproject.toml says what the package holds and what it needs."""

from __future__ import annotations

import ast
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
CODE = [path for folder in ("flows", "tasks") for path in sorted((ROOT / folder).rglob("*.py"))]
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
    names = set().union(*map(imported, CODE)) - sys.stdlib_module_names - {"orderproof"} - OF_THE_ENGINE
    missing = {name for name in names if not required & {canonicalize_name(one) for one in distributions.get(name, ())}}
    assert missing == set()


def test_only_the_worker_needs_vllm() -> None:
    users = {path.relative_to(ROOT).as_posix() for path in CODE if "vllm" in imported(path)}
    assert users == {"tasks/engines/worker.py", "tasks/engines/worker_routing.py"}


def test_every_folder_of_code_is_in_the_wheel() -> None:
    folders = {"orderproof." + path.parent.relative_to(ROOT).as_posix().replace("/", ".") for path in CODE}
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == folders


def test_every_page_template_is_in_the_wheel() -> None:
    templates = {path.parent for folder in ("flows", "tasks") for path in (ROOT / folder).rglob("*.j2")}
    names = {"orderproof." + folder.relative_to(ROOT).as_posix().replace("/", ".") for folder in templates}
    assert set(PROJECT["tool"]["setuptools"]["package-data"]) == names
