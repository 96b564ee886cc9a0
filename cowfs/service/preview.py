"""What a restore would change, without doing it.

Threading: as the workspace.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cowfs.errors import ThinnedError, UsageError
from cowfs.format.records import CheckpointRecord
from cowfs.service.diff import Change, diff
from cowfs.service.selectors import Point
from cowfs.service.volatile import left_alone, matches
from cowfs.service.workspace import ReadOnly


@dataclass(frozen=True, slots=True)
class Preview:
    """now, target: the two states. checkpoint: the target's. changes: what must happen to the
    present state. left: patterns of volatile paths that differ and are left alone, as
    text."""

    now: Point
    target: Point
    checkpoint: CheckpointRecord
    changes: list[Change]
    left: tuple[str, ...]


def preview(
    workspace: ReadOnly,
    store: Path,
    selector: str,
    paths: Sequence[bytes] = (),
    exclude: Sequence[bytes] = (),
    *,
    volatile: bool = False,
) -> Preview:
    """What `restore.restore` would change with the same arguments.

    Raises UnknownCheckpointError, AmbiguousCheckpointError, UsageError, ThinnedError, as a restore
    would, and what `diff` raises.
    """
    left = [] if volatile else left_alone(store, paths)
    patterns = [*exclude, *left]
    now, target = workspace.point("@"), workspace.point(selector)
    if target.checkpoint is None:
        raise UsageError(detail="@ is the present state already", command="restore")
    found = diff(workspace, now, target, paths)
    changes = [change for change in found if not _excluded(change, patterns)]
    for change in changes:
        if change.new is not None and change.new.is_thinned:
            raise ThinnedError(path=os.fsdecode(change.path), where=target.name)
    names = tuple(os.fsdecode(p) for p in left if any(_concerns(change, p) for change in found))
    return Preview(now, target, target.checkpoint, changes, names)


def _concerns(change: Change, pattern: bytes) -> bool:
    """Whether a pattern leaves alone a path of a change."""
    paths = [change.path] if change.old_path is None else [change.path, change.old_path]
    return any(matches(path, [pattern]) for path in paths)


def _excluded(change: Change, patterns: list[bytes]) -> bool:
    """Whether a restore leaves all paths of a change alone: a path, one above it, or a name."""
    paths = [change.path] if change.old_path is None else [change.path, change.old_path]
    return all(matches(path, patterns) for path in paths)
