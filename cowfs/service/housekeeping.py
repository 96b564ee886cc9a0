"""Removing what a retention policy does not keep, making room, and collecting the garbage.

Threading: one run at a time, in a thread that may wait for the owner of the volume and the writer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cowfs.format.records import CheckpointRecord
from cowfs.service.audit.retention import drop_before_history
from cowfs.service.collecting import Collected, Pace, Progress, collect, preview
from cowfs.service.config import Retention
from cowfs.service.engine import Engine
from cowfs.service.removing import Operation, browsed, decisions, remove_decided
from cowfs.service.retention import Decision, oldest_first
from cowfs.service.selectors import all_checkpoints
from cowfs.service.sessions.registry import Registry
from cowfs.service.sessions.retention import drop_unneeded
from cowfs.store.snapshot import Reader


@dataclass(slots=True)
class Cleaned:
    """What a run did. removed: with the reasons. kept: how many checkpoints are left. browsed: how
    many of them no rule keeps; somebody looks into them, and a later run removes them."""

    removed: list[Decision] = field(default_factory=list)
    kept: int = 0
    browsed: int = 0
    collected: Collected = field(default_factory=Collected)

    def to_json(self) -> dict[str, Any]:
        return {
            "removed": [described(d.checkpoint, d.reason) for d in self.removed],
            "kept": self.kept,
            "browsed": self.browsed,
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
) -> Cleaned:
    """Remove what `rules` do not keep (None: nothing), and collect; what the audit log tells of
    times before all that is left goes as well, and what is kept of sessions. registry: of the
    daemon, if there is one. Errors as of `collect`."""
    done = Cleaned()
    if rules is not None:
        with Reader(engine.volume.store) as reader:
            unwanted = {d.checkpoint.id: d for d in _unwanted(reader, rules)}
        records = [decision.checkpoint for decision in unwanted.values()]
        gone, done.browsed = remove_decided(engine, operation, records)
        done.removed = [unwanted[record.id] for record in gone]
    done.collected = collect(engine, operation, pace, progress, thorough=thorough)
    if rules is not None:
        drop_before_history(engine, lambda: not pace.go_on())
    drop_unneeded(engine, registry, pace.go_on, old=rules is not None)
    with Reader(engine.volume.store) as reader:
        done.kept = reader.count("checkpoint")
    return done


def foresee(reader: Reader, rules: Retention | None, progress: Progress) -> Cleaned:
    """What `clean` would do if nobody looked into checkpoints."""
    unwanted = _unwanted(reader, rules) if rules is not None else []
    collected = preview(reader, {d.checkpoint.epoch for d in unwanted}, progress)
    left = reader.count("checkpoint") - len(unwanted)
    return Cleaned(unwanted, left, collected=collected)


def _unwanted(reader: Reader, rules: Retention) -> list[Decision]:
    return [d for d in decisions(reader, rules, time.time_ns()) if not d.keep]


def make_room(
    engine: Engine,
    operation: Operation,
    enough: Callable[[], bool],
    pace: Pace,
    registry: Registry | None = None,
) -> Cleaned:
    """Remove the oldest checkpoints, some at a time, until there is room `enough`, or none is left
    that may go; those that somebody looks into last. Errors as of `collect`."""
    done = Cleaned()
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
        total = done.collected
        done.collected = Collected(
            total.versions + found.versions,
            total.blocks + found.blocks,
            total.bytes + found.bytes,
            found.complete,
            found.left,
        )
    return done
