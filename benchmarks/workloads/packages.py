"""Packages of npm and Python: install, import, test."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from benchmarks.inputs.materials import Inputs, npm_options, python
from benchmarks.system import BenchError, Env, run_tool

IMPORTED = ("pygments", "rich", "networkx", "click")
SKIPPED = "(^|[.])(tests?|__main__|_win|_winconsole|conftest|jupyter)([.]|$)|sphinxext|_windows"
"""Modules that want something which is not installed, or do something when imported."""
LEAST_MODULES = 700
LEAST_PASSED = 600

IMPORT_ALL = f"""
import importlib, pkgutil, re
count = 0
for top in {IMPORTED!r}:
    package = importlib.import_module(top)
    for found in pkgutil.walk_packages(package.__path__, top + ".", onerror=lambda name: None):
        if not re.search({SKIPPED!r}, found.name):
            try:
                importlib.import_module(found.name)
                count += 1
            except ImportError:
                pass
print(count)
"""


def npm_project(directory: Path, inputs: Inputs) -> None:
    """A project with a lock file and nothing installed."""
    shutil.rmtree(directory / "npm", ignore_errors=True)
    shutil.copytree(inputs.path("npm") / "project", directory / "npm")


def npm_install(directory: Path, inputs: Inputs) -> None:
    """``npm ci`` from a warm cache, which lies on the native filesystem."""
    options = npm_options(inputs.path("npm") / "cache")
    run_tool(["npm", "ci", "--offline", *options], cwd=directory / "npm", env=inputs.env)
    if not (directory / "npm" / "node_modules" / "typescript" / "package.json").exists():
        raise BenchError("npm installed nothing")


def pip_install(directory: Path, inputs: Inputs) -> None:
    """``pip install`` from a directory of wheels, byte-compiling them as it does by default."""
    shutil.rmtree(directory / "pip", ignore_errors=True)
    wheels = sorted(inputs.path("wheels").glob("*.whl"))
    argv: list[str | Path] = [
        python(),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        "--isolated",
    ]
    argv += ["--ignore-installed", "--disable-pip-version-check", "--no-warn-script-location"]
    run_tool([*argv, "--prefix", directory / "pip", *wheels], env=inputs.env)


def _site(directory: Path) -> Path:
    found = next((directory / "pip").glob("lib/python*/site-packages"), None)
    if found is None:
        raise BenchError("pip installed nothing")
    return found


def _environment(inputs: Inputs, path: Path) -> Env:
    return {**inputs.env, "PYTHONPATH": str(path)}


def imports(directory: Path, inputs: Inputs) -> None:
    """Import every module of four packages that pip installed on the filesystem."""
    env = _environment(inputs, _site(directory))
    count = int(run_tool([python(), "-P", "-c", IMPORT_ALL], cwd=directory, env=env))
    if count < LEAST_MODULES:
        raise BenchError(f"only {count} modules could be imported")


def tested_project(directory: Path, inputs: Inputs) -> None:
    """A package's sources with its tests."""
    shutil.rmtree(directory / "tested", ignore_errors=True)
    shutil.copytree(inputs.path("tested"), directory / "tested")


def pytest(directory: Path, inputs: Inputs) -> None:
    """The package's own tests, in the tree on the filesystem; temporary files go there as well."""
    project = directory / "tested"
    temporary = directory / "tested-tmp"
    # Warnings of a newer pytest would be errors by the package's own settings.
    argv: list[str | Path] = [
        python(),
        "-m",
        "pytest",
        "-q",
        "-W",
        "ignore",
        f"--basetemp={temporary}",
        "tests",
    ]
    env = _environment(inputs, project / "src")
    said = run_tool(argv, cwd=project, env=env).decode(errors="replace")
    passed = re.search(r"(\d+) passed", said)
    if passed is None or int(passed[1]) < LEAST_PASSED:
        raise BenchError(f"pytest: {said[-200:]}")
