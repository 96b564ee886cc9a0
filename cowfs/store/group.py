"""Transaction groups: what one commit adds to the store, and how it gets into the tables.

A *transaction group* collects what the volume changed (state open), is frozen by
`Volume.quiesce` (quiescing) and committed by the writer thread (syncing; store/writer.py).

Threading: a group belongs to its maker until it is submitted, then to the writer thread, where
`GroupWriter` runs in the write transaction.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cowfs.errors import DamagedRecordError
from cowfs.format import codec, keys, records
from cowfs.store.env import Cursor, Store, Transaction
from cowfs.store.ledger import Ledger
from cowfs.store.lineage import Lineage

_ZEROS = bytes(65536)
_INVERT = (1 << 64) - 1

Data = bytes | bytearray | None


@dataclass(slots=True, eq=False)
class TransactionGroup:
    """What one commit adds to the store.

    puts: versioned and plain records, by table, in the order they were made.
    removals: (table, key without epoch, change key): the thing is gone from this epoch on.
    blocks: (content, block number, bytes or None for a hole, reference content or 0, epoch).
    dropped: (content, epoch): extents of that content written in that epoch or later are garbage,
        but not those of this group's own blocks.
    deletes: (table, key) of unversioned records that go.
    done: it is on stable storage.
    """

    epoch: int
    lineage: Lineage
    puts: dict[str, list[tuple[bytes, bytes]]] = field(default_factory=dict)
    removals: list[tuple[str, bytes, bytes | None]] = field(default_factory=list)
    blocks: list[tuple[int, int, Data, int, int]] = field(default_factory=list)
    dropped: list[tuple[int, int]] = field(default_factory=list)
    deletes: list[tuple[str, bytes]] = field(default_factory=list)
    size: int = 0
    done: bool = False

    def put(self, table: str, key: bytes, value: bytes) -> None:
        """Add one record."""
        rows = self.puts.get(table)
        if rows is None:
            rows = self.puts[table] = []
        rows.append((key, value))

    def delete(self, table: str, key: bytes) -> None:
        """Take an unversioned record out. A later `put` of its key wins, an earlier one not."""
        if rows := self.puts.get(table):
            self.puts[table] = [row for row in rows if row[0] != key]
        self.deletes.append((table, key))

    @property
    def empty(self) -> bool:
        return not (self.puts or self.removals or self.blocks or self.dropped or self.deletes)


def superseded(groups: list[TransactionGroup]) -> list[set[int]]:
    """For each group, the blocks (by place in its list) that a later one of the same transaction
    overwrites or drops: they need not be written, so that a file which is too big can be deleted.
    """
    if len(groups) == 1:
        return [set()]
    written: set[tuple[int, int, int]] = set()
    dropped: dict[int, int] = {}
    found = []
    for group in reversed(groups):
        blocks = [(content, number, epoch) for content, number, _, _, epoch in group.blocks]
        found.append(
            {
                place
                for place, block in enumerate(blocks)
                if block in written or dropped.get(block[0], block[2] + 1) <= block[2]
            }
        )
        written.update(blocks)
        for content, epoch in group.dropped:
            dropped[content] = min(epoch, dropped.get(content, epoch))
    return found[::-1]


class GroupWriter:
    """Writes one group into an open write transaction."""

    def __init__(
        self,
        store: Store,
        txn: Transaction,
        group: TransactionGroup,
        ledger: Ledger,
        superseded: set[int],
    ) -> None:
        """`superseded`: places in `group.blocks` of what need not be written."""
        self.tables = store.tables
        self.segments = store.segments
        self.txn = txn
        self.group = group
        self.ledger = ledger
        self.superseded = superseded
        self.suffix = keys.inverted(group.epoch)

    def run(self) -> None:
        group = self.group
        if group.blocks:
            self._put_blocks()
        if group.dropped:
            # A file that a restore gave back its name may have been written since.
            own = {keys.extent_key(block[0], block[1], block[4]) for block in group.blocks}
            for content, epoch in group.dropped:
                self._drop(content, epoch, own)
        for table, key in group.deletes:
            self.txn.delete(key, db=self.tables[table])
        for key, value in group.puts.get("extent", ()):
            self._refer(key, value)
        for table, rows in group.puts.items():
            with self.txn.cursor(db=self.tables[table]) as cursor:
                cursor.putmulti(rows)
        if group.removals:
            cursors = {
                table: self.txn.cursor(db=self.tables[table])
                for table in {table for table, _, _ in group.removals}
            }
            for table, prefix, change in group.removals:
                self._remove(table, cursors[table], prefix, change)
            for cursor in cursors.values():
                cursor.close()

    def _remove(self, table: str, cursor: Cursor, prefix: bytes, change: bytes | None) -> None:
        """A thing is gone: leave a whiteout only where an ancestor epoch still shows it."""
        key = prefix + self.suffix
        if self._older(cursor, prefix):
            self.txn.put(key, records.WHITEOUT, db=self.tables[table])
            if change is not None:
                self.txn.put(change, b"", db=self.tables["change"])
            return
        self.txn.delete(key, db=self.tables[table])
        if change is not None:
            self.txn.delete(change, db=self.tables["change"])

    def _older(self, cursor: Cursor, prefix: bytes) -> bool:
        """Whether the thing was there before this epoch; if that is damaged, it was."""
        if not cursor.set_range(prefix + keys.inverted(self.group.epoch - 1)):
            return False
        visible, size = self.group.lineage.visible, len(prefix) + 8
        while True:
            key = cursor.key()
            if len(key) != size or not key.startswith(prefix):
                return False
            if visible(_INVERT - int.from_bytes(key[-8:], "big")):
                return cursor.stored() != cursor.seal(key, records.WHITEOUT)
            if not cursor.next():
                return False

    def _drop(self, content: int, epoch: int, own: set[bytes]) -> None:
        prefix = keys.pack_id(content)
        with self.txn.cursor(db=self.tables["extent"]) as cursor:
            found = cursor.set_range(prefix)
            while found and cursor.key().startswith(prefix):
                key = cursor.key()
                if keys.epoch_of(key) >= epoch and key not in own:
                    self.ledger.let_go(cursor.value())
                    found = cursor.delete()
                else:
                    found = cursor.next()

    def _refer(self, key: bytes, value: bytes) -> None:
        """Count the reference that an extent makes, and the one that it replaces."""
        old = self.txn.get(key, db=self.tables["extent"])
        self.ledger.hold(value)
        if old is not None:
            self.ledger.let_go(old)

    def _put_blocks(self) -> None:
        txn, blocks, extents = self.txn, self.tables["block"], self.tables["extent"]
        with txn.cursor(db=extents) as cursor:
            for place, (content, number, data, reference, epoch) in enumerate(self.group.blocks):
                if place in self.superseded:
                    continue
                key = keys.extent_key(content, number, epoch)
                if data is None or data == _ZEROS[: len(data)]:
                    self._refer(key, records.WHITEOUT)
                    txn.put(key, records.WHITEOUT, db=extents)
                    continue
                digest = codec.block_hash(data)
                stored = txn.get(digest, db=blocks)
                if stored is not None and not self._sound(digest, stored):
                    # Others may be deltas to it, so it stands alone.
                    txn.put(digest, codec.encode_block(data), db=blocks)
                elif stored is not None:
                    self._note_needed(stored)
                else:
                    below = self._reference(cursor, content, number, reference)
                    value = codec.encode(data, *below) if below else codec.encode_block(data)
                    txn.put(digest, value, db=blocks)
                    self.ledger.born(digest)
                    if (needed := codec.delta_reference(value)) is not None:
                        self.ledger.hold(needed)
                        self._note_needed(value)
                self._refer(key, digest)
                txn.put(key, digest, db=extents)

    def _note_needed(self, value: bytes) -> None:
        """Something is going to rely on a block, and so on what that needs: its reference, and the
        segment that one of the two may be a part of."""
        needed = codec.delta_reference(value)
        if needed is None or not self.ledger.watching:
            return
        self.ledger.note(needed)
        below = self.txn.get(needed, db=self.tables["block"]) or b""
        if (segment := codec.delta_reference(below)) is not None:
            self.ledger.note(segment)

    def _sound(self, digest: bytes, value: bytes) -> bool:
        """Whether a block that is there already can be read. If not, the same bytes that are
        written now take its place: they must not be lost with it (contract 4)."""
        try:
            self.segments.decode(self.txn, self.tables["block"], value, digest)
        except DamagedRecordError:
            return False
        return True

    def _reference(
        self, cursor: Cursor, content: int, number: int, reference: int
    ) -> tuple[bytes, bytes] | None:
        """(raw bytes, hash) of the previous version of a block, or of what that refers to."""
        digest = self._previous(cursor, content, number)
        if not digest and reference:
            digest = self._previous(cursor, reference, number)
        if not digest:
            return None
        blocks = self.tables["block"]
        value = self.txn.get(digest, db=blocks)
        further = codec.delta_reference(value) if value is not None else None
        if value is not None and further is not None and value[0] != codec.PART:
            digest, value = further, self.txn.get(further, db=blocks)
        if value is None:
            return None
        try:
            return self.segments.decode(self.txn, blocks, value, digest), digest
        except DamagedRecordError:
            return None

    def _previous(self, cursor: Cursor, content: int, number: int) -> bytes | None:
        """Hash of the version of a block that this group replaces (in this epoch or before)."""
        prefix = keys.extent_prefix(content, number)
        if not cursor.set_range(prefix + self.suffix):
            return None
        key = cursor.key()
        if key.startswith(prefix) and self.group.lineage.visible(keys.epoch_of(key)):
            value = cursor.value()
            return value if len(value) == codec.HASH_SIZE else None
        return None
