"""``bench storage``: how much disk the history of a real project takes, tool by tool.

Every tool takes the same states through its own tree, with a checkpoint after each. At the end the
state in the middle is restored and compared with what it was.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import bars
from benchmarks.checkpoints.tools import Copies, CowfsTool, ShadowGit, Tool
from benchmarks.inputs.histories import History
from benchmarks.report import bytes_text, not_measured, seconds_text, spread_text, table
from benchmarks.runner import FAILURES, rotated
from benchmarks.stats import Summary, Verdict
from benchmarks.svg import Chart, Mark, Row
from benchmarks.system import Env, settle, watchdog


@dataclass
class Stored:
    """What one tool made of one history."""

    seconds: list[float] = field(default_factory=list)
    """Of each checkpoint, whole commands."""
    stored: int = 0
    packed: int | None = None
    restore_seconds: float = 0.0
    """Back to the state in the middle, once."""


@dataclass
class StorageReport:
    """By the history's name and the tool's."""

    histories: dict[str, int]
    """How many states each has."""
    tools: Sequence[str]
    results: dict[tuple[str, str], Stored] = field(default_factory=dict)
    missing: dict[tuple[str, str], str] = field(default_factory=dict)

    def size(self, history: str, tool: str) -> int | None:
        """Bytes as the tool leaves them."""
        found = self.results.get((history, tool))
        return found.stored if found else None

    def packed(self, history: str, tool: str = ShadowGit.name) -> int | None:
        """Bytes after the tool's clean-up; of git that is the pack."""
        found = self.results.get((history, tool))
        return found.packed if found else None

    def verdicts(self) -> list[Verdict]:
        """Against git's pack and against full copies, for each history."""
        found = []
        for history in self.histories:
            name = CowfsTool.name
            compact, pack = self.packed(history, name), self.packed(history)
            stored, copies = self.size(history, name), self.size(history, Copies.name)
            for mine, base, limit, what in (
                (compact, pack, bars.STORAGE_PACK, "git gc's pack"),
                (stored, copies, bars.STORAGE_COPIES, "full copies"),
            ):
                ratio = mine / base if mine is not None and base else None
                judge = Verdict.below if base is None or what == "full copies" else Verdict.at_most
                found.append(judge(f"storage, {history} / {what}", ratio, limit, "x"))
        return found

    def text(self) -> str:
        """A table for each history."""
        parts = []
        for history, states in self.histories.items():
            pack = self.packed(history)
            copies = self.size(history, Copies.name)
            rows = []
            for tool in self.tools:
                found = self.results.get((history, tool))
                if found is None:
                    rows.append([tool, *["-"] * 6])
                    continue
                rows.append(
                    [
                        tool,
                        bytes_text(found.stored),
                        "-" if found.packed is None else bytes_text(found.packed),
                        f"{found.stored / pack:.2f}x" if pack else "-",
                        f"{found.stored / copies:.1%}" if copies else "-",
                        spread_text(Summary.of(found.seconds)),
                        seconds_text(found.restore_seconds),
                    ]
                )
            head = (
                "",
                "stored",
                "cleaned up",
                "/ git's pack",
                "of copies",
                "checkpoint",
                "restore",
            )
            parts.append(f"{history}, {states} states\n{table(head, rows)}")
        if self.missing:
            parts.append(not_measured(self.missing))
        return "\n\n".join(parts)

    def charts(self) -> dict[str, Chart]:
        """Sizes in multiples of git's pack."""
        rows = []
        for history, states in self.histories.items():
            pack = self.packed(history)
            if pack:
                marks = {}
                for tool in self.tools:
                    size = self.size(history, tool)
                    if size:
                        marks[tool] = Mark(size / pack, size / pack, size / pack)
                rows.append(Row(f"{history} ({states})", marks))
        title = "Disk that the history takes"
        unit = "times git gc's pack of the same history (less is better)"
        return {"storage": Chart(title, unit, self.tools, rows, line=1.0)} if rows else {}

    def document(self) -> dict[str, object]:
        """The JSON form."""
        results = []
        for history, states in self.histories.items():
            for tool in self.tools:
                cell: dict[str, object] = {"history": history, "states": states, "tool": tool}
                if found := self.results.get((history, tool)):
                    cell |= {
                        "stored_bytes": found.stored,
                        "cleaned_up_bytes": found.packed,
                        "checkpoint_seconds": found.seconds,
                        "restore_seconds": found.restore_seconds,
                    }
                else:
                    cell["reason"] = self.missing.get((history, tool))
                results.append(cell)
        return {"results": results}


def measure(
    work: Path,
    env: Env,
    tools: Sequence[type[Tool]],
    histories: Sequence[History],
    timeout: float,
) -> StorageReport:
    """Replay each history with all tools in turn, state by state."""
    counts = {history.name: len(history.commits) for history in histories}
    report = StorageReport(counts, [tool.name for tool in tools])
    for number, history in enumerate(histories):
        _replay(work / f"replay{number}", env, tools, history, timeout, report)
    return report


def _replay(
    work: Path,
    env: Env,
    tools: Sequence[type[Tool]],
    history: History,
    timeout: float,
    report: StorageReport,
) -> None:
    with ExitStack() as stack:
        opened: list[Tool] = []
        for kind in tools:
            key = (history.name, kind.name)
            if obstacle := kind.obstacle():
                report.missing[key] = obstacle
                continue
            own = work / kind.name.replace(" ", "-")
            own.mkdir(parents=True)
            tool = kind(own, env)
            stack.callback(tool.teardown)
            try:
                tool.setup(lambda tree: None)
            except FAILURES as error:
                report.missing[key] = str(error)
            else:
                report.results[key] = Stored()
                opened.append(tool)
        middle = len(history.commits) // 2
        kept: dict[str, str] = {}
        for state in range(len(history.commits)):
            if state % 10 == 0:
                line = f"{history.name}, state {state + 1}/{len(history.commits)}"
                print(line, file=sys.stderr, flush=True)
            for tool in rotated(opened, state):
                _attempt(report, history, tool, state, kept if state == middle else {}, timeout)
        for tool in opened:
            if tool.name in kept:
                _finish(report, history, tool, middle, kept[tool.name], timeout)


def _attempt(
    report: StorageReport,
    history: History,
    tool: Tool,
    state: int,
    kept: dict[str, str],
    timeout: float,
) -> None:
    """Bring one tool's tree to a state and make a checkpoint of it; its id goes to *kept*."""
    key = (history.name, tool.name)
    if key in report.missing:
        return
    try:
        with watchdog(tool.pids, seconds=timeout):
            tool.check()
            history.go(tool.tree, state, tool.work / "index", tool.env)
            settle(tool.tree, tool.pids)
            start = time.perf_counter()
            kept[tool.name] = tool.checkpoint()
            report.results[key].seconds.append(time.perf_counter() - start)
    except FAILURES as error:
        _fail(report, key, error)


def _finish(
    report: StorageReport,
    history: History,
    tool: Tool,
    middle: int,
    checkpoint: str,
    timeout: float,
) -> None:
    """Weigh what is stored, then restore the state in the middle and compare."""
    key = (history.name, tool.name)
    if key in report.missing:
        return
    try:
        with watchdog(tool.pids, seconds=timeout):
            settle(tool.tree, tool.pids)
            result = report.results[key]
            result.stored = tool.stored()
            result.packed = tool.pack()
            start = time.perf_counter()
            tool.restore(checkpoint)
            result.restore_seconds = time.perf_counter() - start
            history.check(tool.tree, middle, tool.work, tool.env, exact=tool.exact)
    except FAILURES as error:
        _fail(report, key, error)


def _fail(report: StorageReport, key: tuple[str, str], error: Exception) -> None:
    report.missing[key] = str(error)
    report.results.pop(key, None)
