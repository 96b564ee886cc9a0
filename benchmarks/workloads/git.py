"""Git on the filesystem: add, status, and going between two branches."""

from __future__ import annotations

import shutil
from pathlib import Path

from benchmarks.inputs.materials import Inputs
from benchmarks.system import BenchError, run_tool


def add(directory: Path, inputs: Inputs) -> None:
    """``git init`` and ``git add`` of everything in ``tree``."""
    tree = directory / "tree"
    run_tool(["git", "init", "-q"], cwd=tree, env=inputs.env)
    # A repacking child in the background would run into the next step.
    run_tool(["git", "-c", "gc.auto=0", "add", "-A", "-f"], cwd=tree, env=inputs.env)


def status(directory: Path, inputs: Inputs, tree: str = "tree") -> None:
    """``git status`` of ``tree``; nothing changed since it was added."""
    said = run_tool(["git", "status", "--porcelain"], cwd=directory / tree, env=inputs.env)
    if any(not line.startswith(b"A  ") for line in said.splitlines()):
        raise BenchError("git status reports changes that nobody made")


def clone(directory: Path, inputs: Inputs) -> None:
    """Check the branch ``main`` out; objects stay in the source repository."""
    shutil.rmtree(directory / "clone", ignore_errors=True)
    argv: list[str | Path] = ["git", "clone", "-q", "--shared", inputs.path("branches"), "clone"]
    run_tool(argv, cwd=directory, env=inputs.env)
    # Both branches by name, and the index' times settled, as in a checkout that is used.
    run_tool(
        ["git", "branch", "-q", "other", "origin/other"], cwd=directory / "clone", env=inputs.env
    )
    status(directory, inputs, "clone")


def checkout(directory: Path, inputs: Inputs) -> None:
    """To the other branch, which differs in a fifth of the files, and back."""
    for branch in ("other", "main"):
        argv = ["git", "-c", "gc.auto=0", "checkout", "-q", branch]
        run_tool(argv, cwd=directory / "clone", env=inputs.env)
