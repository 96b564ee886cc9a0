"""Checkpoint and restore against the tree's size and the history's length.

One workspace for each scale, all mounted at once and measured in turn, so that the machine's moods
reach all of them alike.
"""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import bars
from benchmarks.cowfs_command import Cowfs, Document
from benchmarks.epochs.workspace import HOT, Scale, Workspace, open_workspace
from benchmarks.report import seconds_text, spread_text, table
from benchmarks.stats import Summary, Verdict
from benchmarks.svg import Chart, Mark, Row
from benchmarks.system import Env, run_tool, watchdog

CLEAN = "checkpoint clean"
ONE = "checkpoint 1"
RESTORE = f"restore {HOT}"
RESTORE_STORED = f"restore {HOT} stored"
OPERATIONS = (CLEAN, ONE, RESTORE, RESTORE_STORED)
PYTHON = "python -c pass"
DISK = "4 KiB + fsync"
LEGEND = f"""\
{CLEAN}: nothing changed since the last one; {ONE}: one file was just written
{RESTORE}: so many files were just written; {RESTORE_STORED}: and a checkpoint made after that
{DISK}: written to a native file; what no durable operation can be faster than"""

GROWTH = 1.5
"""Bar: the most at the largest scale, in medians of the smallest."""


def scales(sizes: Sequence[int], histories: Sequence[int]) -> list[Scale]:
    """Every size with the shortest history, every history in the smallest tree, and the most."""
    found = {Scale(size, histories[0]) for size in sizes}
    found |= {Scale(sizes[0], history) for history in histories}
    found.add(Scale(sizes[-1], histories[-1]))
    return sorted(found)


@dataclass
class Samples:
    """Seconds of one operation at one scale."""

    daemon: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)


class Recorder:
    """Times the operations and keeps what they took."""

    def __init__(self, native: Path, env: Env) -> None:
        self.samples: dict[tuple[Scale, str], Samples] = defaultdict(Samples)
        self.recording = False
        self.native = native
        """A directory that is not mounted."""
        self.env = env

    def timed(self, space: Workspace, operation: str, command: str, *arguments: str) -> Document:
        """Run one cowfs command as *operation*."""
        whole, said = space.cowfs.timed(space.mount.base, command, *arguments)
        self._keep(space.scale, operation, whole, float(said["daemon_seconds"]))
        return said

    def python(self, space: Workspace) -> None:
        """Time starting and ending the interpreter that also runs cowfs."""
        start = time.perf_counter()
        run_tool([sys.executable, "-c", "pass"], env=self.env)
        self._keep(space.scale, PYTHON, time.perf_counter() - start)

    def disk(self, space: Workspace) -> None:
        """Time what a commit waits for at least."""
        with open(self.native / "disk", "ab", buffering=0) as file:
            start = time.perf_counter()
            file.write(os.urandom(4096))
            os.fdatasync(file.fileno())
            self._keep(space.scale, DISK, time.perf_counter() - start)

    def _keep(
        self, scale: Scale, operation: str, whole: float, daemon: float | None = None
    ) -> None:
        if self.recording:
            samples = self.samples[scale, operation]
            samples.whole.append(whole)
            if daemon is not None:
                samples.daemon.append(daemon)

    def round(self, space: Workspace) -> None:
        """Every operation once in one workspace, each from a known state."""
        space.edit()
        space.checkpoint()
        space.settle()
        self.python(space)
        self.disk(space)
        self.timed(space, CLEAN, "checkpoint")

        space.settle()
        space.hot[0].write_text("one changed file\n")
        self.timed(space, ONE, "checkpoint")

        space.edit()
        wanted = space.edits
        origin = space.checkpoint()
        space.settle()
        space.edit()
        self.timed(space, RESTORE, "restore", origin)
        space.expect(wanted)

        space.edit()
        space.checkpoint()
        space.settle()
        self.timed(space, RESTORE_STORED, "restore", origin)
        space.expect(wanted)


@dataclass(frozen=True)
class ScalesReport:
    """What was measured, and the bars it is held against."""

    scales: Sequence[Scale]
    samples: dict[tuple[Scale, str], Samples]
    setup: dict[Scale, tuple[float, float]]
    """Seconds of the mount command and of the import after it."""
    rounds: int

    def daemon(self, scale: Scale, operation: str) -> Summary | None:
        """The daemon's own time."""
        return Summary.of(self.samples[scale, operation].daemon)

    def whole(self, scale: Scale, operation: str) -> Summary | None:
        """The command's time from start to end."""
        return Summary.of(self.samples[scale, operation].whole)

    def verdicts(self) -> list[Verdict]:
        """The worst of all scales against each limit, and growth from the least to the most."""
        found = []
        for operation, limit in ((CLEAN, bars.MARK_MS), (RESTORE, bars.RESTORE_MS[HOT])):
            worst = max(s.median for x in self.scales if (s := self.daemon(x, operation)))
            what = f"{operation}, worst scale (daemon)"
            found.append(Verdict.below(what, worst * 1e3, limit, " ms"))
        ratios = [
            above.over(below).median
            for scale in self.scales
            if (above := self.whole(scale, CLEAN)) and (below := self.whole(scale, PYTHON))
        ]
        what = f"cowfs checkpoint / {PYTHON}, worst scale"
        found.append(Verdict.below(what, max(ratios), bars.COMMAND, "x"))
        least, most = self.scales[0], self.scales[-1]
        if least != most:
            for operation in OPERATIONS:
                low, high = self.daemon(least, operation), self.daemon(most, operation)
                growth = high.over(low).median if low and high else None
                what = f"growth to {most}, {operation} (daemon)"
                found.append(Verdict.below(what, growth, GROWTH, "x"))
        return found

    def charts(self) -> dict[str, Chart]:
        """The daemon's times by scale."""
        rows = []
        for scale in self.scales:
            found = {name: self.daemon(scale, name) for name in OPERATIONS}
            marks = {
                name: Mark(s.median * 1e3, s.low * 1e3, s.high * 1e3)
                for name, s in found.items()
                if s
            }
            rows.append(Row(f"{scale.files:,} files, {scale.checkpoints:,} cp.", marks))
        unit = f"milliseconds in the daemon; lines: fastest to slowest of {self.rounds}"
        title = "Checkpoint and restore, by size of the tree and number of checkpoints (cp.)"
        return {"epochs": Chart(title, unit, OPERATIONS, rows)}

    def text(self) -> str:
        """The tables for people."""
        return "\n\n".join(
            [
                f"checkpoint and restore by scale; medians of {self.rounds} (fastest-slowest)",
                "daemon\n" + self._table(OPERATIONS, daemon=True),
                "whole command\n" + self._table((DISK, PYTHON, *OPERATIONS), daemon=False),
                "mount and import\n" + self._setup_table(),
                LEGEND,
            ]
        )

    def _table(self, operations: Sequence[str], *, daemon: bool) -> str:
        rows = []
        for scale in self.scales:
            cells = [str(scale)]
            for operation in operations:
                summary = (self.daemon if daemon else self.whole)(scale, operation)
                cells.append(spread_text(summary))
            rows.append(cells)
        return table(["", *operations], rows)

    def _setup_table(self) -> str:
        rows = [
            (str(scale), seconds_text(mount), seconds_text(imported))
            for scale, (mount, imported) in self.setup.items()
        ]
        return table(["", "mount", "then import"], rows)

    def document(self) -> dict[str, object]:
        """The JSON form."""
        results = []
        for (scale, operation), samples in self.samples.items():
            daemon, whole = Summary.of(samples.daemon), Summary.of(samples.whole)
            results.append(
                {
                    "files": scale.files,
                    "checkpoints": scale.checkpoints,
                    "operation": operation,
                    "daemon": daemon.document() if daemon else None,
                    "command": whole.document() if whole else None,
                }
            )
        setup = [
            {
                "files": scale.files,
                "checkpoints": scale.checkpoints,
                "mount_seconds": mount,
                "import_seconds": imported,
            }
            for scale, (mount, imported) in self.setup.items()
        ]
        return {"rounds": self.rounds, "setup": setup, "results": results}


def measure(
    work: Path, env: Env, wanted: Sequence[Scale], rounds: int, timeout: float
) -> ScalesReport:
    """Build a workspace of each scale, the least first, and measure *rounds* times.

    *timeout*: seconds after which the round of one workspace, or making its history, counts as
    hung.
    """
    cowfs = Cowfs.installed(env)
    recorder = Recorder(work, env)
    with ExitStack() as stack:
        spaces = [
            open_workspace(stack, work / f"space{i}", cowfs, scale)
            for i, scale in enumerate(wanted)
        ]
        for space in spaces:
            with watchdog([space.mount.pid], seconds=timeout):
                space.make_history()
        for number in range(rounds + 1):
            # The first round only warms up.
            recorder.recording = number > 0
            print(f"scales, round {number}/{rounds}", file=sys.stderr, flush=True)
            for space in spaces:
                with watchdog([space.mount.pid], seconds=timeout):
                    recorder.round(space)
        setup = {space.scale: (space.mount.seconds, space.import_seconds) for space in spaces}
    return ScalesReport(wanted, recorder.samples, setup, rounds)
