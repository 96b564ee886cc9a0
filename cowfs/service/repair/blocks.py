"""Blocks that cannot be read: found again by their hash, or marked as lost.

A block is named by the hash of its bytes, so bytes with that hash are the block, wherever they come
from: the payload of the damaged record under a wrong header, another record that was stored under
a wrong key, what an earlier repair set aside, or any file of the base directory.

Threading: owned by the thread that repairs.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

import zstandard

from cowfs.errors import DamagedRecordError
from cowfs.format import codec, keys, records
from cowfs.format.segment import is_segment, part_of, sound_beginning
from cowfs.service.repair.bench import MARKED, REBUILT, RESTORED, Bench
from cowfs.service.verify import LOST, Bad
from cowfs.store.snapshot import read_block
from cowfs.types import BLOCK_SIZE
from cowfs.volume.base import Base

_HEADERS = (codec.HEADER_SIZE, codec.HEADER_SIZE + codec.HASH_SIZE)


class Unreadable:
    """The blocks of a store that cannot be read, by hash."""

    def __init__(self, bench: Bench, bad: dict[bytes, Bad]) -> None:
        self._bench = bench
        self._bad = bad
        self._wanted = {*bad, *(digest for digest in _lost(bench) if not _readable(bench, digest))}

    def restore(self) -> bool:
        """Look for their bytes in the store and in the base; whether any were found."""
        bench = self._bench
        self._tidy_marks()
        for digest in sorted(self._wanted, key=self._is_part):
            # As stored: what is found already may stand in the place of what is still looked for.
            stored = bench.reader.get("block", digest), bench.reader.get("meta", _mark(digest))
            if self._is_whole_again(digest):
                continue
            for value in stored:
                for data in _readings(bench, value, self._wanted) if value else ():
                    self._offer(data, "in its own record or that of another block")
        for digest in self._bad.keys() & self._wanted:
            self._offer_parts(digest)
        if self._wanted and bench.scan.base is not None:
            for path, data in _base_blocks(bench.scan.base, self._lengths()):
                if not self._wanted:
                    break
                self._offer(data, f"in {os.fsdecode(path)} of the base directory")
        return bench.apply()

    def mark(self) -> bool:
        """Set the damaged records of all others aside: whoever needs them gets EIO as before, but
        writing the same bytes again brings them back."""
        bench = self._bench
        for digest, bad in self._bad.items():
            if bad.check == "block-lost":
                continue
            value = bench.get("block", digest)
            if value is not None:
                bench.delete("block", digest)
            if value is not None and is_segment(value):
                detail = "dropped: what can be read of this segment stands alone now"
                bench.did(REBUILT, "block", digest.hex(), detail)
                continue
            if not bad.extents:
                bench.did(REBUILT, "block", digest.hex(), "dropped: no extent needs it")
                continue
            bench.put("meta", _mark(digest), value or b"")
            paths: dict[bytes, None] = {}
            for content, _, _ in bad.extents:
                owner = bench.scan.owners.get(content, content)
                paths.update(dict.fromkeys(bench.scan.paths(owner, bench.scan.history.states)))
            detail = "its bytes are nowhere any more; reading it stays an error"
            bench.did(MARKED, "block", digest.hex(), detail, paths)
        return bench.apply()

    def _offer(self, data: bytes, where: str) -> None:
        digest = codec.block_hash(data)
        if digest not in self._wanted:
            return
        self._wanted.discard(digest)
        bench = self._bench
        bench.put("block", digest, codec.encode_block(data))
        if bench.get("meta", _mark(digest)) is not None:
            bench.delete("meta", _mark(digest))
        bench.did(RESTORED, "block", digest.hex(), f"its bytes are {where}")

    def _is_part(self, digest: bytes) -> bool:
        return part_of(self._bench.reader.get("block", digest) or b"") is not None

    def _is_whole_again(self, digest: bytes) -> bool:
        """Whether a block is a part of a segment that was found."""
        part = part_of(self._bench.reader.get("block", digest) or b"")
        if part is None or part.segment in self._wanted:
            return False
        data = sound_beginning(self._bench.get("block", part.segment) or b"")
        if codec.block_hash(data[part.start : part.end]) != digest:
            return False
        self._wanted.discard(digest)
        return True

    def _offer_parts(self, segment: bytes) -> None:
        """What can still be read of a damaged segment: its parts stand alone from now on, since it
        will not stay."""
        stored = self._bench.reader.get("block", segment) or b""
        if not is_segment(stored):
            return
        data = sound_beginning(stored)
        for digest, value in self._bench.reader.scan("block"):
            part = part_of(value)
            if part is not None and part.segment == segment and part.end <= len(data):
                self._wanted.add(digest)
                self._offer(data[part.start : part.end], "in a damaged segment")

    def _tidy_marks(self) -> None:
        """What was lost and came back is lost no more."""
        for digest in _lost(self._bench):
            if digest not in self._wanted:
                self._bench.delete("meta", _mark(digest))
                self._bench.did(REBUILT, "block", digest.hex(), "it is there again")

    def _lengths(self) -> set[int]:
        """How long the missing blocks may be, if shorter than what a base file has there."""
        bench, found = self._bench, set[int]()
        for digest, bad in self._bad.items():
            value = bench.get("block", digest) or b""
            found.add(int.from_bytes(value[1 : codec.HEADER_SIZE], "big"))
            for content, _, _ in bad.extents:
                owner = bench.scan.owners.get(content, content)
                for _, inode in bench.scan.versions("inode", keys.pack_id(owner)):
                    if len(inode) >= records.INODE_FIXED:
                        found.add(records.unpack_inode(inode).size % BLOCK_SIZE)
        return {length for length in found if 0 < length < BLOCK_SIZE}


def _mark(digest: bytes) -> bytes:
    """Key in `meta` of the mark of a lost block (docs/format.md, "Meta")."""
    return LOST + b"block\0" + digest


def _lost(bench: Bench) -> list[bytes]:
    """The blocks that are marked."""
    size = len(_mark(b""))
    found = (key[size:] for key, _ in bench.reader.scan("meta", _mark(b"")))
    return [digest for digest in found if len(digest) == codec.HASH_SIZE]


def _readable(bench: Bench, digest: bytes) -> bool:
    try:
        read_block(bench.reader, digest)
    except DamagedRecordError:
        return False
    return True


def _readings(bench: Bench, value: bytes, wanted: set[bytes]) -> Iterator[bytes]:
    """Everything that a block's record may mean, whatever its header says; wanted: hashes of the
    blocks that are looked for."""
    size = int.from_bytes(value[1 : codec.HEADER_SIZE], "big")
    yield value[codec.HEADER_SIZE :]
    if size < len(value):
        yield value[codec.HEADER_SIZE : codec.HEADER_SIZE + size]
    references: list[bytes | None] = [None]
    for near in _near(value[_HEADERS[0] : _HEADERS[1]]):
        stored = bench.get("block", near) if len(near) == codec.HASH_SIZE else None
        if stored and (codec.delta_reference(stored) is None or part_of(stored) is not None):
            references.append(near)
    for reference in references:
        start = _HEADERS[reference is not None]
        try:
            yield _decompressed(bench, value[start:], reference)
        except (DamagedRecordError, zstandard.ZstdError):
            pass
        if reference is not None:
            yield from _patched(bench, value, reference, wanted)
            yield from _parts(bench, value, reference)


def _patched(bench: Bench, value: bytes, reference: bytes, wanted: set[bytes]) -> Iterator[bytes]:
    """What a record is as a patch of another block."""
    start, end = _HEADERS
    patch = bytes((codec.PATCH,)) + value[1:start] + reference + value[end:]
    for digest in list(wanted):
        try:
            yield codec.decode_block(patch, digest, read_block(bench.reader, reference))
        except DamagedRecordError:
            continue


def _parts(bench: Bench, value: bytes, segment: bytes) -> Iterator[bytes]:
    """What a record is as a part of a segment, also with one bit of its place turned back."""
    stored = bench.get("block", segment) or b""
    if not is_segment(stored):
        return
    start, end = _HEADERS
    data = sound_beginning(stored)
    for near in _near(value[1:start] + value[end : end + 4]):
        at, size = int.from_bytes(near[4:], "big"), int.from_bytes(near[:4], "big")
        if size <= BLOCK_SIZE:
            yield data[at : at + size]


def _near(digest: bytes) -> Iterator[bytes]:
    """A hash, and those that differ from it by one bit."""
    yield digest
    for bit in range(8 * len(digest)):
        at = bit >> 3
        yield digest[:at] + bytes((digest[at] ^ 1 << (bit & 7),)) + digest[at + 1 :]


def _decompressed(bench: Bench, frame: bytes, reference: bytes | None) -> bytes:
    longest = BLOCK_SIZE if reference is not None else codec.LONGEST_SEGMENT
    if not 0 < zstandard.frame_content_size(frame) <= longest:
        raise zstandard.ZstdError("its frame has no possible length")
    if reference is None:
        return zstandard.ZstdDecompressor().decompress(frame)
    dictionary = zstandard.ZstdCompressionDict(
        read_block(bench.reader, reference), dict_type=zstandard.DICT_TYPE_RAWCONTENT
    )
    return zstandard.ZstdDecompressor(dict_data=dictionary).decompress(frame)


def _base_blocks(base: Base, lengths: set[int]) -> Iterator[tuple[bytes, bytes]]:
    """(path, bytes) of every block of every file in the base directory, and their beginnings of
    the given lengths. What cannot be read is left out."""
    waiting = [b""]
    while waiting:
        path = waiting.pop()
        try:
            listing = base.scan(path)
        except OSError:
            continue
        for entry in listing:
            below = path + b"/" + entry.name if path else entry.name
            if stat.S_ISDIR(entry.st.st_mode):
                waiting.append(below)
            elif stat.S_ISREG(entry.st.st_mode) and entry.st.st_size:
                for data in _file_blocks(base, below):
                    yield below, data
                    for length in lengths:
                        if length < len(data):
                            yield below, data[:length]


def _file_blocks(base: Base, path: bytes) -> Iterator[bytes]:
    try:
        fd = base.open_file(path)
    except OSError:
        return
    try:
        offset = 0
        while data := os.pread(fd, BLOCK_SIZE, offset):
            yield data
            offset += BLOCK_SIZE
    except OSError:
        return
    finally:
        os.close(fd)
