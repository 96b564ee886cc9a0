"""``bench epochs``: checkpoint and restore against the tree's size and the history's length.

One workspace for each pair of size and history, all mounted at once and measured in turn, so that
the machine's moods reach all of them alike.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.cowfs_command import Cowfs, Document, Mount
from benchmarks.report import seconds_text, spread_text, table, verdicts_table
from benchmarks.stats import Summary, Verdict
from benchmarks.system import BenchError, Env, poll, run_tool, settle, watchdog

FILES_PER_DIRECTORY = 50
CHANGED = 100
"""How many files a restore takes back."""
IMPORT_SECONDS = 1800.0
"""When work in the background counts as stuck."""

CLEAN = "checkpoint clean"
ONE = "checkpoint 1"
RESTORE = f"restore {CHANGED}"
RESTORE_STORED = f"restore {CHANGED} stored"
OPERATIONS = (CLEAN, ONE, RESTORE, RESTORE_STORED)
PYTHON = "python -c pass"
LEGEND = f"""\
{CLEAN}: nothing changed since the last one; {ONE}: one file was just written
{RESTORE}: so many files were just written; {RESTORE_STORED}: and a checkpoint made after that
growth is from the first line of a table to the last; every other bar is held by the worst line"""

GROWTH = 1.5
"""Bar: the most at the largest scale, in medians of the smallest."""
LIMITS_MS = {CLEAN: 2.0, RESTORE: 20.0, RESTORE_STORED: 20.0}
"""Bars: the daemon's own milliseconds, at any scale."""
COMMAND = 4.0
"""Bar: the whole command that checkpoints nothing, in times of starting the interpreter."""


@dataclass(frozen=True, order=True)
class Scale:
    """The two dimensions."""

    files: int
    checkpoints: int

    def __str__(self) -> str:
        return f"{self.files:,} files, {self.checkpoints:,} checkpoints"


def make_tree(base: Path, files: int) -> list[Path]:
    """Make *files* small files below *base*, 50 in a directory; return their paths."""
    paths = []
    for number in range(files):
        directory = number // FILES_PER_DIRECTORY
        parent = base / f"part{directory // FILES_PER_DIRECTORY}" / f"dir{directory}"
        if number % FILES_PER_DIRECTORY == 0:
            parent.mkdir(parents=True)
        path = parent / f"file{number}.txt"
        path.write_text(f"This is file {number}.\n" * 8)
        paths.append(path)
    return paths


@dataclass
class Workspace:
    """A mounted tree of one scale, and the files that are edited in it."""

    scale: Scale
    cowfs: Cowfs
    mount: Mount
    hot: list[Path]
    """Spread over the tree. History and measurements edit the same files, as people do."""
    import_seconds: float = 0.0
    edits: int = 0

    def call(self, command: str, *arguments: str) -> Document:
        """One command in this workspace, not timed."""
        return self.cowfs.call(self.mount.base, command, *arguments)

    def edit(self, count: int) -> None:
        """Give the first *count* hot files a content that they never had."""
        self.edits += 1
        for path in self.hot[:count]:
            path.write_text(f"{path.name}, edit {self.edits}\n" * 8)

    def expect(self, edits: int) -> None:
        """Check that every hot file holds what the edit of that number wrote."""
        for path in self.hot:
            if path.read_text() != f"{path.name}, edit {edits}\n" * 8:
                raise BenchError(f"{path} was not restored")

    def settle(self) -> None:
        """Let what came before end, so that it is not charged to what is timed next."""
        if not settle(self.mount.base, [self.mount.pid], seconds=IMPORT_SECONDS):
            raise BenchError(f"the daemon of {self.scale} does not become idle")

    def await_import(self) -> None:
        """Wait until the whole tree is in the store and the daemon is idle."""
        start = time.monotonic()

        def complete() -> bool:
            return bool(self.call("status")["import"]["complete"])

        if not poll(complete, seconds=IMPORT_SECONDS, interval=0.2):
            raise BenchError(f"the import of {self.scale} did not end")
        self.import_seconds = time.monotonic() - start
        self.settle()

    def make_history(self) -> None:
        """Make the checkpoints that are there before anything is measured, one edit in each."""

        def edit(number: int) -> None:
            path = self.hot[number % len(self.hot)]
            path.write_text(f"{path.name}, history {number}\n" * 8)

        self.mount.checkpoints(edit, self.scale.checkpoints)


@dataclass
class Samples:
    """Seconds of one operation at one scale."""

    daemon: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)


class Recorder:
    """Times the operations and keeps what they took."""

    def __init__(self) -> None:
        self.samples: dict[tuple[Scale, str], Samples] = defaultdict(Samples)
        self.recording = False

    def timed(self, space: Workspace, operation: str, command: str, *arguments: str) -> Document:
        """Run one cowfs command as *operation*."""
        whole, said = space.cowfs.timed(space.mount.base, command, *arguments)
        self._keep(space.scale, operation, whole, float(said["daemon_seconds"]))
        return said

    def python(self, space: Workspace, env: Env) -> None:
        """Time starting and ending the interpreter that also runs cowfs."""
        start = time.perf_counter()
        run_tool([sys.executable, "-c", "pass"], env=env)
        self._keep(space.scale, PYTHON, time.perf_counter() - start)

    def _keep(
        self, scale: Scale, operation: str, whole: float, daemon: float | None = None
    ) -> None:
        if self.recording:
            samples = self.samples[scale, operation]
            samples.whole.append(whole)
            if daemon is not None:
                samples.daemon.append(daemon)

    def round(self, space: Workspace, env: Env) -> None:
        """Every operation once in one workspace, each from a known state."""
        space.edit(len(space.hot))
        space.call("checkpoint")
        space.settle()
        self.python(space, env)
        self.timed(space, CLEAN, "checkpoint")

        space.settle()
        space.hot[0].write_text("one changed file\n")
        self.timed(space, ONE, "checkpoint")

        space.edit(len(space.hot))
        wanted = space.edits
        origin = str(space.call("checkpoint")["checkpoint"]["id"])
        space.settle()
        space.edit(len(space.hot))
        self.timed(space, RESTORE, "restore", origin)
        space.expect(wanted)

        space.edit(len(space.hot))
        space.call("checkpoint")
        space.settle()
        self.timed(space, RESTORE_STORED, "restore", origin)
        space.expect(wanted)


@dataclass(frozen=True)
class EpochsReport:
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
        """Growth from the least to the most, and the worst of all scales against each limit."""
        found = []
        least, most = self.scales[0], self.scales[-1]
        if least != most:
            for operation in OPERATIONS:
                for what, summary in (("daemon", self.daemon), ("command", self.whole)):
                    low, high = summary(least, operation), summary(most, operation)
                    growth = high.over(low).median if low and high else None
                    name = f"growth, {operation} ({what})"
                    found.append(Verdict.below(name, growth, GROWTH, "x"))
        for operation, limit in LIMITS_MS.items():
            worst = max(s.median for x in self.scales if (s := self.daemon(x, operation)))
            found.append(Verdict.below(f"{operation} (daemon)", worst * 1e3, limit, " ms"))
        ratios = [
            above.over(below).median
            for scale in self.scales
            if (above := self.whole(scale, CLEAN)) and (below := self.whole(scale, PYTHON))
        ]
        found.append(Verdict.below(f"cowfs checkpoint / {PYTHON}", max(ratios), COMMAND, "x"))
        return found

    def text(self) -> str:
        """The whole report for people."""
        return "\n\n".join(
            [
                f"medians of {self.rounds} (fastest-slowest)",
                "daemon\n" + self._table(OPERATIONS, daemon=True),
                "whole command\n" + self._table((PYTHON, *OPERATIONS), daemon=False),
                "mount and import\n" + self._setup_table(),
                LEGEND,
                verdicts_table(self.verdicts()),
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
        bars = [verdict.document() for verdict in self.verdicts()]
        return {"rounds": self.rounds, "setup": setup, "results": results, "bars": bars}


def measure(
    work: Path, env: Env, scales: Sequence[Scale], rounds: int, timeout: float
) -> EpochsReport:
    """Build a workspace of each scale, the least first, and measure *rounds* times.

    *timeout*: seconds after which the round of one workspace, or making its history, counts as
    hung.
    """
    cowfs = Cowfs.installed(env)
    recorder = Recorder()
    with ExitStack() as stack:
        spaces = [_open(stack, work / f"space{i}", cowfs, scale) for i, scale in enumerate(scales)]
        for space in spaces:
            with watchdog([space.mount.pid], seconds=timeout):
                space.make_history()
        for number in range(rounds + 1):
            # The first round only warms up.
            recorder.recording = number > 0
            print(f"round {number}/{rounds}", file=sys.stderr, flush=True)
            for space in spaces:
                with watchdog([space.mount.pid], seconds=timeout):
                    recorder.round(space, env)
        setup = {space.scale: (space.mount.seconds, space.import_seconds) for space in spaces}
    return EpochsReport(scales, recorder.samples, setup, rounds)


def _open(stack: ExitStack, directory: Path, cowfs: Cowfs, scale: Scale) -> Workspace:
    """Make and mount one workspace, and wait until it is imported."""
    print(f"preparing {scale}", file=sys.stderr, flush=True)
    base = directory / "base"
    base.mkdir(parents=True)
    paths = make_tree(base, scale.files)
    mount = stack.enter_context(cowfs.mounted(base, directory / "store"))
    step = max(1, len(paths) // CHANGED)
    space = Workspace(scale, cowfs, mount, paths[::step][:CHANGED])
    space.await_import()
    return space
