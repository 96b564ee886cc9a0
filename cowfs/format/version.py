"""Version and feature flags of the store, and the record that tells them (docs/format.md,
"Versions").

A store is refused when its version is newer than `VERSION` or when it has an *incompatible* flag
that this code does not know. Unknown *compatible* flags are kept and ignored. A version 1 store
can be read; it is upgraded before it is written (store/upgrade.py).

Threading: constants and pure functions.
"""

from __future__ import annotations

from zlib import crc32

import msgspec

from cowfs.errors import DamagedRecordError
from cowfs.format import checksum, records
from cowfs.format.records import FormatRecord
from cowfs.types import BLOCK_SIZE

VERSION = 2
SEGMENTS = 1 << 0
"""Incompatible: there may be blocks that are parts of segments."""
THINNED = 1 << 1
"""Incompatible: there may be extents with the value `EXTENT_THINNED`. A program that does not know
them would take them for damage, and a restore would make them part of the present state."""
CONDENSED = 1 << 2
"""Incompatible: there may be condensed values (format/condensed.py)."""
KNOWN_INCOMPATIBLE = SEGMENTS | THINNED | CONDENSED


def format_record(
    uuid: str, created: int, compatible: int = 0, incompatible: int = 0
) -> FormatRecord:
    """The record of a store of this version."""
    return sealed(FormatRecord(VERSION, compatible, incompatible, uuid, created, BLOCK_SIZE))


def with_feature(record: FormatRecord, bit: int) -> FormatRecord:
    """The record of the same store with one more incompatible feature."""
    return sealed(msgspec.structs.replace(record, incompatible=record.incompatible | bit))


def without_feature(record: FormatRecord, bit: int) -> FormatRecord:
    """The record of the same store without an incompatible feature that it does not use."""
    return sealed(msgspec.structs.replace(record, incompatible=record.incompatible & ~bit))


def sealed(record: FormatRecord) -> FormatRecord:
    """The record with the checksum that fits it."""
    return msgspec.structs.replace(record, checksum=_sum(record))


def decode_format(value: bytes) -> FormatRecord:
    """Raises DamagedRecordError when the bytes are no format record, or not what was written.

    Since version 2 it has a checksum of its own, by which a damaged version is told from a newer
    one.
    """
    record = records.decode(value, FormatRecord)
    old = record.version == 1 and record.checksum is None
    if not old and record.checksum != _sum(record):
        raise DamagedRecordError(what="format record", detail="its checksum is wrong")
    return record


def _sum(record: FormatRecord) -> int:
    """CRC-32 of the record without its last field, as of a record of `meta`."""
    fields = msgspec.structs.astuple(record)[:-1]
    value = msgspec.msgpack.encode(fields)
    return crc32(checksum.FORMAT_KEY + value, checksum.seed("meta"))


def unreadable_reason(record: FormatRecord) -> str | None:
    """Why this code cannot read the store, None when it can."""
    if record.version > VERSION:
        return f"format version {record.version}"
    if unknown := record.incompatible & ~KNOWN_INCOMPATIBLE:
        return f"unknown incompatible features {unknown:#x}"
    if record.block_size != BLOCK_SIZE:
        return f"blocks of {record.block_size} bytes"
    return None
