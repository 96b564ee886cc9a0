"""Which sessions there are, how they are named, and the checkpoints of each.

Threading: pure functions on a reader of the calling thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from cowfs.errors import AmbiguousSessionError, DamagedRecordError, UnknownSessionError
from cowfs.format import records
from cowfs.format.records import CheckpointRecord
from cowfs.format.sessions import ACTIVE, SessionRecord, family
from cowfs.service.selectors import all_checkpoints
from cowfs.service.sessions import reading
from cowfs.service.sessions.conversation import COPIED
from cowfs.service.sessions.reading import INTERRUPTED
from cowfs.store.snapshot import Reader

LAST = "last"
"""Names the session that was heard of last."""
_SHOWN = 5


@dataclass(slots=True)
class Listed:
    """A session. state: `active`, `ended` or `interrupted`. checkpoints: how many there are, with
    those of sub-agents; last_checkpoint: id of the newest, "". copies: ids of copies of it;
    continued: whether somebody went on with one of them. subagents: of a sub-agent those that it
    has started itself, oldest first."""

    record: SessionRecord
    state: str
    checkpoints: int = 0
    last_checkpoint: str = ""
    copies: list[str] = field(default_factory=list)
    continued: bool = False
    subagents: list[Listed] = field(default_factory=list)

    @property
    def is_offered(self) -> bool:
        """Whether somebody may want to go on with it: it was interrupted, and not in a copy."""
        return self.state == INTERRUPTED and not self.continued

    def to_json(self) -> dict[str, Any]:
        record = self.record
        return {
            "id": record.id,
            "agent": record.agent,
            "state": self.state,
            "started": record.started,
            "last": record.last,
            "ended": record.ended,
            "reason": record.reason,
            "parent": record.parent,
            "kind": record.kind,
            "origin": record.origin,
            "user": record.user,
            "pid": record.pid,
            "cwd": os.fsdecode(record.cwd),
            "transcript": os.fsdecode(record.transcript),
            "title": record.title,
            "prompt": record.prompt,
            "version": record.version,
            "checkpoints": self.checkpoints,
            "last_checkpoint": self.last_checkpoint,
            "copies": self.copies,
            "continued": self.continued,
            "subagents": [below.to_json() for below in self.subagents],
        }


def all_sessions(reader: Reader) -> Iterator[SessionRecord]:
    """Those that can be read, sub-agents among them."""
    if "session" not in reader.store.tables:
        return
    for _, value in reader.scan("session", damaged=lambda key, error: None):
        try:
            yield records.decode(value, SessionRecord)
        except DamagedRecordError:
            continue  # `verify` tells of it


def listed(reader: Reader) -> list[Listed]:
    """All sessions, the one that was heard of last first; sub-agents below those that started
    them."""
    found = {record.id: record for record in all_sessions(reader)}
    rows = {
        name: Listed(record, reading.state(record, found.get(family(name))))
        for name, record in found.items()
    }
    for point in _all_checkpoints(reader):
        for name in {point.session, family(point.session)}:
            if (row := rows.get(name)) is not None:
                row.checkpoints += 1
                row.last_checkpoint = row.last_checkpoint or point.id
    tops: list[Listed] = []
    for row in sorted(rows.values(), key=lambda row: (row.record.started, row.record.id)):
        above = rows.get(row.record.parent)
        (above.subagents if above is not None else tops).append(row)
        if (origin := rows.get(row.record.origin)) is not None:
            origin.copies.append(row.record.id)
            origin.continued |= _went_on(row.record, origin.record)
    return sorted(tops, key=lambda row: row.record.last, reverse=True)


def counted(reader: Reader) -> dict[str, int]:
    """How many sessions are active, and how many were interrupted and nobody went on with."""
    found = {record.id: record for record in all_sessions(reader) if not record.parent}
    continued = {
        copy.origin
        for copy in found.values()
        if copy.origin in found and _went_on(copy, found[copy.origin])
    }
    states = [reading.state(record) for record in found.values() if record.id not in continued]
    return {state: states.count(state) for state in (ACTIVE, INTERRUPTED)}


def find(reader: Reader, selector: str) -> SessionRecord:
    """The session with an id, the only one whose id starts so, or `last`. Raises
    UnknownSessionError, AmbiguousSessionError."""
    tops = [record for record in all_sessions(reader) if not record.parent]
    if selector == LAST and tops:
        return max(tops, key=lambda record: record.last)
    exact = [record for record in all_sessions(reader) if record.id == selector]
    matching = exact or [record for record in tops if selector and record.id.startswith(selector)]
    if not matching:
        raise UnknownSessionError(selector=selector)
    if len(matching) > 1:
        raise ambiguous(selector, matching)
    return matching[0]


def ambiguous(selector: str, matching: list[SessionRecord]) -> AmbiguousSessionError:
    """The error for several sessions of which one is wanted."""
    names = ", ".join(record.id for record in matching[:_SHOWN])
    return AmbiguousSessionError(selector=selector, count=len(matching), matches=names)


def checkpoints_of(reader: Reader, session: str) -> Iterator[CheckpointRecord]:
    """The checkpoints of a session and of its sub-agents, or of one sub-agent; the newest first."""
    for point in _all_checkpoints(reader):
        if point.session == session or family(point.session) == session:
            yield point


def _all_checkpoints(reader: Reader) -> Iterator[CheckpointRecord]:
    """Those of sessions, as far as they can be read, the newest first."""
    for point in reversed(all_checkpoints(reader, lambda name: None)):
        if point.session:
            yield point


def _went_on(copy: SessionRecord, original: SessionRecord) -> bool:
    """Whether somebody went on with a copy, after all that was done in the original."""
    return copy.reason != COPIED and copy.last > original.last
