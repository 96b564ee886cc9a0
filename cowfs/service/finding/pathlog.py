"""The timeline of some paths: the rows of the checkpoints that changed one of them.

Threading: as the workspace.
"""

from __future__ import annotations

import heapq
import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cowfs.errors import UnknownPathError
from cowfs.service.finding.selection import Selection
from cowfs.service.finding.steps import Event
from cowfs.service.finding.tracking import PathHistory
from cowfs.service.timeline import Row, Timeline


@dataclass(frozen=True, slots=True)
class PathRow:
    """A row of the timeline and what its state did: (path that was asked for, event)."""

    row: Row
    events: list[tuple[bytes, Event]]


@dataclass(frozen=True, slots=True)
class PathLog:
    """rows: newest first, the head among them if it changed one of the paths. more: whether there
    are older ones. at_start: for each path where the base directory had at first what is followed,
    if it had it; of those paths whose rows are all here. gone: the paths that the present state
    does not have."""

    rows: list[PathRow]
    more: bool
    at_start: dict[bytes, list[bytes]]
    gone: list[bytes]


def log_paths(
    line: Timeline,
    paths: list[bytes],
    limit: int | None,
    selection: Selection,
    damaged: Callable[[int], None] | None = None,
) -> PathLog:
    """What became of some paths, relative to the top.

    limit: checkpoints at most. damaged: as of `PathHistory`. Raises UnknownPathError for a path
    that no state has.
    """
    histories = [PathHistory(line.workspace, line.states, path, damaged) for path in paths]
    unseen = set(paths)
    streams = [_stream(history, unseen) for history in histories]
    merged = heapq.merge(*streams, key=lambda item: -item[0])
    rows: list[PathRow] = []
    more = False
    checkpoints = 0
    for epoch, group in itertools.groupby(merged, key=lambda item: item[0]):
        record = line.states.checkpoint(epoch) if epoch != line.states.head else None
        if record is None and not selection.is_all:
            continue
        if record is not None and not selection.has(record):
            continue
        if record is not None and checkpoints == limit:
            more = True
            break
        row = line.row(epoch)
        if row is not None:
            rows.append(PathRow(row, [(path, event) for _, path, event in group]))
            checkpoints += record is not None
    starts = {h.path: found for h in histories if not more and (found := h.at_start())}
    gone = [history.path for history in histories if not history.is_there()]
    for path in gone:
        if path in unseen and path not in starts and not more:
            raise UnknownPathError(path=os.fsdecode(path), where="any checkpoint")
    return PathLog(_joined(line, rows), more, starts, gone)


def _stream(history: PathHistory, unseen: set[bytes]) -> Iterator[tuple[int, bytes, Event]]:
    for epoch, events in history.events():
        unseen.discard(history.path)
        for event in events:
            yield epoch, history.path, event


def _joined(line: Timeline, rows: list[PathRow]) -> list[PathRow]:
    """The rows, each with the nearest of the others as its parent."""
    parents = nearest(line, [row.row for row in rows])
    return [
        PathRow(row.row.with_parent(parent), row.events)
        for row, parent in zip(rows, parents, strict=True)
    ]


def nearest(line: Timeline, rows: list[Row]) -> list[str | None]:
    """For each of some rows, newest first, the id of the nearest one that it comes from."""
    found = []
    for at, row in enumerate(rows):
        lineage = line.states.lineage(row.epoch)
        older = itertools.islice(rows, at + 1, None)
        found.append(next((other.id for other in older if lineage.visible(other.epoch)), None))
    return found
