"""Thinning: what files in volatile paths contain is given up, where only old checkpoints show it.

Names, attributes and sizes stay. The value of an extent that goes becomes `EXTENT_THINNED`, so what
it hid of older versions stays hidden, and who reads it is told that it is gone. A checkpoint that
shows such an extent says so (`CheckpointRecord.thinned`), in the same transaction.

Two states that see the same version of an inode see the same of its content (each epoch that writes
a block has a version of the inode). So only inodes need to be looked at of which a version is seen
by old states, and by no other: of all others the keys are read, and no more.

Threading: as the readers; `thin` is for the writer thread.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from cowfs.errors import DamagedRecordError
from cowfs.format import codec, keys, records, version
from cowfs.format.checksum import FORMAT_KEY
from cowfs.service.collecting.planning import Plan
from cowfs.service.collecting.versions import Versions, owners_of, things
from cowfs.service.volatile import Places
from cowfs.store.env import Store, Transaction
from cowfs.store.snapshot import Reader
from cowfs.tree.keeping import Kept

_LOOKED_AT = 10_000
"""Keys of inodes that one step looks at, as a rule."""
_WORTH = 10
"""An extent, or an inode that is looked at more closely, counts as so many of those."""
_TAKEN = 300
"""Extents that one step gives up, as a rule."""

Row = tuple[bytes, int]
"""Key of an extent, and the states that show it."""


@dataclass(frozen=True, slots=True)
class Thinning:
    """What may be thinned. old: epochs of the checkpoints that are old enough. patterns: of
    volatile paths (service/volatile.py)."""

    old: frozenset[int]
    patterns: tuple[bytes, ...]


class Thinner:
    """Finds the extents that can be given up, step by step.

    left: something was left alone: it is open without a name, or damaged. done, total: inodes, for
    showing progress.
    """

    def __init__(self, plan: Plan, wanted: Thinning) -> None:
        self._wanted = wanted
        self.left = False
        self.done = self.total = 0
        self.finished = False
        self._ino = 0
        self._at = b""
        self._looked = 0
        self._out: list[Row] = []
        self._follow(plan)

    def _follow(self, plan: Plan) -> None:
        self.plan = plan
        self._old = plan.kept.states(self._wanted.old - plan.present)
        self._places = Places(plan.kept, self._wanted.patterns)

    def step(self, reader: Reader, held: Collection[int], plan: Plan | None = None) -> list[Row]:
        """What the next few inodes have. held, plan: as of `Finder.step`."""
        if plan is not None:
            self._follow(plan)
        self._looked, self._out = 0, []
        self.total = reader.count("inode")
        cursor = reader.cursor("inode")
        found = bool(self._old) and cursor.set_range(keys.pack_id(self._ino))
        while found and self._looked < _LOOKED_AT and len(self._out) < _TAKEN:
            ino, epochs = keys.unpack_id(cursor.key()), [keys.epoch_of(cursor.key())]
            while (found := cursor.next()) and keys.unpack_id(cursor.key()) == ino:
                epochs.append(keys.epoch_of(cursor.key()))
            self._looked += len(epochs)
            self._ino = ino
            if self._is_of_old_ones(epochs) and not self._inode(reader, ino, held):
                return self._out  # the rest of it comes next
            self.done += len(epochs)
            self._ino, self._at = ino + 1, b""
        self.finished = not found
        return self._out

    def _is_of_old_ones(self, epochs: list[int]) -> bool:
        """Whether a version is seen by old states, and by no other."""
        if epochs == [0]:
            return False
        seen = self.plan.kept.seen(epochs)
        return any(by and not by & ~self._old for by in seen)

    def _inode(self, reader: Reader, ino: int, held: Collection[int]) -> bool:
        """Look at one more closely; False when there is more of it than a step should do."""
        try:
            return self._extents(reader, ino, held)
        except DamagedRecordError:
            self.left = True
            return True

    def _extents(self, reader: Reader, ino: int, held: Collection[int]) -> bool:
        self._looked += _WORTH
        versions: Versions = [
            (keys.epoch_of(key), value) for key, value in reader.scan("inode", keys.pack_id(ino))
        ]
        found = [records.unpack_inode(value) for _, value in versions if value]
        if any(not stat.S_ISREG(r.mode) or r.flags & records.INODE_EXTERNAL_LINKS for r in found):
            return True  # some of its names may not be known
        owners = owners_of(self.plan, ino, versions)
        if not owners.keys().isdisjoint(held):
            self.left = True
            return True
        volatile = self._old & ~self._places.elsewhere(reader, ino, self._old)
        for content in sorted(owners):
            having = owners[content]
            below = keys.pack_id(content)
            if not having & volatile or (self._at and below < self._at[:8]):
                continue
            start = max(self._at, below)
            for thing, extents in things(reader.cursor("extent"), below, start):
                self._extent(thing, extents, having, volatile)
                self._looked += _WORTH * len(extents)
                if self._looked >= 2 * _LOOKED_AT or len(self._out) >= _TAKEN:
                    self._at = thing + b"\xff" * 8 + b"\0"
                    return False
        return True

    def _extent(self, thing: bytes, extents: Versions, having: int, volatile: int) -> None:
        """Versions of one block, of which the states `having` show some."""
        seen = self.plan.kept.seen(epoch for epoch, _ in extents)
        for (epoch, value), by in zip(extents, seen, strict=True):
            showing = by & having
            is_old = 0 < epoch < self.plan.head and len(value) == codec.HASH_SIZE
            if is_old and showing and not showing & ~volatile:
                self._out.append((thing + keys.inverted(epoch), showing))


def thin(
    txn: Transaction,
    store: Store,
    kept: Kept,
    rows: Iterable[Row],
    patterns: Sequence[bytes],
) -> tuple[int, set[int]]:
    """Give up extents, and let the checkpoints that show them say so. What a checkpoint shows that
    was pinned meanwhile stays.

    kept: as in the plan that the rows are of. Returns how many, and the epochs of the checkpoints.
    """
    rows = list(rows)
    shown = 0
    for _, showing in rows:
        shown |= showing
    marked = dict[int, records.CheckpointRecord]()
    spared = 0
    for epoch in kept.members(shown):
        found = _checkpoint(txn, store, epoch)
        if found is None or found.pinned or found.label:
            spared |= kept.state(epoch)
        else:
            marked[epoch] = found
    gone = [(key, showing) for key, showing in rows if not showing & spared]
    shown = 0
    for key, showing in gone:
        txn.put(key, records.EXTENT_THINNED, db=store.tables["extent"])
        shown |= showing
    names = tuple(os.fsdecode(pattern) for pattern in patterns)
    told = set(kept.members(shown))
    for epoch in told:
        record = marked[epoch]
        now = msgspec.structs.replace(
            record, thinned=tuple(dict.fromkeys((*record.thinned, *names)))
        )
        if now != record:
            txn.put(record.id.encode(), records.encode(now), db=store.tables["checkpoint"])
    if gone:
        _say_so(txn, store)
    return len(gone), told


def _checkpoint(txn: Transaction, store: Store, epoch: int) -> records.CheckpointRecord | None:
    """The checkpoint of a state, None when it has none."""
    value = txn.get(keys.pack_id(epoch), db=store.tables["epoch"])
    name = records.decode(value, records.EpochRecord).checkpoint if value is not None else ""
    found = txn.get(name.encode(), db=store.tables["checkpoint"]) if name else None
    return records.decode(found, records.CheckpointRecord) if found is not None else None


def _say_so(txn: Transaction, store: Store) -> None:
    """Programs that do not know of thinned extents keep away from the store."""
    value = txn.get(FORMAT_KEY, db=store.tables["meta"])
    record = version.decode_format(value or b"")
    if not record.incompatible & version.THINNED:
        record = version.with_feature(record, version.THINNED)
        txn.put(FORMAT_KEY, records.encode(record), db=store.tables["meta"])
