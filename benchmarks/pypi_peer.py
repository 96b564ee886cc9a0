"""The project called cowfs on PyPI, in an environment of its own.

It is another project than this one, and has the same name for its package and its command. So it
never comes near this interpreter: it is run by the path of its command.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from benchmarks.inputs.cache import cached, fetch
from benchmarks.system import BenchError

REQUIREMENT = "cowfs==0.2.8"


SCRIPT = """\
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "packages"))
from cowfs.cli import app
app()
"""


NAME = f"pypi-{REQUIREMENT.replace('==', '-')}"
"""Of its directory in the cache."""


@functools.cache
def command() -> list[str]:
    """Its command; installed the first time. Raises :class:`BenchError`."""

    def install(directory: Path) -> None:
        # Not a venv: the directory is renamed when it is complete, and a venv names its own path.
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input"]
        fetch([*pip, "--target", directory / "packages", REQUIREMENT])
        (directory / "main.py").write_text(SCRIPT)

    directory = cached(NAME, install)
    # -I -S: none of this checkout's packages, and not this project's own cowfs.
    return [sys.executable, "-I", "-S", str(directory / "main.py")]


@functools.cache
def obstacle() -> str | None:
    """Why it cannot be used here, or None."""
    try:
        command()
    except (BenchError, OSError) as error:
        return f"{REQUIREMENT} cannot be installed: {error}"
    return None
