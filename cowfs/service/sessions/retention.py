"""Dropping conversations that no checkpoint and no session needs any more, and sessions of times
long past.

What a context of a kept checkpoint marks is never touched. A session goes in one transaction with
its sub-agents and transcripts, and transcripts go before their pieces; what a crash leaves of these
is found by the next run. Where anything that tells what is needed cannot be read, nothing goes.

Threading: `drop_unneeded` is for the threads that an `Engine` is for; `Sweep.step` runs in the
writer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from cowfs.errors import DamagedRecordError
from cowfs.format import keys, records
from cowfs.format.sessions import (
    ACTIVE,
    SessionRecord,
    TranscriptRecord,
    family,
    unpack_context,
)
from cowfs.service.engine import Engine, commit
from cowfs.service.selectors import all_checkpoints
from cowfs.service.sessions import reading
from cowfs.service.sessions.registry import Registry
from cowfs.store.env import Store, Transaction
from cowfs.store.snapshot import Reader

log = logging.getLogger(__name__)

_AT_ONCE = 100
"""Records that one step deletes, or ten times as many transcripts that it passes over."""

GoOn = Callable[[], bool]


@dataclass(slots=True)
class Dropped:
    """How many records went."""

    sessions: int = 0
    transcripts: int = 0
    pieces: int = 0


@dataclass(slots=True)
class _Family:
    """A session with its sub-agents, and the numbers of all of its transcripts."""

    members: list[SessionRecord] = field(default_factory=list)
    transcripts: list[int] = field(default_factory=list)

    def is_over(self, before: int) -> bool:
        """Whether all of them ended or were broken off, and were last heard of before a time."""
        above = next((record for record in self.members if not record.parent), None)
        return all(
            record.last < before and reading.state(record, above) != ACTIVE
            for record in self.members
        )


def drop_unneeded(
    engine: Engine, registry: Registry | None, go_on: GoOn, *, old: bool = True
) -> Dropped:
    """Drop transcripts that nothing needs, until done or `go_on` says no; with `old` also sessions
    that are over, that no checkpoint names, and that were last heard of before the oldest
    checkpoint that is left, and its changes, were begun. registry: of the daemon, None without one.
    Raises StoreFullError, StoreUnwritableError, WriterEndedError."""
    done, known = Dropped(), registry or Registry(engine)
    store = engine.volume.store
    with Reader(store) as reader:
        if not any(reader.count(table) for table in ("session", "transcript", "piece")):
            return done
    with known.lock:
        # From here on marks are made of what sessions go on with now, and of newer ones only.
        commit(engine)
        held = known.transcripts.held()
        reader = Reader(store)
    try:
        with reader:
            families, unneeded = _find(reader, held, go_on, old=old)
    except DamagedRecordError:
        families, unneeded = [], []  # `verify` tells of it
    _drop_families(engine, known, families, go_on, done)
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
        log.info("dropped %s", done)
    return done


def _find(
    reader: Reader, held: set[int], go_on: GoOn, *, old: bool
) -> tuple[list[_Family], list[int]]:
    """Sessions that may go, and transcripts of others: those that no session goes on with, that
    nobody is about to make a checkpoint with, and that no context marks. Raises
    DamagedRecordError."""
    families = _families(reader)
    all_of_them = {number for one in families.values() for number in one.transcripts}
    going_on = {n for one in families.values() for record in one.members for n in record.files}
    unwanted = _old_families(reader, families) if old else []
    if not unwanted and not all_of_them - going_on - held:
        return [], []
    needed = set(held)
    for number, (_, value) in enumerate(reader.scan("context")):
        if not number % _AT_ONCE and not go_on():
            return [], []
        needed.update(mark.transcript for mark in unpack_context(value).marks)
    unwanted = [one for one in unwanted if needed.isdisjoint(one.transcripts)]
    gone = {number for one in unwanted for number in one.transcripts}
    return unwanted, sorted(all_of_them - going_on - needed - gone)


def _families(reader: Reader) -> dict[str, _Family]:
    """By session. Raises DamagedRecordError."""
    found: dict[str, _Family] = {}
    for session in reading.sessions(reader):
        found.setdefault(family(session.id), _Family()).members.append(session)
    for key, value in reader.scan("transcript"):
        owner = records.decode(value, TranscriptRecord).session
        found.setdefault(owner, _Family()).transcripts.append(keys.unpack_id(key))
    return found


def _old_families(reader: Reader, families: dict[str, _Family]) -> list[_Family]:
    """Those that are over and that no checkpoint names. Raises DamagedRecordError."""
    checkpoints = all_checkpoints(reader)
    oldest = next((record for record in checkpoints if record.epoch), None)
    if oldest is None:
        return []
    before = reader.epoch(oldest.epoch).opened
    named = {family(record.session) for record in checkpoints}
    return [
        one
        for name, one in families.items()
        if one.members and name not in named and one.is_over(before)
    ]


def _drop_families(
    engine: Engine, registry: Registry, families: list[_Family], go_on: GoOn, done: Dropped
) -> None:
    """Those that are still what they were."""
    for one in families:
        if not go_on():
            return
        with registry.lock:
            if not registry.drop(one.members, one.transcripts):
                continue
            commit(engine)
        done.sessions += len(one.members)
        done.transcripts += len(one.transcripts)


def _delete(store: Store, txn: Transaction, numbers: Iterable[int]) -> None:
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
