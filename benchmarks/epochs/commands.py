"""The commands that read history, whole, in a large tree with a long history.

Each is run as a person would type it, from starting the process to its end. What prints more than a
screen is not held against the bar, and so not run.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import bars
from benchmarks.cowfs_command import Cowfs
from benchmarks.epochs import collecting
from benchmarks.epochs.workspace import HOT, Scale, Workspace, open_workspace
from benchmarks.report import spread_text, table
from benchmarks.stats import Summary, Verdict
from benchmarks.system import BenchError, Env, watchdog

GONE = "gone.txt"
"""A file that the first half of the history has, and the second has not."""
LABEL = "halfway"


@dataclass
class CommandsReport:
    """What was measured, and the bar that it is held against."""

    scale: Scale
    rounds: int
    commands: Sequence[str]
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    failed: dict[str, str] = field(default_factory=dict)
    """Commands that ended with an error, and what it was."""
    pauses: collecting.Pauses = field(default_factory=collecting.Pauses)

    def verdicts(self) -> list[Verdict]:
        """Each command against the one limit."""
        found = []
        for command in self.commands:
            taken = Summary.of(self.seconds.get(command, ()))
            value = taken.median * 1e3 if taken and command not in self.failed else None
            what = f"cowfs {command}, {self.scale} (whole command)"
            found.append(Verdict.below(what, value, bars.HISTORY_MS, " ms"))
        return [*found, self.pauses.verdict()]

    def text(self) -> str:
        """The table for people."""
        rows = [
            (f"cowfs {name}", spread_text(Summary.of(self.seconds.get(name, ()))))
            for name in self.commands
        ]
        lines = [
            f"commands that read history, {self.scale}; medians of {self.rounds}",
            table(("", "whole command"), rows),
            *(f"Failed: cowfs {name}: {why}" for name, why in self.failed.items()),
            self.pauses.text(),
        ]
        return "\n\n".join(lines)

    def document(self) -> dict[str, object]:
        """The JSON form; times are in seconds."""
        return {
            "files": self.scale.files,
            "checkpoints": self.scale.checkpoints,
            "rounds": self.rounds,
            "seconds": dict(self.seconds),
            "failed": self.failed,
            "collecting": self.pauses.document(),
        }


def make_history(space: Workspace) -> None:
    """One edit for each checkpoint; a file that goes halfway."""
    base, half = space.mount.base, space.scale.checkpoints // 2
    (base / GONE).write_text("to be missed\n")

    def edit(number: int) -> None:
        path = space.hot[number % len(space.hot)]
        path.write_text(f"{path.name}, history {number}\n" * 8)
        if number == half:
            space.call("checkpoint", "--label", LABEL)
            (base / GONE).unlink()

    space.mount.checkpoints(edit, space.scale.checkpoints)
    space.settle()


def commands_for(space: Workspace) -> dict[str, Sequence[str]]:
    """What to run, by how it is shown."""
    path = str(space.hot[0].relative_to(space.mount.base))
    return {
        "status": ("status",),
        "log": ("log",),
        "log PATH": ("log", path),
        "log --grep": ("log", "--grep", "history 7"),
        "find NAME": ("find", GONE),
        "show OLD:PATH": ("show", f"{LABEL}:{path}"),
        "diff": ("diff",),
        "diff @~1 @~2": ("diff", "@~2", "@~1"),
        "diff OLD PATH": ("diff", LABEL, "@", path),
        "stats": ("stats",),
        "changes": ("changes", "--since", "@~10"),
        "changes PATH": ("changes", "--since", "@~10", path),
        "blame PATH": ("blame", path),
        "restore --dry-run": ("restore", "@~1", "--dry-run"),
    }


def measure(work: Path, env: Env, scale: Scale, rounds: int, timeout: float) -> CommandsReport:
    """Build the workspace and run each command *rounds* times, after once for nothing. Then collect
    most of the history."""
    with ExitStack() as stack:
        cowfs = Cowfs.installed(env)
        space = open_workspace(stack, work / "commands", cowfs, scale, HOT)
        with watchdog([space.mount.pid], seconds=timeout * 4):
            make_history(space)
        wanted = commands_for(space)
        report = CommandsReport(scale, rounds, list(wanted))
        for number in range(rounds + 1):
            print(f"commands, round {number}/{rounds}", file=sys.stderr, flush=True)
            with watchdog([space.mount.pid], seconds=timeout):
                for name, words in wanted.items():
                    try:
                        taken, _ = cowfs.timed(space.mount.base, *words)
                    except BenchError as error:
                        report.failed[name] = str(error)
                        continue
                    if number:
                        report.seconds[name].append(taken)
        print("commands: a collection", file=sys.stderr, flush=True)
        with watchdog([space.mount.pid], seconds=timeout):
            report.pauses = collecting.measure(space)
    return report
