"""``bench checkpoints``: a checkpoint and a restore with cowfs and with other tools.

All trees of all tools are there at the same time, and measured in turn.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from benchmarks.checkpoints.tools import Tool
from benchmarks.epochs.workspace import make_tree
from benchmarks.report import not_measured, spread_text, table
from benchmarks.runner import FAILURES, rotated
from benchmarks.stats import Summary
from benchmarks.svg import Chart, Mark, Row
from benchmarks.system import BenchError, Env, settle, watchdog

T = TypeVar("T")

CHANGED = 100
ONE = "checkpoint 1"
MANY = f"checkpoint {CHANGED}"
RESTORE = f"restore {CHANGED}"
OPERATIONS = (ONE, MANY, RESTORE)


@dataclass
class LatencyReport:
    """Seconds of whole commands, by (operation, files, tool)."""

    sizes: Sequence[int]
    tools: Sequence[str]
    rounds: int
    seconds: dict[tuple[str, int, str], list[float]] = field(
        default_factory=lambda: defaultdict(list)
    )
    missing: dict[tuple[int, str], str] = field(default_factory=dict)
    """Why a tool was not measured, or stopped, at a size."""

    def summary(self, operation: str, files: int, tool: str) -> Summary | None:
        """One cell; None if the tool has failed there."""
        failed = (files, tool) in self.missing
        return None if failed else Summary.of(self.seconds.get((operation, files, tool), ()))

    def text(self) -> str:
        """The table for people."""
        rows = []
        for operation in OPERATIONS:
            for files in self.sizes:
                cells = [spread_text(self.summary(operation, files, t)) for t in self.tools]
                rows.append([f"{operation}, {files:,} files", *cells])
        parts = [
            f"whole commands; medians of {self.rounds} (fastest-slowest)",
            table(["", *self.tools], rows),
            f"{ONE}, {MANY}: so many files were just written; {RESTORE}: so many changed back, "
            "the state before kept",
        ]
        if self.missing:
            parts.append(not_measured(self.missing))
        return "\n\n".join(parts)

    def charts(self) -> dict[str, Chart]:
        """All operations and sizes in one picture."""
        rows = []
        for operation in OPERATIONS:
            for files in self.sizes:
                found = {tool: self.summary(operation, files, tool) for tool in self.tools}
                marks = {
                    tool: Mark(s.median * 1e3, s.low * 1e3, s.high * 1e3)
                    for tool, s in found.items()
                    if s
                }
                rows.append(Row(f"{operation}, {files:,} files", marks))
        unit = f"milliseconds, whole commands; lines: fastest to slowest of {self.rounds}"
        return {"checkpoints": Chart("A checkpoint, and a restore", unit, self.tools, rows)}

    def document(self) -> dict[str, object]:
        """The JSON form."""
        results = []
        for operation in OPERATIONS:
            for files in self.sizes:
                for tool in self.tools:
                    cell: dict[str, object] = {"operation": operation, "files": files, "tool": tool}
                    if summary := self.summary(operation, files, tool):
                        cell |= summary.document()
                    else:
                        cell["reason"] = self.missing.get((files, tool))
                    results.append(cell)
        return {"rounds": self.rounds, "results": results}


@dataclass
class Subject:
    """A tool with a tree of one size."""

    tool: Tool
    files: int
    hot: Sequence[Path]
    """The files to change, spread over the tree."""
    edits: int = 0

    def edit(self, paths: Sequence[Path]) -> str:
        """Give these files a content that they never had; returns it."""
        self.edits += 1
        content = f"edit {self.edits}\n" * 12
        for path in paths:
            path.write_text(content)
        return content

    def round(self) -> dict[str, float]:
        """Every operation once; returns their seconds."""
        taken = {}

        def timed(operation: str, run: Callable[[], T]) -> T:
            settle(self.tool.tree, self.tool.pids)
            start = time.perf_counter()
            result = run()
            taken[operation] = time.perf_counter() - start
            return result

        self.edit(self.hot[:1])
        timed(ONE, self.tool.checkpoint)
        wanted = self.edit(self.hot)
        kept = timed(MANY, self.tool.checkpoint)
        self.edit(self.hot)
        timed(RESTORE, lambda: self.tool.restore(kept))
        if any(path.read_text() != wanted for path in self.hot):
            raise BenchError(f"{self.tool.name} did not restore what was kept")
        self.tool.check()
        self.tool.trim()
        return taken


def measure(
    work: Path,
    env: Env,
    tools: Sequence[type[Tool]],
    sizes: Sequence[int],
    rounds: int,
    timeout: float,
) -> LatencyReport:
    """Measure *rounds* times, after one round to warm up."""
    report = LatencyReport(sizes, [tool.name for tool in tools], rounds)
    with ExitStack() as stack:
        subjects = []
        for files in sizes:
            for kind in tools:
                key = (files, kind.name)
                obstacle = kind.obstacle()
                if kind.most_files is not None and files > kind.most_files:
                    obstacle = f"trees of more than {kind.most_files:,} files take it too long"
                if obstacle:
                    report.missing[key] = obstacle
                    continue
                print(f"preparing {kind.name}, {files:,} files", file=sys.stderr, flush=True)
                own = work / f"{kind.name}-{files}".replace(" ", "-")
                own.mkdir()
                tool = kind(own, env)
                stack.callback(tool.teardown)
                try:
                    tool.setup(partial(_fill, files))
                    tool.checkpoint()
                except FAILURES as error:
                    report.missing[key] = str(error)
                else:
                    subjects.append(Subject(tool, files, _hot(tool.tree)))
        for number in range(rounds + 1):
            print(f"checkpoints, round {number}/{rounds}", file=sys.stderr, flush=True)
            for subject in rotated(subjects, number):
                key = (subject.files, subject.tool.name)
                if key in report.missing:
                    continue

                try:
                    with watchdog(subject.tool.pids, seconds=timeout):
                        taken = subject.round()
                except FAILURES as error:
                    report.missing[key] = str(error)
                    continue
                for operation, seconds in taken.items() if number else ():
                    report.seconds[operation, *key].append(seconds)
    return report


def _fill(files: int, tree: Path) -> None:
    make_tree(tree, files)


def _hot(tree: Path) -> list[Path]:
    every = sorted(tree.rglob("file*.txt"))
    return every[:: max(1, len(every) // CHANGED)][:CHANGED]
