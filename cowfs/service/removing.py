"""Removing checkpoints by hand or by a policy, and pinning them.

Threading: for the threads that an `Engine` is for.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any

from cowfs.errors import PinnedError, StartCheckpointError, UsageError
from cowfs.format import records
from cowfs.service.config import Retention
from cowfs.service.engine import Engine, commit
from cowfs.service.retention import Decision, decide
from cowfs.service.selectors import all_checkpoints, resolve
from cowfs.store.lineage import Lineage
from cowfs.store.snapshot import Reader
from cowfs.volume import removing
from cowfs.volume.volume import MAIN

_AT_ONCE = 100
"""Checkpoints that one group removes: some milliseconds for the owner of the volume."""
Operation = AbstractContextManager[Any]


def chosen(
    reader: Reader, lineage: Lineage, selectors: Iterable[str]
) -> list[records.CheckpointRecord]:
    """The checkpoints that somebody wants removed.

    Raises UnknownCheckpointError, AmbiguousCheckpointError, UsageError, PinnedError,
    StartCheckpointError.
    """
    found = {}
    for selector in selectors:
        record = resolve(reader, lineage, selector, time.time_ns()).checkpoint
        if record is None:
            raise UsageError(detail="@ is the present state, not a checkpoint", command="forget")
        if record.pinned:
            raise PinnedError(checkpoint=record.id[:8], note=record.note and f" ({record.note})")
        if not record.epoch:
            raise StartCheckpointError(checkpoint=record.id[:8])
        found[record.id] = record
    return list(found.values())


def forget(
    engine: Engine, operation: Operation, selectors: list[str]
) -> list[records.CheckpointRecord]:
    """Remove checkpoints by name, all or none. Errors as of `chosen`, and StoreFullError."""
    with operation:
        commit(engine)
        volume = engine.volume
        found = engine.call(lambda: chosen(volume.reader, volume.main.lineage, selectors))
        _remove(engine, found)
    return found


def decisions(reader: Reader, rules: Retention, now_ns: int) -> list[Decision]:
    """What a policy says now. Raises DamagedRecordError."""
    branch = reader.branch(MAIN)
    stacks = {*branch.undo, *branch.redo}
    zone = datetime.now().astimezone().tzinfo
    assert zone is not None
    return decide(all_checkpoints(reader), rules, now_ns, stacks, zone)


def browsed(engine: Engine) -> set[str]:
    """The ids of checkpoints that somebody looks into."""
    return engine.call(engine.volume.visits.browsed)


def remove_decided(
    engine: Engine,
    operation: Operation,
    unwanted: list[records.CheckpointRecord],
    *,
    spare_browsed: bool = True,
) -> tuple[list[records.CheckpointRecord], int]:
    """Remove what a policy does not keep, some at a time; what was pinned, labelled or removed
    meanwhile is left out, and unless `spare_browsed` is false what somebody looks into.

    Returns what was removed, and how many somebody looks into. Raises StoreFullError.
    """
    removed: list[records.CheckpointRecord] = []
    spared = 0
    for start in range(0, len(unwanted), _AT_ONCE):
        part = unwanted[start : start + _AT_ONCE]
        with operation:
            commit(engine)
            gone, left = _remove(engine, part, spare_browsed=spare_browsed)
        removed += gone
        spared += left
    return removed, spared


def _remove(
    engine: Engine, unwanted: list[records.CheckpointRecord], *, spare_browsed: bool = False
) -> tuple[list[records.CheckpointRecord], int]:
    volume = engine.volume
    gone: list[records.CheckpointRecord] = []
    spared = set[str]()

    def remove() -> Any:
        if spare_browsed:
            spared.update(volume.visits.browsed() & {record.id for record in unwanted})
        for record in unwanted:
            if record.id in spared:
                continue
            stored = volume.reader.get("checkpoint", record.id.encode())
            if stored is None:
                continue
            now = records.decode(stored, records.CheckpointRecord)
            if (now.pinned, now.label) == (record.pinned, record.label):
                gone.append(now)
        return removing.remove(volume, gone)

    if (group := engine.call(remove)) is not None:
        volume.writer.wait(group)
        engine.call(volume.reap)
    return gone, len(spared)


def pin(
    engine: Engine, operation: Operation, selector: str, *, pinned: bool, note: str = ""
) -> records.CheckpointRecord:
    """Keep a checkpoint from being removed, or allow it again.

    Raises UnknownCheckpointError, AmbiguousCheckpointError, UsageError, StoreFullError.
    """
    volume = engine.volume

    def change() -> Any:
        record = resolve(volume.reader, volume.main.lineage, selector, time.time_ns()).checkpoint
        if record is None:
            raise UsageError(detail="@ is the present state, not a checkpoint", command="pin")
        return removing.pin(volume, record, pinned=pinned, note=note if pinned else "")

    with operation:
        commit(engine)
        record, group = engine.call(change)
        if group is not None:
            volume.writer.wait(group)
            engine.call(volume.reap)
    assert isinstance(record, records.CheckpointRecord)
    return record
