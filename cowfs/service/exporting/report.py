"""What an export wrote, and what it could not write as it is.

Threading: owned by the thread that exports.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Progress = Callable[[int, int], None]
"""Called now and then with the entries and the bytes written so far."""

PROBLEMS_KEPT = 1000
"""Problems that are listed; further ones are only counted."""

_STEP_ENTRIES = 256
_STEP_BYTES = 8 << 20


def silent(entries: int, size: int) -> None:
    """No progress is wanted."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that could not be written as it is.

    what: owner, mode, times, xattr (the thing is there without it), special (it is not there),
    content (a file or directory whose content cannot be read, it is not there).
    """

    path: bytes
    what: str
    detail: str

    def to_json(self) -> dict[str, Any]:
        return {
            "path": os.fsdecode(self.path) or ".",
            "what": self.what,
            "detail": self.detail,
        }


@dataclass(slots=True)
class Exported:
    """What an export wrote.

    directories, with the top; specials: fifos, sockets, devices; links: further names of files
    that were written; bytes_written: content of files, holes included.
    problems: the first `PROBLEMS_KEPT` of `problem_count`.
    """

    directories: int = 0
    files: int = 0
    symlinks: int = 0
    specials: int = 0
    links: int = 0
    bytes_written: int = 0
    problems: list[Problem] = field(default_factory=list)
    problem_count: int = 0

    @property
    def entries(self) -> int:
        """Names written, the top directory included."""
        return self.directories + self.files + self.symlinks + self.specials + self.links

    def problem(self, path: bytes, what: str, detail: object) -> None:
        """Note what could not be written as it is."""
        self.problem_count += 1
        if len(self.problems) < PROBLEMS_KEPT:
            self.problems.append(Problem(path, what, str(detail)))

    def to_json(self) -> dict[str, Any]:
        return {
            "entries": self.entries,
            "directories": self.directories,
            "files": self.files,
            "symlinks": self.symlinks,
            "specials": self.specials,
            "links": self.links,
            "bytes": self.bytes_written,
            "problems": [problem.to_json() for problem in self.problems],
            "problem_count": self.problem_count,
        }


class Meter:
    """Passes progress on at a bearable rate."""

    def __init__(self, report: Exported, progress: Progress) -> None:
        self._report = report
        self._progress = progress
        self._entries = 0
        self._bytes = 0

    def tick(self) -> None:
        """Something was written."""
        entries, size = self._report.entries, self._report.bytes_written
        if entries - self._entries >= _STEP_ENTRIES or size - self._bytes >= _STEP_BYTES:
            self._entries, self._bytes = entries, size
            self._progress(entries, size)

    def finish(self) -> None:
        """All was written."""
        self._progress(self._report.entries, self._report.bytes_written)
