"""What a workload is."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from benchmarks.inputs.materials import Inputs
from benchmarks.system import run_tool


class Cache(Enum):
    """What the kernel's caches hold when the clock starts."""

    AS_LEFT = "as left"
    """What the steps before left; these steps mostly write."""
    WARM = "warm"
    """The same step has just run once, not timed."""
    COLD = "cold"
    """Dropped, except for the tool's own program."""


Run = Callable[[Path, Inputs], float | None]
"""Does the work in a directory; raises when the result is not right.

What it returns are the seconds to count, where it knows better than the clock around it: a tool
that takes long to start, such as fio, measures itself. None: the clock counts.
"""


@dataclass(frozen=True)
class Workload:
    """One step of the sequence: ``run(directory, inputs)`` is timed."""

    name: str
    title: str
    run: Run
    cache: Cache = Cache.AS_LEFT
    needs: tuple[str, ...] = ()
    """Steps that must have run before in the same directory."""
    tool: str | None = None
    """The program that it starts."""
    material: str | None = None
    """Which of the materials it needs."""
    prepare: Callable[[Path, Inputs], None] | None = None
    """Untimed, before everything else."""

    def obstacle(self, inputs: Inputs) -> str | None:
        """Why it cannot run on this machine, on whatever filesystem; None if it can."""
        if self.tool and not shutil.which(self.tool):
            return f"{self.tool} is not installed"
        return inputs.obstacles.get(self.material) if self.material else None

    def warm_tool(self, inputs: Inputs) -> None:
        """Bring the tool's own program into the page cache, so that no step times its loading."""
        if self.tool:
            run_tool([self.tool, "--version"], env=inputs.env)
