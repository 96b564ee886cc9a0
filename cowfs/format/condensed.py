"""Values that a compaction made shorter, and what they were (docs/format.md, "Condensed values").

Whoever opens a value gets it in its usual form, so that nobody else knows of this, but for the
context: that comes as its array, without the frame.

Threading: the functions are safe in any thread; each thread has decompressors of its own.
"""

from __future__ import annotations

import threading
from struct import error as BadStruct  # noqa: N812

import zstandard

from cowfs.errors import DamagedRecordError
from cowfs.format import records
from cowfs.format.checksum import DAMAGED, Checksum

TABLES = ("audit", "context", "operation", "process")
"""Those of which values are compressed with a dictionary of the table."""
DICTIONARY, TWIN = b"dictionary\0", b"twin of dictionary\0"
"""Keys in `meta` of a table's dictionary: these, and the table's name."""
MARK = b"\xc1"
"""Begins a compressed value; nothing in msgpack and no frame begins so."""
_SHORT = 0x80
"""Bit of the flags of an inode that is stored in its short form."""
_LONGEST = 1 << 25
_LEVEL = 12
_FRAME = b"\x28\xb5\x2f\xfd"


def compress(value: bytes, dictionary: bytes) -> bytes:
    """A value as it is stored: compressed, or as it is if that is shorter."""
    known = zstandard.ZstdCompressionDict(dictionary, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    compressor = zstandard.ZstdCompressor(level=_LEVEL, dict_data=known, write_checksum=False)
    made = MARK + compressor.compress(unframed(value))
    return made if len(made) < len(value) else value


def unframed(value: bytes) -> bytes:
    """The array of a context that is a frame; anything else as it is."""
    if value[:4] != _FRAME or not 0 < zstandard.frame_content_size(value) <= _LONGEST:
        return value
    try:
        return zstandard.ZstdDecompressor().decompress(value)
    except zstandard.ZstdError:
        return value


def shorten(value: bytes) -> bytes:
    """An inode as it is stored when it is not the newest version."""
    record = records.unpack_inode(value)
    if record.flags & _SHORT:
        return value
    made = bytearray((_SHORT | record.flags,))
    for number in (record.mode, record.nlink, record.uid, record.gid, record.rdev, record.size):
        made += _number(number)
    made += _number(record.content) + _number(record.base_size)
    made += record.mtime.to_bytes(8, "big", signed=True)
    for time in (record.atime, record.ctime):
        later = time - record.mtime
        made += _number(2 * later if later >= 0 else -2 * later - 1)
    made += record.target
    return bytes(made)


def is_short(value: bytes) -> bool:
    """Whether an inode is in its short form."""
    return bool(value) and bool(value[0] & _SHORT)


def lengthen(value: bytes) -> bytes:
    """The usual form of an inode. Raises DamagedRecordError."""
    if not is_short(value):
        return value
    try:
        at, numbers = 1, []
        for _ in range(8):
            number, at = _read(value, at)
            numbers.append(number)
        mode, nlink, uid, gid, rdev, size, content, base_size = numbers
        mtime = int.from_bytes(value[at : at + 8], "big", signed=True)
        at, times = at + 8, []
        for _ in range(2):
            number, at = _read(value, at)
            times.append(mtime + (-((number + 1) >> 1) if number & 1 else number >> 1))
        fields = (value[0] & ~_SHORT, mode, nlink, uid, gid, rdev, size)
        return records.pack_inode(
            *fields, times[0], mtime, times[1], content, base_size, value[at:]
        )
    except (IndexError, BadStruct):
        detail = "its short form is cut off, or has an impossible number"
        raise DamagedRecordError(what="inode record", detail=detail) from None


def _number(number: int) -> bytes:
    """Seven bits in each byte, the lowest first; the highest bit says that more follow."""
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)


def _read(value: bytes, at: int) -> tuple[int, int]:
    """(number, place after it). Raises IndexError."""
    number = shift = 0
    while True:
        byte = value[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at
        if shift > 70:
            raise IndexError


class _Decompressor(threading.local):
    """One for each thread; to make one takes as long as many values."""

    def __init__(self, dictionary: bytes) -> None:
        known = zstandard.ZstdCompressionDict(dictionary, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
        self.decompress = zstandard.ZstdDecompressor(dict_data=known).decompress


class Condensed(Checksum):
    """The values of a table of which some are condensed. What is written is not."""

    __slots__ = ("_of_thread",)

    def __init__(self, table: str, dictionary: bytes = b"") -> None:
        super().__init__(table)
        self._of_thread = _Decompressor(dictionary)

    def open(self, key: bytes, stored: bytes) -> bytes:
        return self._usual(super().open(key, stored))

    def examine(self, key: bytes, stored: bytes) -> bytes:
        try:
            return self._usual(super().examine(key, stored))
        except DamagedRecordError:
            return DAMAGED

    def strip(self, key: bytes, stored: bytes) -> bytes:
        value = super().strip(key, stored)
        try:
            return self._usual(value)
        except DamagedRecordError:
            return value

    def _usual(self, value: bytes) -> bytes:
        if self.table == "inode":
            return lengthen(value)
        if value[:1] != MARK:
            return value
        what = f"{self.table} record"
        try:
            if not 0 < zstandard.frame_content_size(value[1:]) <= _LONGEST:
                raise DamagedRecordError(what=what, detail="its frame has no possible length")
            return self._of_thread.decompress(value[1:])
        except zstandard.ZstdError as error:
            raise DamagedRecordError(what=what, detail=str(error)) from None
