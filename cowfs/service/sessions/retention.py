"""Dropping conversations that no checkpoint and no session needs any more, and sessions of times
long past.

What a context of a kept checkpoint marks is never touched. Transcripts go before their pieces; what
a crash leaves of these is found by the next run. Where anything that tells what is needed cannot be
read, nothing goes.

Threading: `drop_unneeded` is for the threads that an `Engine` is for; `Sweep.step` runs in the
writer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cowfs.errors import DamagedRecordError
from cowfs.format import keys
from cowfs.format.sessions import ACTIVE, SessionRecord, family, unpack_context
from cowfs.service.engine import Engine, commit
from cowfs.service.selectors import all_checkpoints
from cowfs.service.sessions import reading
from cowfs.service.sessions.registry import Registry
from cowfs.store.env import Store, Transaction
from cowfs.store.snapshot import Reader

_AT_ONCE = 100
"""Records that one step deletes, or ten times as many transcripts that it passes over."""

GoOn = Callable[[], bool]


@dataclass(slots=True)
class Dropped:
    """How many records went."""

    sessions: int = 0
    transcripts: int = 0
    pieces: int = 0


def drop_unneeded(
    engine: Engine, registry: Registry | None, go_on: GoOn, *, old: bool = True
) -> Dropped:
    """Drop transcripts that nothing needs, until done or `go_on` says no; with `old` sessions first
    that are over, that no checkpoint names, and that were last heard of before the oldest
    checkpoint that is left, and its changes, were begun. registry: of the daemon, None without one.
    Raises StoreFullError, StoreUnwritableError, WriterEndedError."""
    done, known = Dropped(), registry or Registry(engine)
    store = engine.volume.store
    with Reader(store) as reader:
        if not any(reader.count(table) for table in ("session", "transcript", "piece")):
            return done
    try:
        if old:
            _drop_sessions(engine, known, go_on, done)
        unneeded = _unneeded(engine, known, go_on)
    except DamagedRecordError:
        unneeded = []  # `verify` tells of it
    for start in range(0, len(unneeded), _AT_ONCE):
        part = unneeded[start : start + _AT_ONCE]
        if not go_on():
            return done
        engine.volume.writer.run(lambda txn: _delete(store, txn, part))  # noqa: B023
        done.transcripts += len(part)
    sweep = Sweep(store)
    while not sweep.done and go_on():
        engine.volume.writer.run(sweep.step)
    done.pieces = sweep.pieces
    if done != Dropped():
        engine.call(engine.volume.look_again)  # what readers see keeps pages from being used again
    return done


# -- sessions ---------------------------------------------------------------------------------


def _drop_sessions(engine: Engine, registry: Registry, go_on: GoOn, done: Dropped) -> None:
    with Reader(engine.volume.store) as reader:
        unwanted = _old_sessions(reader)
    for start in range(0, len(unwanted), _AT_ONCE):
        if not go_on():
            return
        with registry.lock:
            gone = registry.drop(unwanted[start : start + _AT_ONCE])
            commit(engine)
        done.sessions += len(gone)


def _old_sessions(reader: Reader) -> list[SessionRecord]:
    """Sessions that are over and that nothing names, with their sub-agents; all of a session or
    nothing. Raises DamagedRecordError."""
    checkpoints = all_checkpoints(reader)
    oldest = next((record for record in checkpoints if record.epoch), None)
    if oldest is None:
        return []
    before = reader.epoch(oldest.epoch).opened
    named = {family(record.session) for record in checkpoints if record.session}
    families: dict[str, list[SessionRecord]] = {}
    for record in reading.sessions(reader):
        families.setdefault(family(record.id), []).append(record)
    return [
        record
        for name, records in families.items()
        if name not in named and _are_over(name, records, before)
        for record in records
    ]


def _are_over(name: str, records: Iterable[SessionRecord], before: int) -> bool:
    above = next((record for record in records if record.id == name), None)
    return all(
        record.last < before and reading.state(record, above) != ACTIVE for record in records
    )


# -- transcripts ------------------------------------------------------------------------------


def _unneeded(engine: Engine, registry: Registry, go_on: GoOn) -> list[int]:
    """Transcripts that no session goes on with, that nobody is about to make a checkpoint with, and
    that no context marks. Raises DamagedRecordError."""
    with registry.lock:
        # From here on marks are made of what sessions go on with now, and of newer ones only.
        commit(engine)
        held = registry.transcripts.held()
        reader = Reader(engine.volume.store)
    with reader:
        left = {keys.unpack_id(key) for key in reader.keys("transcript")} - held
        for record in reading.sessions(reader):
            left.difference_update(record.files)
        if not left:
            return []
        for number, (_, value) in enumerate(reader.scan("context")):
            if not number % _AT_ONCE and not go_on():
                return []
            left.difference_update(mark.transcript for mark in unpack_context(value).marks)
    return sorted(left)


def _delete(store: Store, txn: Transaction, numbers: list[int]) -> None:
    for number in numbers:
        txn.delete(keys.pack_id(number), db=store.tables["transcript"])


class Sweep:
    """Takes out the pieces of transcripts that are not there any more."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._next: bytes | None = b""
        self.pieces = 0

    @property
    def done(self) -> bool:
        return self._next is None

    def step(self, txn: Transaction) -> None:
        """Do a little of it in a write transaction. Pieces and their transcript are always of one
        transaction group, so what is missing here is missing for good."""
        tables = self._store.tables
        with txn.cursor(tables["piece"]) as pieces, txn.cursor(tables["transcript"]) as transcripts:
            found, left = pieces.set_range(self._next or b""), 10 * _AT_ONCE
            while found and left > 0:
                number = pieces.key()[:8]
                if transcripts.set_range(number) and transcripts.key() == number:
                    left -= 1
                    after = keys.unpack_id(number) + 1
                    found = after < 1 << 64 and pieces.set_range(keys.pack_id(after))
                else:
                    left -= 10
                    found = pieces.delete()
                    self.pieces += 1
            self._next = pieces.key() if found else None
