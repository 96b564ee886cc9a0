"""What the demo prints, and how long things took."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

_WIDTH = 78
_SHOWN = 10
"""Of a failed check, as many differences are printed."""


class DemoError(Exception):
    """The demo cannot go on; the message is for the user."""


def printable(text: str) -> str:
    """*text* with everything that is not printable ASCII as an escape."""
    return "".join(c if " " <= c <= "~" else c.encode("unicode_escape").decode() for c in text)


def seconds(value: float) -> str:
    """A duration for a table: hundredths of a second."""
    return f"{value:.2f} s"


@dataclass
class Step:
    """One numbered step.

    `elapsed` is its time in seconds, `daemon` the part of it that cowfs' daemon needed, as far
    as a command has told, and `note` is for the table at the end.
    """

    number: int
    title: str
    elapsed: float = 0.0
    daemon: float | None = None
    note: str = ""


@dataclass
class Report:
    """Prints steps, commands and checks as they come, and the table at the end."""

    steps: list[Step] = field(default_factory=list)
    passed: int = 0
    failed: list[str] = field(default_factory=list)

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """A numbered step; its time is the `elapsed` that the body adds up."""
        step = Step(len(self.steps) + 1, title)
        self.steps.append(step)
        self.line()
        self.line(f"{step.number:2}. {title}")
        yield step

    @contextmanager
    def timed(self, step: Step, what: str) -> Iterator[None]:
        """Times a part of *step* and prints a line with *what* and the time."""
        started = time.perf_counter()
        yield
        elapsed = time.perf_counter() - started
        step.elapsed += elapsed
        self.timing(what, elapsed)

    def timing(self, what: str, elapsed: float) -> None:
        """A line with its time at the right margin."""
        text = f"    {what}"
        if len(text) > _WIDTH - 12:
            text = text[: _WIDTH - 15] + "..."
        self.line(f"{text:<{_WIDTH - 11}} {seconds(elapsed):>10}")

    def check(self, what: str, differences: list[str]) -> None:
        """A check has passed when there are no *differences*; otherwise the first are shown."""
        if not differences:
            self.passed += 1
            self.line(f"    ok: {what}")
            return
        self.failed.append(what)
        self.line(f"    FAILED: {what}")
        for difference in differences[:_SHOWN]:
            self.line(f"        {difference}")
        if len(differences) > _SHOWN:
            self.line(f"        and {len(differences) - _SHOWN:,} more")

    def line(self, text: str = "") -> None:
        """A line of output, at once: the steps take time and are watched."""
        sys.stdout.write(printable(text).rstrip() + "\n")
        sys.stdout.flush()

    def table(self) -> None:
        """What each step took."""
        self.line()
        self.line("What each step took")
        self.line("-" * _WIDTH)
        for step in self.steps:
            note = step.note
            if step.daemon is not None:
                note = f"{1000 * step.daemon:.1f} ms of it in the daemon"
            self.line(f"{step.number:3}. {step.title:<36.36}{seconds(step.elapsed):>9}  {note}")
        self.line("-" * _WIDTH)
        total = sum(step.elapsed for step in self.steps)
        self.line(f"     {'all steps':<36}{seconds(total):>9}  (making the proof not counted)")
