"""Removing what a retention policy does not keep, thinning volatile paths, making room, and
collecting the garbage.

Threading: one run at a time, in a thread that may wait for the owner of the volume and the writer.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from cowfs.errors import StoreFullError
from cowfs.format.records import CheckpointRecord
from cowfs.service import config
from cowfs.service.audit.retention import drop_before_history
from cowfs.service.collecting import (
    Collected,
    Pace,
    Progress,
    Thinning,
    collect,
    is_due,
    preview,
)
from cowfs.service.config import Retention
from cowfs.service.engine import Engine
from cowfs.service.removing import Operation, browsed, decisions, remove_decided
from cowfs.service.retention import Decision, oldest_first, thinnable
from cowfs.service.selectors import all_checkpoints
from cowfs.service.sessions.registry import Registry
from cowfs.service.sessions.retention import drop_unneeded
from cowfs.store.snapshot import Reader
from cowfs.volume.volume import MAIN


@dataclass(slots=True)
class Cleaned:
    """What a run did. removed: with the reasons. kept: how many checkpoints are left. browsed: how
    many of them no rule keeps; somebody looks into them, and a later run removes them. thinned:
    checkpoints that do not have the contents of volatile paths any more. thinning: of what all that
    could be was thinned."""

    removed: list[Decision] = field(default_factory=list)
    kept: int = 0
    browsed: int = 0
    collected: Collected = field(default_factory=Collected)
    thinned: list[CheckpointRecord] = field(default_factory=list)
    thinning: Thinning | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "removed": [described(d.checkpoint, d.reason) for d in self.removed],
            "kept": self.kept,
            "browsed": self.browsed,
            "thinned": [described(record) for record in self.thinned],
            "collected": self.collected.to_json(),
        }


def described(record: CheckpointRecord, reason: str = "") -> dict[str, Any]:
    """A checkpoint that goes, for JSON."""
    row = {n: getattr(record, n) for n in ("id", "epoch", "time", "kind", "label", "message")}
    return {**row, "reason": reason} if reason else row


def clean(
    engine: Engine,
    operation: Operation,
    rules: Retention | None,
    pace: Pace,
    progress: Progress,
    *,
    thorough: bool = False,
    registry: Registry | None = None,
    looked: Thinning | None = None,
) -> Cleaned:
    """Remove what `rules` do not keep, and thin what the configuration says (rules None: neither),
    and collect; what the audit log tells of times before all that is left goes as well, and what is
    kept of sessions. registry: of the daemon, if there is one. looked: `Cleaned.thinning` of an
    earlier run: if that is what may be thinned now, and nothing was removed since, there is nothing
    to look for. Errors as of `collect`."""
    done = Cleaned()
    if rules is not None:
        with Reader(engine.volume.store) as reader:
            unwanted = {d.checkpoint.id: d for d in _unwanted(reader, rules)}
        records = [decision.checkpoint for decision in unwanted.values()]
        gone, done.browsed = remove_decided(engine, operation, records)
        done.removed = [unwanted[record.id] for record in gone]
    thinning = None
    if rules is not None:
        with Reader(engine.volume.store) as reader:
            thinning = _thinning(reader, lambda: browsed(engine))
            if thinning == looked and not is_due(reader):
                thinning = None
    done.collected = collect(
        engine, operation, pace, progress, thorough=thorough, thinning=thinning
    )
    if done.collected.complete and not done.collected.left:
        done.thinning = thinning or looked
    if rules is not None:
        drop_before_history(engine, lambda: not pace.go_on())
    drop_unneeded(engine, registry, pace.go_on, old=rules is not None)
    with Reader(engine.volume.store) as reader:
        done.kept = reader.count("checkpoint")
        done.thinned = _thinned(reader, done.collected)
    return done


def _thinning(reader: Reader, spared: Callable[[], Collection[str]]) -> Thinning | None:
    """What the configuration says may be thinned now; None for nothing, and when something is wrong
    with it. spared: ids of checkpoints that may not."""
    found = config.read(reader.store.path)
    if found.problems or not found.volatile.paths or not found.volatile.keep_days:
        return None
    return _of(_thinnable(reader, found.volatile.keep_days, spared), found)


def _thinnable(
    reader: Reader, keep_days: int, spared: Callable[[], Collection[str]]
) -> list[CheckpointRecord]:
    branch = reader.branch(MAIN)
    stacks = {*branch.undo, *branch.redo}
    old = thinnable(all_checkpoints(reader), stacks, time.time_ns(), keep_days)
    without = spared() if old else ()
    return [record for record in old if record.id not in without]


def _of(old: list[CheckpointRecord], found: config.Config) -> Thinning | None:
    paths = tuple(os.fsencode(path) for path in found.volatile.paths)
    return Thinning(frozenset(record.epoch for record in old), paths) if old else None


def _thinned(reader: Reader, collected: Collected) -> list[CheckpointRecord]:
    """The checkpoints that a run has thinned, oldest first."""
    if not collected.thinned:
        return []
    found = [record for record in all_checkpoints(reader) if record.epoch in collected.thinned]
    return sorted(found, key=lambda record: record.epoch)


def foresee(reader: Reader, rules: Retention | None, progress: Progress) -> Cleaned:
    """What `clean` would do if nobody looked into checkpoints."""
    unwanted = _unwanted(reader, rules) if rules is not None else []
    going = {d.checkpoint.id for d in unwanted}
    thinning = _thinning(reader, lambda: going) if rules is not None else None
    collected = preview(reader, {d.checkpoint.epoch for d in unwanted}, progress, thinning)
    left = reader.count("checkpoint") - len(unwanted)
    thinned = _thinned(reader, collected)
    return Cleaned(unwanted, left, collected=collected, thinned=thinned)


def _unwanted(reader: Reader, rules: Retention) -> list[Decision]:
    return [d for d in decisions(reader, rules, time.time_ns()) if not d.keep]


def make_room(
    engine: Engine,
    operation: Operation,
    enough: Callable[[], bool],
    pace: Pace,
    registry: Registry | None = None,
) -> Cleaned:
    """Thin the volatile paths of the oldest checkpoints, then remove the oldest ones, some at a
    time, until there is room `enough`, or none is left that may go; those that somebody looks into
    last. Errors as of `collect`."""
    done = Cleaned()
    for thinning in _to_make_room(engine):
        if enough() or not pace.go_on():
            break
        with contextlib.suppress(StoreFullError):  # removing a checkpoint takes less
            found = collect(engine, operation, pace, lambda **_: None, thinning=thinning)
            done.collected.add(found)
    with Reader(engine.volume.store) as reader:
        done.thinned = _thinned(reader, done.collected)
    while not enough() and pace.go_on():
        with Reader(engine.volume.store) as reader:
            oldest = oldest_first(all_checkpoints(reader))
        looked_into = browsed(engine)
        oldest = [record for record in oldest if record.id not in looked_into] or oldest
        part, _ = remove_decided(
            engine, operation, oldest[: max(1, len(oldest) // 8)], spare_browsed=False
        )
        done.removed += [Decision(record, False, "the oldest, to make room") for record in part]
        if not part:
            break
        found = collect(engine, operation, pace, lambda **_: None)
        drop_unneeded(engine, registry, pace.go_on, old=False)
        done.collected.add(found)
    return done


def _to_make_room(engine: Engine) -> Iterator[Thinning]:
    """What may be thinned to make room: the oldest half, and then all."""
    found = config.read(engine.volume.store.path)
    if found.problems or not found.volatile.paths:
        return
    with Reader(engine.volume.store) as reader:
        old = _thinnable(reader, 0, lambda: browsed(engine))
    for part in {len(old) // 2: old[: len(old) // 2], len(old): old}.values():
        if (thinning := _of(part, found)) is not None:
            yield thinning
