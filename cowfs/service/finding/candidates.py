"""A state in a directory of its own, for a command to be run in it; removed afterwards.

Each is written anew: what a command leaves behind in one must not decide about the next.

Threading: none of its own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from cowfs.service.export import export_tree
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


@contextlib.contextmanager
def candidate(workspace: ReadOnly, point: Point, place: Path) -> Iterator[list[str]]:
    """Write a state to a directory that does not exist yet, and remove it in the end.

    Gives the paths whose content could not be read. Raises the errors of `export_tree`.
    """
    try:
        done = export_tree(workspace, point, place)
        lost = [problem for problem in done.problems if problem.what == "content"]
        yield [os.fsdecode(problem.path) or "." for problem in lost]
    finally:
        remove(place)


def remove(place: Path) -> None:
    """Remove a directory that is ours with all that is in it, be it closed to us; nothing happens
    when it is not there. Raises OSError."""
    for above, names, _ in os.walk(place):
        for name in names:
            path = os.path.join(above, name)
            mode = os.lstat(path).st_mode
            if stat.S_ISDIR(mode) and mode & stat.S_IRWXU != stat.S_IRWXU:
                os.chmod(path, stat.S_IRWXU)
    if place.exists():
        place.chmod(stat.S_IRWXU)
        shutil.rmtree(place)
