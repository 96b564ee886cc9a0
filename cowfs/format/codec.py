"""Blocks to bytes and back: hash, compression, delta (docs/format.md, "Blocks").

A block is named by the BLAKE3 hash of its raw bytes. Stored value: codec (1 byte), raw length
(4 bytes, big-endian), then

    0 RAW    the bytes
    1 ZSTD   one zstd frame
    2 DELTA  hash of the reference block (32 bytes), then one zstd frame made with the reference's
             raw bytes as dictionary. A reference is never itself a delta: one hop.

Threading: the functions are safe in any thread; each thread keeps its own zstd contexts.
"""

from __future__ import annotations

import threading

import zstandard
from blake3 import blake3

from cowfs.errors import DamagedRecordError

RAW, ZSTD, DELTA = 0, 1, 2
HASH_SIZE = 32
HEADER_SIZE = 5
_LEVEL = 1
_MIN_COMPRESS = 64
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


def encode_delta(data: _Buffer, reference: bytes, reference_hash: bytes) -> bytes:
    """The stored value of a block as a delta against `reference` (raw bytes)."""
    dictionary = zstandard.ZstdCompressionDict(reference, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    packed = zstandard.ZstdCompressor(level=_LEVEL, dict_data=dictionary).compress(data)
    return b"\2" + len(data).to_bytes(4, "big") + reference_hash + packed


def delta_reference(value: bytes) -> bytes | None:
    """Hash of the block that a stored value needs, None when it stands alone (or is damaged)."""
    if value[:1] != b"\2" or len(value) < HEADER_SIZE + HASH_SIZE:
        return None
    return bytes(value[HEADER_SIZE : HEADER_SIZE + HASH_SIZE])


def decode_block(value: bytes, digest: bytes, reference: bytes | None = None) -> bytes:
    """Raw bytes of a stored block, verified against `digest`.

    `reference`: raw bytes of the block named by `delta_reference`. Raises DamagedRecordError when
    the value does not decode, or decodes to bytes with another hash (contract 5).
    """
    name = f"block {digest.hex()[:12]}"
    if len(value) < HEADER_SIZE:
        raise DamagedRecordError(what=name, detail="the record is too short")
    codec, size = value[0], int.from_bytes(value[1:HEADER_SIZE], "big")
    try:
        if codec == RAW:
            data = bytes(value[HEADER_SIZE:])
        elif codec == ZSTD:
            data = _contexts.decompress(_frame(value[HEADER_SIZE:], size, name))
        elif codec == DELTA and reference is not None:
            dictionary = zstandard.ZstdCompressionDict(
                reference, dict_type=zstandard.DICT_TYPE_RAWCONTENT
            )
            data = zstandard.ZstdDecompressor(dict_data=dictionary).decompress(
                _frame(value[HEADER_SIZE + HASH_SIZE :], size, name)
            )
        else:
            raise DamagedRecordError(what=name, detail=f"codec {codec} cannot be read")
    except zstandard.ZstdError as error:
        raise DamagedRecordError(what=name, detail=str(error)) from None
    if len(data) != size or block_hash(data) != digest:
        raise DamagedRecordError(what=name, detail="its bytes do not match its hash")
    return data


def _frame(frame: bytes, size: int, name: str) -> bytes:
    """A zstd frame that says it has `size` bytes. A damaged one may claim to have petabytes, for
    which the decompressor would ask memory first."""
    if zstandard.frame_content_size(frame) != size:
        raise DamagedRecordError(what=name, detail="its frame has another length")
    return frame
