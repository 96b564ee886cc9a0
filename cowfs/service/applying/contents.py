"""The contents of files that an apply writes.

Threading: for the thread of the apply.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterator

from cowfs.format import keys, records
from cowfs.service.applying.reach import Reach
from cowfs.store.snapshot import Snapshot
from cowfs.types import BLOCK_SIZE


class LostContentError(OSError):
    """What a file had is neither in the base nor in the store."""


def pieces(after: Snapshot, record: records.InodeRecord) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) of everything that is not a hole. Raises LostContentError."""
    origin = after.reader.get("origin", keys.pack_id(record.content))
    sealed = origin is not None and records.unpack_origin(origin).state == records.ORIGIN_DONE
    # Of what is sealed, too, only extents are there.
    of_base = 0 if sealed else min(record.base_size, record.size)
    below = (of_base + BLOCK_SIZE - 1) // BLOCK_SIZE
    above = (number for number, _ in after.extents(record.content, below))
    for number in itertools.chain(range(below), above):
        offset = number * BLOCK_SIZE
        if offset >= record.size:
            return
        digest, counts = after.block_source(record.content, number, record.base_size)
        if digest is None and not sealed:
            raise LostContentError(errno.EIO, "its old content is not in the store")
        if digest:
            yield offset, after.block(digest)[: min(counts, record.size - offset)]


def same_bytes(
    reach: Reach, path: bytes, st: os.stat_result, after: Snapshot, record: records.InodeRecord
) -> bool:
    """Whether a file of the base has a content already; its holes are not read."""
    if st.st_size != record.size:
        return False
    with reach.readable(path) as fd:
        at = 0
        for offset, wanted in pieces(after, record):
            if not _is_zero(fd, at, offset) or os.pread(fd, len(wanted), offset) != wanted:
                return False
            at = offset + len(wanted)
        return _is_zero(fd, at, record.size)


def _is_zero(fd: int, start: int, end: int) -> bool:
    """Whether a file has only zeros in [start, end); its holes are not read."""
    while start < end:
        try:
            start = os.lseek(fd, start, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return True
        piece = os.pread(fd, max(0, min(BLOCK_SIZE, end - start)), start)
        if piece.count(0) != len(piece):
            return False
        start += max(len(piece), 1)
    return True
