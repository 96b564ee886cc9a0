"""Restore, undo, redo: going to another state, so that one can always come back.

Threading: for the threads that an `Engine` is for.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from cowfs.errors import NothingToUndoError, UsageError
from cowfs.format import records
from cowfs.service.engine import Engine, look_at_git
from cowfs.service.selectors import get_checkpoint, resolve
from cowfs.service.volatile import left_alone
from cowfs.store.lineage import Lineage
from cowfs.store.steps import reached
from cowfs.tree.changes import touched_between
from cowfs.volume import history, partial
from cowfs.volume.history import Author


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore did. `seconds`: the daemon's own time, kernel caches included.

    changed: how many inodes differ, directories in which names changed among them.
    left_alone: patterns of volatile paths that were not restored.
    """

    operation: str
    checkpoint: records.CheckpointRecord
    rescue: records.CheckpointRecord
    changed: int
    seconds: float
    left_alone: tuple[bytes, ...] = ()


def restore(
    engine: Engine,
    author: Author,
    selector: str,
    *,
    paths: list[bytes] | None = None,
    exclude: list[bytes] | None = None,
    volatile: bool = False,
) -> Restored:
    """Make the head show a checkpoint, all of it or only some paths (contract 3).

    paths: relative to the top; exclude: fnmatch patterns of paths or names to leave alone.
    volatile: also what the configuration says is volatile (service/volatile.py); it is left alone
    otherwise. Where nothing is left alone and no path named, this takes the same time whatever the
    tree.
    Raises UnknownCheckpointError, AmbiguousCheckpointError, UsageError, UnknownPathError,
    StoreFullError.
    """
    volume = engine.volume

    def find() -> records.CheckpointRecord:
        point = resolve(volume.reader, volume.main.lineage, selector, time.time_ns())
        if point.checkpoint is None:
            raise UsageError(detail="@ is the present state already", command="restore")
        return point.checkpoint

    target = engine.call(find)
    branch = volume.branch
    stacks = records.BranchRecord(branch.name, branch.head, (*branch.undo, ""), (), branch.applied)
    left = [] if volatile else left_alone(volume.store.path, paths or [])
    exclude = [*(exclude or []), *left]
    if not paths and not exclude:
        return _swap(engine, author, target, stacks, "restore")
    started = time.perf_counter()
    look_at_git(engine)
    engine.flush()
    swapped = engine.switch(
        lambda audience: partial.restore_paths(
            volume, author, target, stacks, paths or [b""], exclude, audience
        ),
        *_prospect(engine, target),
    )
    reached("restore.told")
    result = _result("restore", target, swapped, started)
    return replace(result, left_alone=tuple(left))


def undo(engine: Engine, author: Author) -> Restored:
    """Take the last restore (or redo) back. Raises NothingToUndoError, StoreFullError."""
    branch = engine.volume.branch
    if not branch.undo:
        raise NothingToUndoError(what="undo")
    target = engine.call(lambda: get_checkpoint(engine.volume.reader, branch.undo[-1]))
    stacks = records.BranchRecord(
        branch.name, branch.head, branch.undo[:-1], (*branch.redo, ""), branch.applied
    )
    return _swap(engine, author, target, stacks, "undo")


def redo(engine: Engine, author: Author) -> Restored:
    """Take the last undo back. Raises NothingToUndoError, StoreFullError."""
    branch = engine.volume.branch
    if not branch.redo:
        raise NothingToUndoError(what="redo")
    target = engine.call(lambda: get_checkpoint(engine.volume.reader, branch.redo[-1]))
    stacks = records.BranchRecord(
        branch.name, branch.head, (*branch.undo, ""), branch.redo[:-1], branch.applied
    )
    return _swap(engine, author, target, stacks, "redo")


def _swap(
    engine: Engine,
    author: Author,
    target: records.CheckpointRecord,
    stacks: records.BranchRecord,
    operation: str,
) -> Restored:
    started = time.perf_counter()
    look_at_git(engine)
    engine.flush()
    swapped = engine.switch(
        lambda audience: history.swap(
            engine.volume, author, target, stacks, operation=operation, audience=audience
        ),
        *_prospect(engine, target),
    )
    reached("restore.told")
    return _result(operation, target, swapped, started)


def _prospect(engine: Engine, target: records.CheckpointRecord) -> tuple[set[int], Lineage]:
    """Inodes that may differ between the present state and a checkpoint, and its lineage."""
    volume = engine.volume

    def find() -> tuple[set[int], Lineage]:
        volume.sync()
        lineage = volume.reader.lineage(target.epoch)
        touched = touched_between(volume.reader, volume.main.lineage, lineage)
        return touched.inodes, lineage

    return engine.call(find)


def _result(
    operation: str, target: records.CheckpointRecord, swapped: history.Swapped, started: float
) -> Restored:
    return Restored(
        operation,
        target,
        swapped.rescue,
        len(swapped.touched.inodes | {ino for ino, _ in swapped.touched.names}),
        time.perf_counter() - started,
    )
