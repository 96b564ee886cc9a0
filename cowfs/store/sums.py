"""Counts and sums of records, by which one that is gone is missed (docs/format.md, "Sums").

They are kept for the tables whose records nothing else repeats, in `meta`, and for versioned tables
for each epoch. A write transaction collects what it changes and writes it down when it commits.

Threading: owned by the thread of the transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct

KEPT = b"sums"
"""Key in `meta`: the store keeps sums. Those of a table are below `PREFIX`."""
PREFIX = b"sums\0"
VERSIONED = frozenset({"xattr", "extent"})
SUMMED = (
    VERSIONED
    | {"base", "origin", "hardlink", "orphan", "process", "audit"}
    | {
        "session",
        "transcript",
        "piece",
        "context",
    }
)
_VALUE = Struct(">QQ")
_MASK = (1 << 64) - 1


def name_of(table: str, key: bytes) -> bytes:
    """Key in `meta` of the sum that a record belongs to."""
    name = PREFIX + table.encode()
    return name + b"\0" + key[-8:] if table in VERSIONED else name


def pack(count: int, total: int) -> bytes:
    """The value of a sum."""
    return _VALUE.pack(count & _MASK, total & _MASK)


def unpack(value: bytes) -> tuple[int, int] | None:
    """(count, sum); None when it does not decode."""
    if len(value) != _VALUE.size:
        return None
    count, total = _VALUE.unpack(value)
    return count, total


class Sums:
    """By name of the sum, how many records there are, and the sum of their checksums; or, of a
    transaction, how both change."""

    def __init__(self) -> None:
        self.changes: dict[bytes, tuple[int, int]] = {}

    def replace(self, table: str, key: bytes, old: bytes | None, new: bytes | None) -> None:
        """A record's stored value becomes another one; None: it is not there."""
        count, total = (new is not None) - (old is not None), 0
        if new is not None:
            total = int.from_bytes(new[-4:], "big")
        if old is not None:
            total -= int.from_bytes(old[-4:], "big")
        if count or total:
            name = name_of(table, key)
            before = self.changes.get(name, (0, 0))
            self.changes[name] = before[0] + count, before[1] + total

    def rows(self) -> Iterable[tuple[bytes, bytes]]:
        """What `meta` says of it, when these are all records."""
        yield KEPT, b""
        for name, (count, total) in self.changes.items():
            if count:
                yield name, pack(count, total)
