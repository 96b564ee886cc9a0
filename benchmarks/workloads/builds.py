"""A C project with make."""

from __future__ import annotations

import shutil
from pathlib import Path

from benchmarks.inputs.materials import Inputs
from benchmarks.system import BenchError, run_tool


def unpack(directory: Path, inputs: Inputs) -> None:
    """Copy the sources, without times: make then has everything to do."""
    shutil.rmtree(directory / "c", ignore_errors=True)
    shutil.copytree(inputs.path("c-project"), directory / "c", copy_function=shutil.copyfile)


def _make(directory: Path, inputs: Inputs, *targets: str) -> str:
    argv = ["make", "-j2", *targets]
    return run_tool(argv, cwd=directory / "c", env=inputs.env).decode(errors="replace")


def make(directory: Path, inputs: Inputs) -> None:
    """Compile 32 files and link a program."""
    _make(directory, inputs)
    if not (directory / "c" / "brotli").exists():
        raise BenchError("make made no program")


def clean(directory: Path, inputs: Inputs) -> None:
    """Take the objects away."""
    _make(directory, inputs, "clean")


def make_nothing(directory: Path, inputs: Inputs) -> None:
    """Find out that everything is up to date."""
    if "up to date" not in _make(directory, inputs):
        raise BenchError("make built something although nothing had changed")
