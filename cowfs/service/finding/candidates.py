"""States in a directory of their own, one after the other, for a command to be run in each.

What a command leaves behind in one must not decide about the next. The first one is written as a
whole; from then on what the command did is found and undone, and what the next state has otherwise
is written (`exporting.renewal`). Where that is not certain to be right, or cannot be done, it is
written as a whole again.

Threading: none of its own.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from cowfs.errors import CowfsError
from cowfs.service.content import Tree
from cowfs.service.export import export_tree
from cowfs.service.exporting.renewal import NotRenewableError, Survey, remove, renew, settle
from cowfs.service.selectors import Point
from cowfs.service.states import States
from cowfs.service.workspace import ReadOnly


def line_of(workspace: ReadOnly, bad: Point) -> list[str]:
    """The states that one comes from, itself first: ids of checkpoints, "@" for the present one.

    A present state without changes is left out: it is that of the checkpoint before.
    """
    states = States(workspace.reader, workspace.branch.head)
    epoch = bad.lineage.head
    line = []
    while True:
        record = states.checkpoint(epoch) if epoch != states.head else None
        if record is not None:
            line.append(record.id)
        elif epoch == states.head and states.has_changes(epoch):
            line.append("@")
        if epoch == 0:
            return line or ["@"]
        epoch = states.parent(epoch)


@dataclass(frozen=True, slots=True)
class _Shown:
    """What the directory shows: a checkpoint, and how it was when it had been written."""

    checkpoint: str
    survey: Survey


class Candidates:
    """A directory that shows one state after the other."""

    def __init__(self, top: Path, *, fresh: bool = False) -> None:
        """top: of ours, and for nothing else. fresh: write each state as a whole."""
        self._top = top
        self._fresh = fresh
        self._place: Path | None = None
        self._shown: _Shown | None = None

    def write(self, workspace: ReadOnly, point: Point) -> tuple[Path, list[str]]:
        """Where a state is now, and the paths in it whose content could not be read. What was
        written before is gone. Raises the errors of `export_tree`, and OSError."""
        # Each has a name of its own: nothing that remembers a path finds the next one there.
        place = self._top / (point.checkpoint.id if point.checkpoint else "now")
        lost: list[bytes] = []
        if not self._renew(workspace, point, place):
            if self._place is not None:
                remove(self._place)
            self._place = place
            done = export_tree(workspace, point, place, durable=False)
            lost = [problem.path for problem in done.problems if problem.what == "content"]
        # The present state may change, and what it was cannot be asked for afterwards.
        if point.checkpoint is not None and not lost and not self._fresh:
            self._note(point.checkpoint.id, place)
        return place, [os.fsdecode(path) or "." for path in lost]

    def leave(self) -> None:
        """Something may still be at work in the directory: the next one is not made of it."""
        self._shown = None

    def _renew(self, workspace: ReadOnly, point: Point, place: Path) -> bool:
        """Make the state of what was written before, if that can be done."""
        shown, self._shown = self._shown, None
        if shown is None or self._place is None:
            return False
        try:
            old = Tree(workspace, workspace.point(shown.checkpoint))
            os.rename(self._place, place)
            self._place = place
            renew(place, shown.survey, old, Tree(workspace, point))
        except (NotRenewableError, CowfsError, OSError):
            return False
        return True

    def _note(self, checkpoint: str, place: Path) -> None:
        try:
            survey = Survey(place)
            settle(survey, self._top)
        except OSError:
            return  # a directory is closed to us: it cannot be looked through
        self._shown = _Shown(checkpoint, survey)
