"""Sealing contents: the steps by which a base file's bytes come into the store, at epoch 0.

After that nothing outside can damage the content's history. The owner of the volume says where a
content lies (`source`), any thread reads it (`read`), the owner takes the blocks (`take`) and ends
it (`finish`). A block that is not stored then is a hole.

Threading: `read` may run in any thread; the others belong to the volume's thread.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import NamedTuple

from cowfs.format import records
from cowfs.types import BLOCK_SIZE
from cowfs.volume.base import Fingerprint, same_file
from cowfs.volume.importing import recorded_fingerprint
from cowfs.volume.posix import PosixError
from cowfs.volume.view import View

Blocks = list[tuple[int, bytes]]
"""(block number, bytes)."""
_AT_ONCE = 256


class ChangedError(Exception):
    """The base file of a content is not the one any more that was recorded."""


class Source(NamedTuple):
    """Where a content lies: path in the base, and what must lie there."""

    content: int
    path: bytes
    seen: Fingerprint

    @property
    def size(self) -> int:
        """Bytes of the base file."""
        return self.seen[2]


def source(view: View, content: int) -> Source | None:
    """None when there is nothing to seal. Raises PosixError(EIO) when the base lost it."""
    importer = view.volume.importer
    origin = importer.origin(content)
    if origin is None or origin.state == records.ORIGIN_DONE:
        return None
    entry = importer.base_entry(origin.parent, origin.name)
    if entry is None or entry.content != content or origin.state == records.ORIGIN_LOST:
        raise PosixError(errno.EIO)
    return Source(content, importer.base_path(origin), recorded_fingerprint(entry))


def read(fd: int, what: Source, first: int, count: int) -> tuple[Blocks, int | None]:
    """Up to `count` blocks of an open base file from block `first` on, without those that are
    holes; and the block to go on with, None at the end.

    Raises ChangedError when it is another file, or somebody wrote to it meanwhile; OSError.
    """
    blocks: Blocks = []
    following: int | None = first
    while following is not None and len(blocks) < count:
        following = _next_data(fd, following, what.size)
        if following is not None:
            start = following * BLOCK_SIZE
            blocks.append((following, os.pread(fd, min(BLOCK_SIZE, what.size - start), start)))
            following += 1
    st = os.fstat(fd)
    if not (stat.S_ISREG(st.st_mode) and same_file(st, what.seen)):
        raise ChangedError
    return blocks, following


def _next_data(fd: int, number: int, size: int) -> int | None:
    """The first block from `number` on that is not wholly a hole, None when there is none."""
    if number * BLOCK_SIZE >= size:
        return None
    try:
        at = os.lseek(fd, number * BLOCK_SIZE, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return None
    return at // BLOCK_SIZE if at < size else None


def take(view: View, what: Source, blocks: Blocks) -> None:
    """Blocks that were read go to the store with the next group."""
    group = view.volume.extra
    for number, data in blocks:
        group.blocks.append((what.content, number, data, 0, 0))
        group.size += len(data)


def finish(view: View, content: int) -> bool:
    """All blocks of a content were taken; False when it was given up meanwhile."""
    importer = view.volume.importer
    origin = importer.origin(content)
    if origin is None or origin.state == records.ORIGIN_LOST:
        return False
    importer.set_origin(content, records.ORIGIN_DONE, origin.parent, origin.name)
    return True


def seal(view: View, content: int) -> None:
    """All of it at once, read by the owner: for what an operation needs now.

    Raises PosixError(EIO) when the base lost it.
    """
    volume = view.volume
    what = source(view, content)
    if what is None:
        return
    if volume.base is None:
        raise PosixError(errno.EIO)
    following: int | None = 0
    try:
        fd = volume.base.open_file(what.path)
        try:
            while following is not None:
                blocks, following = read(fd, what, following, _AT_ONCE)
                take(view, what, blocks)
        finally:
            os.close(fd)
    except (OSError, ChangedError):
        volume.external.files.changed(view, content)
        raise PosixError(errno.EIO) from None
    finish(view, content)
