"""Checkpoint against how much data is dirty, and restore against how many files changed.

Also what the daemon costs while nothing is asked of it: memory after a walk over the whole tree,
and CPU when idle. All of it in one workspace, mounted for this.
"""

from __future__ import annotations

import os
import random
import re
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import bars
from benchmarks.cowfs_command import Cowfs
from benchmarks.epochs.workspace import Scale, Workspace, open_workspace
from benchmarks.report import spread_text, table
from benchmarks.stats import Summary, Verdict
from benchmarks.system import BenchError, Env, cpu_seconds, run_tool, watchdog

MIB = 1 << 20
IDLE_SECONDS = 10.0


@dataclass(frozen=True)
class Memory:
    """Resident memory of the daemon in MiB."""

    resident: float
    anonymous: float
    """Its own; the rest is pages of files, above all of the store, which the kernel may drop."""

    @classmethod
    def of(cls, pid: int) -> Memory:
        """What the process has now."""
        text = Path(f"/proc/{pid}/status").read_text()

        def mib(name: str) -> float:
            found = re.search(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE)
            if found is None:
                raise BenchError(f"/proc has no {name}")
            return int(found[1]) / 1024

        return cls(mib("VmRSS"), mib("RssAnon"))


@dataclass
class AmountsReport:
    """What was measured, and the bars it is held against."""

    files: int
    rounds: int
    changed: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Seconds in the daemon by number of changed files."""
    dirty: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Seconds in the daemon by MiB of dirty data."""
    native: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Seconds of fsync of a native file by MiB of dirty data."""
    memory: dict[str, Memory] = field(default_factory=dict)
    idle_percent: float = 0.0
    """Of one CPU."""

    def verdicts(self) -> list[Verdict]:
        """Each bar that something was measured for."""
        found = []
        for count, limit in bars.RESTORE_MS.items():
            if (taken := Summary.of(self.changed.get(count, ()))) is not None:
                what = f"restore of {count:,} changed among {self.files:,} (daemon)"
                found.append(Verdict.below(what, taken.median * 1e3, limit, " ms"))
        much = bars.DIRTY_MIB
        mine, disk = Summary.of(self.dirty.get(much, ())), Summary.of(self.native.get(much, ()))
        ratio = mine.over(disk).median if mine and disk else None
        what = f"checkpoint with {much} MiB dirty / native fsync of it"
        found.append(Verdict.at_most(what, ratio, bars.DIRTY_TIMES, "x"))
        walked = self.memory.get("after walking")
        # A smaller tree says nothing about the bar.
        resident = walked.resident if walked and self.files >= bars.MEMORY_FILES else None
        what = f"daemon's memory after walking {self.files:,} files"
        found.append(Verdict.below(what, resident, bars.MEMORY_MIB, " MiB"))
        found.append(Verdict.below("idle CPU", self.idle_percent, bars.IDLE_PERCENT, " %"))
        return found

    def text(self) -> str:
        """The tables for people."""
        restores = [
            (f"{count:,}", spread_text(Summary.of(self.changed[count]))) for count in self.changed
        ]
        dirty = [
            (
                f"{mib} MiB",
                spread_text(Summary.of(self.dirty[mib])),
                spread_text(Summary.of(self.native[mib])),
            )
            for mib in self.dirty
        ]
        memory = [
            (when, f"{found.resident:.0f} MiB", f"{found.anonymous:.0f} MiB")
            for when, found in self.memory.items()
        ]
        return "\n\n".join(
            [
                f"amounts, in a tree of {self.files:,} files; medians of {self.rounds}",
                table(("changed files", "restore (daemon)"), restores),
                table(("dirty data", "checkpoint (daemon)", "native fsync"), dirty),
                table(("daemon's memory", "resident", "its own"), memory),
                f"idle: {self.idle_percent:.3f} % of a CPU over {IDLE_SECONDS:.0f} s",
            ]
        )

    def document(self) -> dict[str, object]:
        """The JSON form; times are in seconds."""
        return {
            "files": self.files,
            "rounds": self.rounds,
            "restore_by_changed_files": {str(k): v for k, v in self.changed.items()},
            "checkpoint_by_dirty_mib": {str(k): v for k, v in self.dirty.items()},
            "native_fsync_by_dirty_mib": {str(k): v for k, v in self.native.items()},
            "memory_mib": {
                when: {"resident": found.resident, "anonymous": found.anonymous}
                for when, found in self.memory.items()
            },
            "idle_percent": self.idle_percent,
        }


@dataclass
class Amounts:
    """One measurement of everything."""

    space: Workspace
    native: Path
    """A directory on the native filesystem."""
    report: AmountsReport
    env: Env

    def footprint(self) -> None:
        """Memory before and after a walk with a stat of everything, then CPU when idle."""
        pid = self.space.mount.pid
        self.report.memory["after import"] = Memory.of(pid)
        run_tool(["find", self.space.mount.base, "-printf", "%s %m %T@\n"], env=self.env)
        self.report.memory["after walking"] = Memory.of(pid)
        self.space.settle()
        before = cpu_seconds([pid])
        time.sleep(IDLE_SECONDS)
        self.report.idle_percent = (cpu_seconds([pid]) - before) / IDLE_SECONDS * 100

    def restore(self, count: int) -> None:
        """Change *count* files and take that back."""
        space = self.space
        origin = space.checkpoint()
        kept = space.hot[:count]
        before = [path.read_bytes() for path in kept]
        for path in kept:
            path.write_bytes(b"changed\n" * 16)
        space.settle()
        said = space.call("restore", origin)
        if [path.read_bytes() for path in kept] != before:
            raise BenchError(f"a restore of {count} files did not bring all of them back")
        self.report.changed[count].append(float(said["daemon_seconds"]))
        space.settle()

    def dirty(self, mib: int, number: int) -> None:
        """Write so much without closing the file, then checkpoint; and the same with fsync."""
        chunks = [random.Random(number * 1000 + turn).randbytes(MIB) for turn in range(mib)]
        with open(self.space.mount.base / "dirty", "wb", buffering=0) as file:
            self.space.settle()
            for chunk in chunks:
                file.write(chunk)
            said = self.space.call("checkpoint")
        self.report.dirty[mib].append(float(said["daemon_seconds"]))
        self.space.settle()
        with open(self.native / "dirty", "wb", buffering=0) as file:
            for chunk in chunks:
                file.write(chunk)
            start = time.perf_counter()
            os.fsync(file.fileno())
            self.report.native[mib].append(time.perf_counter() - start)


def measure(
    work: Path,
    env: Env,
    files: int,
    changed: Sequence[int],
    dirty: Sequence[int],
    rounds: int,
    timeout: float,
) -> AmountsReport:
    """Build a tree of so many files and measure *rounds* times.

    *changed*: numbers of files to change before a restore. *dirty*: MiB to write before a
    checkpoint.
    """
    report = AmountsReport(files, rounds)
    with ExitStack() as stack:
        cowfs = Cowfs.installed(env)
        space = open_workspace(stack, work / "amounts", cowfs, Scale(files, 0), max(changed))
        amounts = Amounts(space, work, report, env)
        with watchdog([space.mount.pid], seconds=timeout):
            amounts.footprint()
        for number in range(rounds):
            print(f"amounts, round {number + 1}/{rounds}", file=sys.stderr, flush=True)
            with watchdog([space.mount.pid], seconds=timeout):
                for count in changed:
                    amounts.restore(count)
                for mib in dirty:
                    amounts.dirty(mib, number)
    return report
