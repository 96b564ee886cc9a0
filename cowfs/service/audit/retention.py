"""Dropping what the audit log tells of times long past.

Threading: `drop_old` is for the threads that an `Engine` is for; `Sweep.step` runs in the writer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from cowfs.errors import DamagedRecordError
from cowfs.format import keys, records
from cowfs.format.audit import AuditHead, ProcessRecord
from cowfs.service.audit.log import Log
from cowfs.service.engine import Engine
from cowfs.service.selectors import all_checkpoints
from cowfs.store.env import Store, Transaction
from cowfs.store.snapshot import Reader

_AT_ONCE = 500
"""Records that one step deletes, or ten times as many that it only reads: a few milliseconds."""


@dataclass(slots=True)
class Sweep:
    """Drops audit records made before a time, then the processes that no record names any more.

    before: ns since 1970. kept: numbers of processes that may be named again. records, processes:
    how many went. Damaged records stay; `verify` tells of them.
    """

    store: Store
    before: int
    kept: Collection[int]
    records: int = 0
    processes: int = 0
    done: bool = False
    _named: set[int] = field(default_factory=set)
    _next: bytes = b""
    _phase: int = 0
    _last: int = 0

    def step(self, txn: Transaction) -> None:
        """Do a little of it in a write transaction."""
        (self._drop_records, self._find_named, self._drop_processes)[self._phase](txn)

    def _on(self, phase: int) -> None:
        self._phase, self._next = phase, b""

    def _drop_records(self, txn: Transaction) -> None:
        with txn.cursor(self.store.tables["audit"]) as cursor:
            found = cursor.set_range(b"")
            for _ in range(_AT_ONCE):
                if not found or keys.unpack_id(cursor.key()) >= self.before:
                    break
                found = cursor.delete()
                self.records += 1
            else:
                return
        with txn.cursor(self.store.tables["process"]) as cursor:
            self._last = keys.unpack_id(cursor.key()) if cursor.last() else 0
        self._on(1)

    def _find_named(self, txn: Transaction) -> None:
        """Which processes the rest of the log names. Those that are met from now on are new."""
        with txn.cursor(self.store.tables["audit"]) as cursor:
            found = cursor.set_range(self._next)
            for _ in range(10 * _AT_ONCE):
                if not found:
                    break
                try:
                    self._named.add(records.decode(cursor.value(), AuditHead).process)
                except DamagedRecordError:
                    pass
                found = cursor.next()
            else:
                self._next = cursor.key() if found else b""
                if found:
                    return
        self._named |= set(self.kept)
        self._on(2)

    def _drop_processes(self, txn: Transaction) -> None:
        """From the youngest on: a parent is older than what it started."""
        with txn.cursor(self.store.tables["process"]) as cursor:
            for _ in range(_AT_ONCE):
                if not self._last or not cursor.set_range(keys.pack_id(self._last)):
                    self.done = True
                    return
                number = keys.unpack_id(cursor.key())
                if number == self._last:
                    try:
                        record = records.decode(cursor.value(), ProcessRecord)
                    except DamagedRecordError:
                        record = None
                    if number in self._named and record is not None:
                        self._named.add(record.parent)
                    elif record is not None:
                        cursor.delete()
                        self.processes += 1
                self._last -= 1


def drop_before_history(engine: Engine, stopped: Callable[[], bool]) -> Sweep | None:
    """Drop what was done before the oldest checkpoint that is left, and its changes, were begun;
    that of the state before the first mount does not count. None when there is no other one.
    Raises as `drop_old`, and DamagedRecordError."""
    with Reader(engine.volume.store) as reader:
        oldest = next((record for record in all_checkpoints(reader) if record.epoch), None)
        before = Log(reader).before(oldest.epoch) + 1 if oldest is not None else 0
    return drop_old(engine, before, stopped) if oldest is not None else None


def drop_old(engine: Engine, before: int, stopped: Callable[[], bool] = lambda: False) -> Sweep:
    """Drop what the log tells of before a time (ns since 1970), in small steps, until done or
    `stopped`. Raises StoreFullError, StoreUnwritableError."""
    volume = engine.volume
    sweep = Sweep(volume.store, before, engine.call(volume.audit.processes.known))
    while not sweep.done and not stopped():
        volume.writer.run(sweep.step)
    return sweep
