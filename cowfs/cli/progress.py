"""How far long work is: one line on stderr that is written over, on a terminal only."""

from __future__ import annotations

import sys
import time

from cowfs.cli import output

_EVERY_SECONDS = 0.1
_WIDTH = 79


class ProgressLine:
    """A context manager; what it showed is gone when it ends. Silent where nobody looks."""

    def __init__(self) -> None:
        self.visible = sys.stderr.isatty()
        self._last = 0.0
        self._shown = ""

    def show(self, line: str, *, at_once: bool = False) -> None:
        """Replace the line; calls that come too fast for the eye are dropped."""
        moment = time.monotonic()
        if not self.visible or (not at_once and moment - self._last < _EVERY_SECONDS):
            return
        line = output.printable(line)
        if len(line) > _WIDTH:
            line = line[: _WIDTH - 1] + "…"
        if line != self._shown:
            sys.stderr.write("\r\x1b[K" + line)
            sys.stderr.flush()
            self._last, self._shown = moment, line

    def step(self, what: str, done: int, total: int | None, path: str = "") -> None:
        """ "applying 120/4,000 src/main.c"."""
        number = f"{done:,}/{total:,}" if total else f"{done:,}"
        self.show(f"{what} {number} {path}".rstrip())

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._shown = ""

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.clear()
