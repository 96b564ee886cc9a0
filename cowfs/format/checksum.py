"""The checksum at the end of every stored value (docs/format.md, "Checksums").

It covers the table, the key and the value, so a flipped bit, a value under another key and a record
of another table are all noticed. Blocks have their hash instead, and the format record carries its
checksum within (format/version.py), since programs of every version must be able to read it.

Threading: pure functions and immutable objects.
"""

from __future__ import annotations

from collections.abc import Iterator
from zlib import crc32

from cowfs.errors import DamagedRecordError
from cowfs.format import keys

SIZE = 4
DAMAGED = b"\0\0"
"""In place of a value whose checksum is wrong, for those who look at damage. No value of any table
has this form, so it is damaged for every check and every decoder."""
FORMAT_KEY = b"format"
"""Key in `meta` of the record that has no checksum behind it."""


def seed(table: str) -> int:
    """The checksum of the part that all records of a table have in common."""
    return crc32(table.encode() + b"\0")


class Checksum:
    """Puts the checksum of one table's records behind their values, and takes it off again."""

    __slots__ = ("_seed", "table")

    def __init__(self, table: str) -> None:
        self.table = table
        self._seed = seed(table)

    def seal(self, key: bytes, value: bytes) -> bytes:
        """The value as it is stored."""
        return value + crc32(key + value, self._seed).to_bytes(4, "big")

    def open(self, key: bytes, stored: bytes) -> bytes:
        """The value. Raises DamagedRecordError when the checksum is another one."""
        value = stored[:-4]
        if crc32(key + value, self._seed).to_bytes(4, "big") != stored[-4:]:
            raise self.error(key)
        return value

    def examine(self, key: bytes, stored: bytes) -> bytes:
        """The value; `DAMAGED` when the checksum is another one."""
        value = stored[:-4]
        if crc32(key + value, self._seed).to_bytes(4, "big") != stored[-4:]:
            return DAMAGED
        return value

    def strip(self, key: bytes, stored: bytes) -> bytes:
        """The value, whatever its checksum."""
        return stored[:-4]

    def matches(self, key: bytes, stored: bytes) -> bool:
        """Whether a stored value belongs to this table and key, and is whole."""
        return crc32(key + stored[:-4], self._seed).to_bytes(4, "big") == stored[-4:]

    def error(self, key: bytes) -> DamagedRecordError:
        """What `open` raises."""
        what = f"{self.table} record {keys.thing(self.table, key)}"
        return DamagedRecordError(what=what, detail="its checksum is wrong")


class NoChecksum(Checksum):
    """Values that are stored as they are: blocks, and all of version 1."""

    __slots__ = ()

    def seal(self, key: bytes, value: bytes) -> bytes:
        return value

    def open(self, key: bytes, stored: bytes) -> bytes:
        return stored

    def examine(self, key: bytes, stored: bytes) -> bytes:
        return stored

    def strip(self, key: bytes, stored: bytes) -> bytes:
        return stored

    def matches(self, key: bytes, stored: bytes) -> bool:
        return True


class _MetaChecksum(Checksum):
    """`meta`, where one record is stored as it is."""

    __slots__ = ()

    def seal(self, key: bytes, value: bytes) -> bytes:
        return value if key == FORMAT_KEY else super().seal(key, value)

    def open(self, key: bytes, stored: bytes) -> bytes:
        return stored if key == FORMAT_KEY else super().open(key, stored)

    def examine(self, key: bytes, stored: bytes) -> bytes:
        return stored if key == FORMAT_KEY else super().examine(key, stored)

    def strip(self, key: bytes, stored: bytes) -> bytes:
        return stored if key == FORMAT_KEY else super().strip(key, stored)

    def matches(self, key: bytes, stored: bytes) -> bool:
        return key == FORMAT_KEY or super().matches(key, stored)


def of_table(table: str, version: int) -> Checksum:
    """How the values of a table are stored in a version of the format."""
    if version < 2 or table == "block":
        return NoChecksum(table)
    return _MetaChecksum(table) if table == "meta" else Checksum(table)


def mended(checksum: Checksum, key: bytes, stored: bytes) -> tuple[bytes, bytes] | None:
    """(key, stored value) of a damaged record before one bit of it flipped; None when no such bit
    is found.

    A CRC-32 tells every two bits that flipped in up to 11 KB from none, so at most one single bit
    fits; that damage of another kind is mistaken for it has the chance of bits / 2^32.
    """
    for value in _with_a_bit_flipped(stored):
        if checksum.matches(key, value):
            return key, value
    for other in _with_a_bit_flipped(key):
        if checksum.matches(other, stored):
            return other, stored
    return None


_MENDABLE = 1024
"""Bytes of a record of which every bit is tried: some milliseconds."""


def _with_a_bit_flipped(data: bytes) -> Iterator[bytes]:
    if len(data) > _MENDABLE:
        return
    whole = int.from_bytes(data, "big")
    for bit in range(8 * len(data)):
        yield (whole ^ 1 << bit).to_bytes(len(data), "big")
