"""What `verify` found: problems and counts.

Threading: owned by the thread that verifies.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

HEAD = "@"
"""Stands for the present state among the checkpoints that a problem hits."""

ERROR, NOTE = "error", "note"

Progress = Callable[[str, int, int], None]
"""Called with a phase's name, how much of it is done, and how much it is in all (0: unknown)."""

_KEPT = 1000
"""Problems of one check that are listed; further ones are only counted."""


def text(name: bytes) -> str:
    """A name or path for people and JSON; bytes that are not UTF-8 become lone surrogates."""
    return os.fsdecode(name)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is not as it should be.

    check: symbolic name (docs/format.md, "What verify checks"). table: of the store, or "mount".
    thing: what in that table. checkpoints: ids of those that show the damage, "@" for the present
    state. paths: relative to the top, in the states that are hit. severity: "error" or "note".
    """

    check: str
    table: str
    thing: str
    detail: str
    checkpoints: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    severity: str = ERROR

    def to_json(self) -> dict[str, Any]:
        return {
            "check": self.check,
            "table": self.table,
            "thing": self.thing,
            "checkpoints": list(self.checkpoints),
            "paths": list(self.paths),
            "detail": self.detail,
            "severity": self.severity,
        }


@dataclass(slots=True)
class Report:
    """The result of one run.

    checked: how many things of each kind were looked at. problems: errors only. notes: what is
    worth knowing and harms nothing. omitted: for each check, how many more problems there are
    than are listed. skipped: what could not be checked because of damage below it.
    """

    checked: Counter[str] = field(default_factory=Counter)
    problems: list[Problem] = field(default_factory=list)
    notes: list[Problem] = field(default_factory=list)
    omitted: Counter[str] = field(default_factory=Counter)
    skipped: list[str] = field(default_factory=list)
    _listed: Counter[str] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        """How many errors there are, listed or not."""
        return len(self.problems) + self.omitted.total()

    def room(self, check: str) -> bool:
        """Whether another problem of this check would be listed; counts it when it would not."""
        if self._listed[check] < _KEPT:
            return True
        self.omitted[check] += 1
        return False

    def add(
        self,
        check: str,
        table: str,
        thing: str,
        detail: str,
        *,
        checkpoints: Iterable[str] = (),
        paths: Iterable[bytes] = (),
        severity: str = ERROR,
    ) -> None:
        """List a problem or a note."""
        where = self.problems if severity == ERROR else self.notes
        self._listed[check] += 1
        where.append(
            Problem(
                check,
                table,
                thing,
                detail,
                tuple(checkpoints),
                tuple(text(path) for path in paths),
                severity,
            )
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data for the command's --json."""
        return {
            "checked": dict(self.checked),
            "problems": [problem.to_json() for problem in self.problems],
            "notes": [note.to_json() for note in self.notes],
            "omitted": dict(self.omitted),
            "skipped": list(self.skipped),
        }
