"""Whole trees: unpack, copy, walk, search, delete."""

from __future__ import annotations

from pathlib import Path

from benchmarks.inputs.materials import Inputs
from benchmarks.system import BenchError, run_tool

NEEDLE = "cowfs-benchmark-text-that-no-file-has"


def untar(directory: Path, inputs: Inputs) -> None:
    """Unpack the project into ``tree``."""
    tree = directory / "tree"
    tree.mkdir()
    run_tool(["tar", "-xf", inputs.archive.path, "-C", tree], env=inputs.env)


def copy(directory: Path, inputs: Inputs) -> None:
    """``cp -a`` of ``tree`` to ``copy``."""
    run_tool(["cp", "-a", "tree", "copy"], cwd=directory, env=inputs.env)


def grep(directory: Path, inputs: Inputs) -> None:
    """Search every byte of ``tree`` for a text that is not there.

    The output is a pipe: GNU grep stops at the first match when it writes to /dev/null.
    """
    argv = ["grep", "-r", "--exclude-dir=.git", NEEDLE, "."]
    run_tool(argv, cwd=directory / "tree", env=inputs.env, accept=(1,))


def find(directory: Path, inputs: Inputs) -> None:
    """Walk ``tree`` and stat every entry."""
    argv = ["find", ".", "-printf", "%s %m %n %T@ %p\n"]
    listed = run_tool(argv, cwd=directory / "tree", env=inputs.env).count(b"\n")
    # The archive may leave out directories that tar makes, never the other way around.
    if listed < inputs.archive.entries:
        raise BenchError(f"find lists {listed} entries of {inputs.archive.entries}")


def remove(directory: Path, inputs: Inputs) -> None:
    """``rm -rf`` of ``copy``."""
    run_tool(["rm", "-rf", "copy"], cwd=directory, env=inputs.env)
    if (directory / "copy").exists():
        raise BenchError("rm -rf left something")
