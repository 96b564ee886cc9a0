"""Blocks to bytes and back: hash, compression, delta (docs/format.md, "Blocks").

A block is named by the BLAKE3 hash of its raw bytes. Stored value: codec (1 byte), raw length
(4 bytes, big-endian), then

    0 RAW    the bytes
    1 ZSTD   one zstd frame
    2 DELTA  hash of the reference block (32 bytes), then one zstd frame made with the reference's
             raw bytes as dictionary. A reference is never itself a delta: one hop.
    3 PATCH  hash of the reference block (32 bytes), number of ranges (1), for each its first piece
             of 256 bytes (1) and how many pieces it has less one (1), then what the block has in
             these ranges as a stored value of its own (RAW or ZSTD)
    4 PART   bytes of a segment, which holds many blocks (format/segment.py)

Threading: the functions are safe in any thread; each thread keeps its own zstd contexts.
"""

from __future__ import annotations

import threading

import zstandard
from blake3 import blake3

from cowfs.errors import DamagedRecordError
from cowfs.types import BLOCK_SIZE

RAW, ZSTD, DELTA, PATCH, PART = 0, 1, 2, 3, 4
HASH_SIZE = 32
HEADER_SIZE = 5
_PAGE = 4096
_PIECE = 256
_REFERRING = (b"\2", b"\3", b"\4")
_REFERRED_SIZE = HEADER_SIZE + HASH_SIZE
_PART_SIZE = _REFERRED_SIZE + 4
LONGEST_SEGMENT = 1 << 24
"""Bytes that what stands alone may have: as much memory may be asked for before it is verified."""
_LEVEL = 1
_DELTA_LEVEL = 6
"""A fifth smaller than at level 1, in 0.1 ms instead of 0.06: the dictionary costs the most."""
_PACK_LEVEL = 12
_MIN_COMPRESS = 64
_WORTH = 512
"""Stored blocks up to this size are not worth a reference."""
_SMALL = 1024
"""Changed bytes up to which a patch is not worth looking for something smaller."""
_MUCH = 32
"""A delta that is so many times smaller than its block beats every other form."""
_WORSE = 3
"""A delta that is not so many times smaller than the block alone is not made: versions after it are
deltas to the same reference, and grow. Standing alone, this one becomes their reference."""
_SAMPLES = 8
_SAMPLE = 24
_NEAR = 8192
"""Bytes around a changed range in which its samples are looked for."""
_Buffer = bytes | bytearray | memoryview


class _Contexts(threading.local):
    """zstd contexts are not to be shared between threads."""

    def __init__(self) -> None:
        self.compress = zstandard.ZstdCompressor(
            level=_LEVEL, write_checksum=False, write_content_size=True
        ).compress
        self.decompress = zstandard.ZstdDecompressor().decompress


_contexts = _Contexts()


def block_hash(data: _Buffer) -> bytes:
    """BLAKE3 of the raw bytes, 32 bytes."""
    return blake3(data).digest()


def encode_block(data: _Buffer) -> bytes:
    """The stored value of a block that stands alone (RAW or ZSTD, whichever is smaller)."""
    size = len(data)
    if size >= _MIN_COMPRESS:
        packed = _contexts.compress(data)
        if len(packed) < size:
            return b"\1" + size.to_bytes(4, "big") + packed
    return b"\0" + size.to_bytes(4, "big") + bytes(data)


def repack(value: bytes, digest: bytes) -> bytes:
    """A stored value that stands alone, with its bytes compressed harder; for who has the time.

    Raises DamagedRecordError.
    """
    data = decode_block(value, digest)
    if len(data) < _MIN_COMPRESS:
        return value
    packed = zstandard.ZstdCompressor(level=_PACK_LEVEL, write_checksum=False).compress(data)
    made = b"\1" + len(data).to_bytes(4, "big") + packed
    return made if len(made) < len(value) else value


def encode_delta(data: _Buffer, reference: bytes, reference_hash: bytes) -> bytes:
    """The stored value of a block as a delta against `reference` (raw bytes)."""
    dictionary = zstandard.ZstdCompressionDict(reference, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    packed = zstandard.ZstdCompressor(level=_DELTA_LEVEL, dict_data=dictionary).compress(data)
    return b"\2" + len(data).to_bytes(4, "big") + reference_hash + packed


def _changed_ranges(data: _Buffer, reference: bytes) -> list[tuple[int, int]]:
    """Where a block differs from another one: (start, end), at most one range in each page; starts
    and lengths are multiples of a piece, but for the block's end."""
    size, ranges = len(data), list[tuple[int, int]]()
    reference = reference[:size]
    for page in range(0, size, _PAGE):
        end = page + _PAGE
        if data[page:end] == reference[page:end]:
            continue
        start = page
        while data[start : start + _PIECE] == reference[start : start + _PIECE]:
            start += _PIECE
        end = min(end, size)
        last = (end - 1) // _PIECE * _PIECE
        while data[last:end] == reference[last:end]:
            end, last = last, last - _PIECE
        if ranges and ranges[-1][1] == start:
            start = ranges.pop()[0]
        ranges.append((start, end))
    return ranges


def encode_patch(data: _Buffer, reference: bytes, reference_hash: bytes) -> bytes:
    """The stored value of a block as the ranges in which it differs from `reference`."""
    ranges = _changed_ranges(data, reference)
    return _patch(data, ranges, reference_hash)


def _patch(data: _Buffer, ranges: list[tuple[int, int]], reference_hash: bytes) -> bytes:
    places = bytearray()
    for start, end in ranges:
        places += bytes((start // _PIECE, (end - start - 1) // _PIECE))
    packed = encode_block(b"".join([data[start:end] for start, end in ranges]))
    header = b"\3" + len(data).to_bytes(4, "big") + reference_hash + bytes((len(ranges),))
    return header + places + packed


def _resembles(data: _Buffer, ranges: list[tuple[int, int]], reference: bytes) -> bool:
    """Whether some of what changed was near there before, so that a delta may be small: a text into
    which a line was put, a page of a database with one row more. Looks at some samples (up to 9 us
    for each); those that are all zeros, or all of another byte, tell nothing."""
    each = max(_SAMPLES // len(ranges), 1)
    for start, end in ranges:
        for turn in range(1, each + 1):
            at = start + (end - start) * turn // (each + 1)
            sample = bytes(data[at : at + _SAMPLE])
            if sample.count(sample[:1]) == len(sample):
                continue
            if reference.find(sample, max(start - _NEAR, 0), end + _NEAR) >= 0:
                return True
    return False


def encode(data: _Buffer, reference: bytes, reference_hash: bytes) -> bytes:
    """The stored value of a block whose previous version is `reference`: alone, as a patch or as a
    delta. The smallest is not looked for at any price: a delta takes ten times as long as a patch,
    and what does not compress by itself seldom does by what was there before."""
    size = len(data)
    plain = b""
    if size <= _PAGE:
        plain = encode_block(data)
        if len(plain) <= _WORTH:
            return plain
    ranges = _changed_ranges(data, reference)
    changed = sum(end - start for start, end in ranges)
    if changed <= _SMALL:
        return _patch(data, ranges, reference_hash)
    if len(_contexts.compress(data[:_PAGE])) >= min(size, _PAGE):
        if 2 * changed <= size:
            return _patch(data, ranges, reference_hash)
        plain = plain or encode_block(data)
        if plain[0] == RAW:
            return plain
    elif not _resembles(data, ranges, reference):
        if _WORSE * changed <= size:
            return _patch(data, ranges, reference_hash)
        return plain or encode_block(data)
    packed = encode_delta(data, reference, reference_hash)
    if len(packed) * _MUCH < size:
        return packed
    plain = plain or encode_block(data)
    return packed if len(packed) * _WORSE < len(plain) else plain


def delta_reference(value: _Buffer) -> bytes | None:
    """Hash of the block that a stored value needs, None when it stands alone (or is damaged)."""
    if value[:1] not in _REFERRING or len(value) < _REFERRED_SIZE:
        return None
    return bytes(value[HEADER_SIZE:_REFERRED_SIZE])


def decode_block(value: _Buffer, digest: bytes, reference: _Buffer | None = None) -> bytes:
    """Raw bytes of a stored block, verified against `digest`.

    `reference`: raw bytes of the block named by `delta_reference`, of a segment as many as the part
    needs. Raises DamagedRecordError when the value does not decode, or decodes to bytes with
    another hash (contract 5).
    """
    return bytes(open_block(value, digest, reference))


def open_block(
    value: _Buffer, digest: bytes, reference: _Buffer | None = None
) -> bytes | memoryview:
    """The same, and of a `memoryview` that holds the bytes as they are a part, not a copy."""
    name = f"block {digest.hex()[:12]}"
    if len(value) < HEADER_SIZE:
        raise DamagedRecordError(what=name, detail="the record is too short")
    codec, size = value[0], int.from_bytes(value[1:HEADER_SIZE], "big")
    if size > (LONGEST_SEGMENT if codec in (RAW, ZSTD) else BLOCK_SIZE):
        raise DamagedRecordError(what=name, detail=f"it says that it has {size} bytes")
    try:
        if codec == RAW:
            data = value[HEADER_SIZE:]
        elif codec == ZSTD:
            data = _contexts.decompress(_frame(value[HEADER_SIZE:], size, name))
        elif codec == DELTA and reference is not None:
            dictionary = zstandard.ZstdCompressionDict(
                reference, dict_type=zstandard.DICT_TYPE_RAWCONTENT
            )
            data = zstandard.ZstdDecompressor(dict_data=dictionary).decompress(
                _frame(value[_REFERRED_SIZE:], size, name)
            )
        elif codec == PATCH and reference is not None:
            data = _patched(value, size, reference, name)
        elif codec == PART and reference is not None and len(value) == _PART_SIZE:
            start = int.from_bytes(value[_REFERRED_SIZE:], "big")
            data = bytes(reference[start : start + size])
        else:
            raise DamagedRecordError(what=name, detail=f"codec {codec} cannot be read")
    except zstandard.ZstdError as error:
        raise DamagedRecordError(what=name, detail=str(error)) from None
    if len(data) != size or block_hash(data) != digest:
        raise DamagedRecordError(what=name, detail="its bytes do not match its hash")
    return bytes(data) if isinstance(data, bytearray) else data


def _patched(value: _Buffer, size: int, reference: _Buffer, name: str) -> bytearray:
    """The reference with the ranges of a patch in their places."""
    if len(value) <= _REFERRED_SIZE:
        raise DamagedRecordError(what=name, detail="the record is too short")
    start = _REFERRED_SIZE + 1
    packed_at = start + 2 * value[_REFERRED_SIZE]
    places = value[start:packed_at]
    packed = value[packed_at:]
    length = int.from_bytes(packed[1:HEADER_SIZE], "big")
    pieces = packed[HEADER_SIZE:]
    if packed[:1] == b"\1" and length <= size:
        pieces = _contexts.decompress(_frame(pieces, length, name))
    data = bytearray(reference[:size])
    if len(data) < size:
        data.extend(bytes(size - len(data)))
    at = 0
    for first, more in zip(places[::2], places[1::2], strict=False):
        begin = first * _PIECE
        count = min((more + 1) * _PIECE, size - begin)
        data[begin : begin + count] = pieces[at : at + count]
        at += count
    if at != len(pieces) or at != length:
        raise DamagedRecordError(what=name, detail="its ranges have another length")
    return data


def _frame(frame: _Buffer, size: int, name: str) -> _Buffer:
    """A zstd frame that says it has `size` bytes. A damaged one may claim to have petabytes, for
    which the decompressor would ask memory first."""
    if zstandard.frame_content_size(frame) != size:
        raise DamagedRecordError(what=name, detail="its frame has another length")
    return frame
