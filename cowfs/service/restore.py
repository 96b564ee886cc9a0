"""Restore, undo, redo: going to another state, so that one can always come back. With the files, or
instead of them, a conversation can go back; then both happen or neither.

Threading: for the threads that an `Engine` is for.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from typing import Any

from cowfs.errors import NothingToUndoError, UsageError
from cowfs.format import records
from cowfs.service.engine import Engine, commit, look_at_git
from cowfs.service.expecting import Expectation
from cowfs.service.selectors import get_checkpoint, resolve
from cowfs.service.sessions.conversation import (
    Continuation,
    Copying,
    copy_of,
    make,
)
from cowfs.service.volatile import left_alone
from cowfs.store.group import TransactionGroup
from cowfs.store.lineage import Lineage
from cowfs.store.steps import reached
from cowfs.tree.changes import touched_between
from cowfs.volume import history, partial
from cowfs.volume.history import Author, Companion, Swapped


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore did. `seconds`: the daemon's own time, kernel caches included.

    changed: how many inodes differ, directories in which names changed among them.
    left_alone: patterns of volatile paths that differ and were not restored.
    conversation: how it goes on, if it went back, too.
    """

    operation: str
    checkpoint: records.CheckpointRecord
    rescue: records.CheckpointRecord
    changed: int
    seconds: float
    left_alone: tuple[bytes, ...] = ()
    conversation: Continuation | None = None

    def to_json(self) -> dict[str, Any]:
        """The result of the method `restore` (docs/protocol.md)."""
        return {
            "operation": self.operation,
            "checkpoint": records.to_dict(self.checkpoint),
            "rescue": records.to_dict(self.rescue),
            "changed": self.changed,
            "left_alone": [os.fsdecode(pattern) for pattern in self.left_alone],
            "conversation": self.conversation.to_json() if self.conversation else None,
            "daemon_seconds": self.seconds,
        }


@dataclass(frozen=True, slots=True)
class Conversed:
    """What going back in a conversation did, the files left as they are."""

    checkpoint: records.CheckpointRecord
    conversation: Continuation
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """The result of the method `restore` (docs/protocol.md)."""
        return {
            "operation": "restore",
            "checkpoint": records.to_dict(self.checkpoint),
            "rescue": None,
            "changed": 0,
            "left_alone": [],
            "conversation": self.conversation.to_json(),
            "daemon_seconds": self.seconds,
        }


class _Together(Companion):
    """What a restore has to see to: that the state is the expected one, and the conversation."""

    def __init__(self, expected: Expectation | None = None, copying: Copying | None = None) -> None:
        self._expected = expected
        self._copying = copying

    def check(self) -> None:
        if self._expected is not None:
            self._expected.check()

    def add(self, group: TransactionGroup) -> None:
        if self._copying is not None:
            self._copying.add(group)

    def withdrawn(self) -> None:
        if self._copying is not None:
            self._copying.withdrawn()

    def after(self, swapped: Swapped) -> Swapped:
        """The restore is committed."""
        if self._copying is not None:
            self._copying.committed = True
        return swapped


def restore(
    engine: Engine,
    author: Author,
    selector: str,
    *,
    paths: list[bytes] | None = None,
    exclude: list[bytes] | None = None,
    volatile: bool = False,
    conversation: bool = False,
    expect: str = "",
) -> Restored:
    """Make the head show a checkpoint, all of it or only some paths (contract 3).

    paths: relative to the top; exclude: fnmatch patterns of paths or names to leave alone.
    volatile: also what the configuration says is volatile (service/volatile.py); it is left alone
    otherwise. Where nothing is left alone and no path named, this takes the same time whatever the
    tree.
    conversation: go back in the conversation, too: either both happen or neither. expect: what the
    present state has to be (service/expecting.py), "" for anything.
    Raises UnknownCheckpointError, AmbiguousCheckpointError, UsageError, UnknownPathError,
    StoreFullError, StateMovedError, and the errors of `conversation.copy_of`.
    """
    started = time.perf_counter()
    target = _target(engine, selector)
    left = [] if volatile else left_alone(engine.volume.store.path, paths or [])
    exclude = [*(exclude or []), *left]
    expected = Expectation(engine, expect, paths or [], exclude) if expect else None
    copying = copy_of(engine, author, target) if conversation else None
    together = _Together(expected, copying)
    try:
        result = _restore(engine, author, target, paths or [], exclude, together)
    except BaseException:
        if copying is not None:
            copying.give_up()
        raise
    continuation = copying.finish() if copying is not None else None
    seconds = time.perf_counter() - started
    told = tuple(pattern for pattern in left if pattern in result.left_alone)
    return replace(result, seconds=seconds, left_alone=told, conversation=continuation)


def converse(engine: Engine, author: Author, selector: str, *, expect: str = "") -> Conversed:
    """Go back in the conversation of a checkpoint, and leave the files as they are. Errors and
    `expect` as of `restore`."""
    started = time.perf_counter()
    target = _target(engine, selector)
    if expect:
        expected = Expectation(engine, expect, [], [])
        engine.flush()
        commit(engine)
        engine.call(expected.check)
    continuation = make(engine, copy_of(engine, author, target))
    return Conversed(target, continuation, time.perf_counter() - started)


def _target(engine: Engine, selector: str) -> records.CheckpointRecord:
    volume = engine.volume

    def find() -> records.CheckpointRecord:
        point = resolve(volume.reader, volume.main.lineage, selector, time.time_ns())
        if point.checkpoint is None:
            raise UsageError(detail="@ is the present state already", command="restore")
        return point.checkpoint

    return engine.call(find)


def _restore(
    engine: Engine,
    author: Author,
    target: records.CheckpointRecord,
    paths: list[bytes],
    exclude: list[bytes],
    together: _Together,
) -> Restored:
    """The files."""
    volume = engine.volume
    branch = volume.branch
    stacks = records.BranchRecord(branch.name, branch.head, (*branch.undo, ""), (), branch.applied)
    if not paths and not exclude:
        return _swap(engine, author, target, stacks, "restore", together)
    started = time.perf_counter()
    look_at_git(engine)
    engine.flush()
    swapped = engine.switch(
        lambda audience: together.after(
            partial.restore_paths(
                volume, author, target, stacks, paths or [b""], exclude, audience, together
            )
        ),
        *_prospect(engine, target),
    )
    reached("restore.told")
    return _result("restore", target, swapped, started)


def undo(engine: Engine, author: Author) -> Restored:
    """Take the last restore (or redo) back. Raises NothingToUndoError, StoreFullError."""
    branch = engine.volume.branch
    if not branch.undo:
        raise NothingToUndoError(what="undo")
    target = engine.call(lambda: get_checkpoint(engine.volume.reader, branch.undo[-1]))
    stacks = records.BranchRecord(
        branch.name, branch.head, branch.undo[:-1], (*branch.redo, ""), branch.applied
    )
    return _swap(engine, author, target, stacks, "undo", _Together())


def redo(engine: Engine, author: Author) -> Restored:
    """Take the last undo back. Raises NothingToUndoError, StoreFullError."""
    branch = engine.volume.branch
    if not branch.redo:
        raise NothingToUndoError(what="redo")
    target = engine.call(lambda: get_checkpoint(engine.volume.reader, branch.redo[-1]))
    stacks = records.BranchRecord(
        branch.name, branch.head, (*branch.undo, ""), branch.redo[:-1], branch.applied
    )
    return _swap(engine, author, target, stacks, "redo", _Together())


def _swap(
    engine: Engine,
    author: Author,
    target: records.CheckpointRecord,
    stacks: records.BranchRecord,
    operation: str,
    companion: _Together,
) -> Restored:
    started = time.perf_counter()
    look_at_git(engine)
    engine.flush()
    swapped = engine.switch(
        lambda audience: companion.after(
            history.swap(
                engine.volume,
                author,
                target,
                stacks,
                operation=operation,
                audience=audience,
                companion=companion,
            )
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
    operation: str, target: records.CheckpointRecord, swapped: Swapped, started: float
) -> Restored:
    return Restored(
        operation,
        target,
        swapped.rescue,
        len(swapped.touched.inodes | {ino for ino, _ in swapped.touched.names}),
        time.perf_counter() - started,
        tuple(swapped.left),
    )
