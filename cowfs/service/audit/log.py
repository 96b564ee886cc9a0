"""The audit log as it is stored: its records between two checkpoints, and the processes.

Records come newest first or oldest first, and only as far as they are looked at: a long log costs
nothing. Epochs of records never become smaller, so a checkpoint's place is found by halving.

Threading: as the workspace.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from cowfs.errors import DamagedRecordError
from cowfs.format import keys, records
from cowfs.format.audit import FIRST, OUTSIDE, UNKNOWN, AuditHead, AuditRecord, ProcessRecord
from cowfs.store.snapshot import Reader

_DEEPEST = 64
_SHORT = 8
"""Characters of the id of a session that people are shown."""
_SHORTEST = 4
"""Characters of it by which one may be named."""


@dataclass(frozen=True, slots=True)
class Process:
    """Who did something.

    number: of its record; UNKNOWN and OUTSIDE have none. parents: those above it, the nearest
    first.
    """

    number: int
    record: ProcessRecord
    parents: tuple[ProcessRecord, ...] = ()

    @property
    def arguments(self) -> list[str]:
        """Its command line."""
        return [os.fsdecode(word) for word in self.record.command.rstrip(b"\0").split(b"\0")]

    def is_of(self, who: str) -> bool:
        """Whether it, or one that it was started by, has this name, pid or user; or is of this
        session (by its id or the beginning of it), sub-agent or call of a tool."""
        for record in (self.record, *self.parents):
            names = {record.name, record.user, str(record.pid), record.tool}
            if record.command:
                names.add(os.path.basename(os.fsdecode(record.command.partition(b"\0")[0])))
            if who in names - {"", "0"} or _is_of_session(record.session, who):
                return True
        return False

    @property
    def session(self) -> str:
        """How its session is called for people: short; "" when it belongs to none."""
        session, _, subagent = self.record.session.partition("/")
        short = session[:_SHORT]
        return f"{short}/{subagent[:_SHORT]}" if subagent else short

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": {UNKNOWN: "unknown", OUTSIDE: "outside"}.get(self.number, "process"),
            **_json(self.record),
            "parents": [_json(parent) for parent in self.parents],
        }


def _is_of_session(session: str, who: str) -> bool:
    """Whether somebody who names a session, or a sub-agent, means this one."""
    if not session or not who:
        return False
    if who in (session, session.partition("/")[2]) or session.startswith(who + "/"):
        return True
    return len(who) >= _SHORTEST and session.startswith(who)


def _json(record: ProcessRecord) -> dict[str, Any]:
    words = record.command.rstrip(b"\0").split(b"\0") if record.command else []
    return {
        "pid": record.pid,
        "started": record.started,
        "uid": record.uid,
        "user": record.user,
        "name": record.name,
        "command": [os.fsdecode(word) for word in words],
        "session": record.session,
        "tool": record.tool,
        "outside": record.outside,
    }


_NOBODY = ProcessRecord(0, 0, 0, "", "", b"")


class Log:
    """The audit log of a store, as one reader sees it."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._there = reader.store.tables.keys() >= {"process", "audit"}
        self._processes: dict[int, Process] = {}

    @property
    def last(self) -> int:
        """Number of the newest record, 0 when there is none."""
        key = self._reader.last_key("audit") if self._there else None
        return keys.unpack_id(key) if key else 0

    def process(self, number: int) -> Process:
        """By number; one of which nothing is known when its record is gone."""
        found = self._processes.get(number)
        if found is None:
            record, parents = self._record(number), list[ProcessRecord]()
            above = record.parent
            while above and len(parents) < _DEEPEST:
                parent = self._record(above)
                if parent is _NOBODY:
                    break
                parents.append(parent)
                above = parent.parent if parent.parent < above else UNKNOWN
            found = self._processes[number] = Process(number, record, tuple(parents))
        return found

    def _record(self, number: int) -> ProcessRecord:
        if number < FIRST or not self._there:
            return _NOBODY
        try:
            value = self._reader.get("process", keys.pack_id(number))
            return records.decode(value, ProcessRecord) if value is not None else _NOBODY
        except DamagedRecordError:
            return _NOBODY

    def backwards(
        self,
        after: int = -1,
        until: int | None = None,
        chosen: Callable[[AuditHead], bool] = lambda head: True,
    ) -> Iterator[AuditRecord]:
        """Records of epochs greater than `after` and up to `until`, the newest first, as far as
        their heads are chosen. One that is damaged is left out."""
        if not self._there:
            return
        for value in self._values_backwards():
            try:
                head = records.decode(value, AuditHead)
                if head.epoch <= after:
                    return
                if (until is None or head.epoch <= until) and chosen(head):
                    yield records.decode(value, AuditRecord)
            except DamagedRecordError:
                continue

    def _values_backwards(self) -> Iterator[bytes]:
        with self._reader.txn.cursor(db=self._reader.store.tables["audit"]) as cursor:
            if cursor.last():
                opened = cursor.open
                for key, stored in cursor.preceding():
                    try:
                        yield opened(key, stored)
                    except DamagedRecordError:
                        continue

    def since(self, number: int) -> Iterator[tuple[int, AuditRecord]]:
        """(number, record) of what came after a record, the oldest first."""
        if not self._there:
            return
        with self._reader.txn.cursor(db=self._reader.store.tables["audit"]) as cursor:
            if not cursor.set_range(keys.pack_id(number + 1)):
                return
            opened = cursor.open
            for key, stored in cursor.following():
                try:
                    yield keys.unpack_id(key), records.decode(opened(key, stored), AuditRecord)
                except DamagedRecordError:
                    continue

    def of_epoch(self, epoch: int) -> Iterator[AuditRecord]:
        """The records of one epoch, the oldest first."""
        if not self._there:
            return
        for _, record in self.since(self.before(epoch)):
            if record.epoch > epoch:
                return
            if record.epoch == epoch:
                yield record

    def before(self, epoch: int) -> int:
        """A number below all records of an epoch, and mostly not far below: found by halving."""
        low, high = 0, self.last + 1
        with self._reader.txn.cursor(db=self._reader.store.tables["audit"]) as cursor:
            while high - low > 1:
                middle = (low + high) // 2
                if not cursor.set_range(keys.pack_id(middle)):
                    high = middle
                    continue
                try:
                    found = records.decode(cursor.value(), AuditHead).epoch
                except DamagedRecordError:
                    found = epoch
                if found < epoch:
                    low = max(middle, keys.unpack_id(cursor.key()))
                else:
                    high = middle
        return low
