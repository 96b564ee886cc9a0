"""Which records a compaction condenses, and how their tables are opened (format/condensed.py).

Threading: as the transaction that is handed in.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cowfs.errors import DamagedRecordError
from cowfs.format import condensed, version
from cowfs.format.checksum import DAMAGED, FORMAT_KEY, Checksum
from cowfs.format.condensed import DICTIONARY, MARK, TABLES, TWIN, Condensed
from cowfs.store.transaction import Table, Transaction

_DICTIONARY_BYTES = 4000
"""One page of LMDB, and little worse than many."""
_SAMPLES = 32
_WORTH = 8 * _DICTIONARY_BYTES
"""Bytes of values that a table must have for a dictionary to pay."""


def opened(txn: Transaction, tables: dict[str, Table]) -> dict[str, Table]:
    """The tables of which values may be condensed, as they must be opened. A store that does not
    say that there are any has none; one whose format record is damaged may have some."""
    meta = tables.get("meta")
    if meta is None:
        return {}
    examining = txn.examining()
    try:
        record = version.decode_format(examining.get(FORMAT_KEY, db=meta) or b"")
        if not record.incompatible & version.CONDENSED:
            return {}
    except DamagedRecordError:
        pass
    found = {}
    for name in ("inode", *TABLES):
        dictionary = stored_dictionary(examining, meta, name) if name in TABLES else b""
        if name in tables and dictionary is not None:
            found[name] = Table(name, tables[name].handle, Condensed(name, dictionary))
    return found


def stored_dictionary(txn: Transaction, meta: Table, name: str) -> bytes | None:
    """A table's dictionary, from where it is sound; None when there is none."""
    for prefix in (DICTIONARY, TWIN):
        value = txn.get(prefix + name.encode(), db=meta)
        if value is not None and value != DAMAGED:
            return value
    return None


class Condensing(NamedTuple):
    """How one table is condensed: it was opened as `before`, and will be as `after`. dictionary:
    None for inodes."""

    before: Checksum
    after: Checksum
    dictionary: bytes | None

    def rows(self, rows: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        """The stored values as they will be."""
        current = b""
        for key, stored in rows:
            value = self.before.open(key, stored)
            if self.dictionary is not None:
                value = condensed.compress(value, self.dictionary)
            elif value and key[:8] == current:
                value = condensed.shorten(value)  # a newer version comes before it
            current = key[:8]
            yield key, self.after.seal(key, value)

    def usual(self, checksum: Checksum, key: bytes, stored: bytes) -> bytes:
        """What a stored value says, to be compared."""
        value = checksum.open(key, stored)
        return value if self.dictionary is None else condensed.unframed(value)


def plan(txn: Transaction, tables: dict[str, Table]) -> dict[str, Condensing]:
    """What can be condensed, by table. A table with a value that cannot be read stays as it is."""
    found = {}
    for name in ("inode", *TABLES):
        if name not in tables:
            continue
        before = tables[name].checksum
        try:
            dictionary = _dictionary(txn, tables[name]) if name in TABLES else b""
        except DamagedRecordError:
            continue
        if name == "inode" and not _sound(txn, tables[name]):
            continue
        after = Condensed(name, dictionary)
        if name == "inode":
            found[name] = Condensing(before, after, None)
        elif dictionary:
            found[name] = Condensing(before, after, dictionary)
    return found


def _sound(txn: Transaction, table: Table) -> bool:
    try:
        for _ in _values(txn, table):
            pass
    except DamagedRecordError:
        return False
    return True


def _values(txn: Transaction, table: Table) -> Iterator[bytes]:
    with txn.cursor(db=table) as cursor:
        if cursor.set_range(b""):
            for key, stored in cursor.following():
                yield table.checksum.open(key, stored)


def _dictionary(txn: Transaction, table: Table) -> bytes:
    """What values of a table have in common: some of them, b"" when it would not pay. Raises
    DamagedRecordError."""
    count = size = 0
    for value in _values(txn, table):
        if value[:1] == MARK:
            raise DamagedRecordError(what=f"{table.name} record", detail="without its dictionary")
        count, size = count + 1, size + len(value)
    if size < _WORTH and not isinstance(table.checksum, Condensed):
        return b""
    made, step = bytearray(), max(count // _SAMPLES, 1)
    for number, value in enumerate(_values(txn, table)):
        if number % step == 0:
            piece = condensed.unframed(value)
            if len(made) + len(piece) <= _DICTIONARY_BYTES:
                made += piece
    return bytes(made)
