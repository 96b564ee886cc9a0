"""Segments: many blocks that are stored as one, and the parts of them that the blocks are
(docs/format.md, "Segments").

A segment is stored as a block that stands alone, only that it may be longer. The stored value of a
block in it:

    4 PART   raw length (4), hash of the segment (32), where in its raw bytes the block begins (4)

Threading: pure functions.
"""

from __future__ import annotations

from typing import NamedTuple

import zstandard

from cowfs.errors import DamagedRecordError
from cowfs.format.codec import HASH_SIZE, HEADER_SIZE, LONGEST_SEGMENT, PART, RAW, ZSTD
from cowfs.types import BLOCK_SIZE

_REFERRED_SIZE = HEADER_SIZE + HASH_SIZE
_PART_SIZE = _REFERRED_SIZE + 4
_LEVEL = 19
_STANDING = (RAW, ZSTD)
_PIECE = 4096


class Part(NamedTuple):
    """Where a block lies: the hash of the segment, and [start, end) of its raw bytes."""

    segment: bytes
    start: int
    end: int


def part_of(value: bytes) -> Part | None:
    """Where the block of a stored value lies, None when that is no part of a segment."""
    if len(value) != _PART_SIZE or value[0] != PART:
        return None
    start = int.from_bytes(value[_REFERRED_SIZE:], "big")
    size = int.from_bytes(value[1:HEADER_SIZE], "big")
    return Part(bytes(value[HEADER_SIZE:_REFERRED_SIZE]), start, start + size)


def encode_part(part: Part) -> bytes:
    """The stored value of a block that is part of a segment."""
    size = part.end - part.start
    header = bytes((PART,)) + size.to_bytes(4, "big")
    return header + part.segment + part.start.to_bytes(4, "big")


def encode_segment(data: bytes) -> bytes:
    """The stored value of a segment; takes some tenths of a second for a MiB."""
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=False)
    return bytes((ZSTD,)) + len(data).to_bytes(4, "big") + compressor.compress(data)


def is_segment(value: bytes) -> bool:
    """Whether a stored value is longer than a block of a file may be, as a segment's."""
    return _stands_alone(value) and int.from_bytes(value[1:HEADER_SIZE], "big") > BLOCK_SIZE


def may_refer(value: bytes, needed: bytes) -> bool:
    """Whether a stored value can be read with the one that it needs: a part needs one that stands
    alone, a delta or a patch may need a part."""
    return _stands_alone(needed) or (needed[:1] == bytes((PART,)) and value[0] != PART)


def beginning(value: bytes, digest: bytes, end: int) -> bytes:
    """The first `end` raw bytes of a stored value that stands alone, or all if it has fewer. They
    are not verified, and no more is looked at. Raises DamagedRecordError."""
    name = f"segment {digest.hex()[:12]}"
    if not _stands_alone(value):
        raise DamagedRecordError(what=name, detail="it does not stand alone")
    size = int.from_bytes(value[1:HEADER_SIZE], "big")
    if value[0] == RAW:
        return bytes(value[HEADER_SIZE : HEADER_SIZE + end])
    try:
        if size > LONGEST_SEGMENT or zstandard.frame_content_size(value[HEADER_SIZE:]) != size:
            raise DamagedRecordError(what=name, detail="its frame has another length")
        with zstandard.ZstdDecompressor().stream_reader(value[HEADER_SIZE:]) as reader:
            return reader.read(min(end, size))
    except zstandard.ZstdError as error:
        raise DamagedRecordError(what=name, detail=str(error)) from None


def sound_beginning(value: bytes) -> bytes:
    """What can still be decompressed of a damaged stored value that stands alone."""
    size = int.from_bytes(value[1:HEADER_SIZE], "big")
    if size > LONGEST_SEGMENT or not _stands_alone(value):
        return b""
    if value[0] == RAW:
        return bytes(value[HEADER_SIZE : HEADER_SIZE + size])
    found = bytearray()
    try:
        with zstandard.ZstdDecompressor().stream_reader(value[HEADER_SIZE:]) as reader:
            while len(found) < size and (piece := reader.read(_PIECE)):
                found += piece
    except zstandard.ZstdError:
        pass
    return bytes(found[:size])


def _stands_alone(value: bytes) -> bool:
    return len(value) > HEADER_SIZE and value[0] in _STANDING
