"""Sparse files: where data lies, holes that are punched, sizes that are set in advance.

What holes are is known block by block: a block is data when it is in memory, when an extent names
it, or where the base file has data; else it is a hole, reads as zeros and takes no room. Nothing is
ever reserved: a copy-on-write store needs new room for each write, whatever lies there already.

Threading: owned by the volume's thread.
"""

from __future__ import annotations

import errno
import heapq
import os
from collections.abc import Iterator

from cowfs.types import BLOCK_SIZE
from cowfs.volume import data
from cowfs.volume.inode import Inode
from cowfs.volume.posix import PosixError
from cowfs.volume.view import View

KEEP_SIZE = 1
PUNCH_HOLE = 2
ZERO_RANGE = 16
"""Modes of fallocate(2)."""


def allocate(view: View, inode: Inode, mode: int, offset: int, length: int) -> None:
    """fallocate(2): the file grows to hold the range unless KEEP_SIZE is given; with PUNCH_HOLE or
    ZERO_RANGE what is in it becomes zeros. Times are the caller's, as of `data.write`.

    Raises PosixError (EOPNOTSUPP for other modes, EFBIG, EIO).
    """
    clears = mode & (PUNCH_HOLE | ZERO_RANGE)
    if mode & ~(KEEP_SIZE | PUNCH_HOLE | ZERO_RANGE) or clears == PUNCH_HOLE | ZERO_RANGE:
        raise PosixError(errno.EOPNOTSUPP)
    if mode & PUNCH_HOLE and not mode & KEEP_SIZE:
        raise PosixError(errno.EOPNOTSUPP)
    end = offset + length
    if end > data.MAX_SIZE:
        raise PosixError(errno.EFBIG)
    if inode.damaged:
        raise PosixError(errno.EIO)
    view.begin()
    if clears:
        _clear(view, inode, offset, min(end, inode.size))
    if not mode & KEEP_SIZE and end > inode.size:
        inode.size = end
        view.mark(inode)


def _clear(view: View, inode: Inode, start: int, stop: int) -> None:
    """Make [start, stop), which ends in the file, zeros: whole blocks become holes."""
    if start >= stop:
        return
    first = -(-start // BLOCK_SIZE)
    # What a block has behind the end of the file does not count.
    last = -(-stop // BLOCK_SIZE) if stop == inode.size else stop // BLOCK_SIZE
    zeroed = {}
    if first > last:
        zeroed[last] = _zeroed(view, inode, last, start, stop)
    else:
        if start % BLOCK_SIZE:
            zeroed[first - 1] = _zeroed(view, inode, first - 1, start, stop)
        if last * BLOCK_SIZE < stop:
            zeroed[last] = _zeroed(view, inode, last, start, stop)
    if last * BLOCK_SIZE >= inode.base_size:
        inode.base_size = min(inode.base_size, first * BLOCK_SIZE)
    for number in list(data_blocks(view, inode, first, last)):
        data.put_block(view, inode, number, None)
    for number, block in zeroed.items():
        if block is not None:
            data.put_block(view, inode, number, block)
    view.mark(inode)


def _zeroed(view: View, inode: Inode, number: int, start: int, stop: int) -> bytes | None:
    """A block with zeros in the part of it that lies in [start, stop), which are offsets in the
    file; None when it is so already."""
    block = data.block(view, inode, number)
    begin = max(start - number * BLOCK_SIZE, 0)
    if block is None or begin >= len(block):
        return None
    end = min(stop - number * BLOCK_SIZE, len(block))
    return b"".join((block[:begin], bytes(end - begin), block[end:]))


def missing(view: View, inode: Inode, offset: int, length: int) -> int:
    """How many bytes of a range are in no block that is data: what would come into the store if it
    was filled."""
    first, last = offset // BLOCK_SIZE, -(-(offset + length) // BLOCK_SIZE)
    there = sum(1 for _ in data_blocks(view, inode, first, last))
    return max(length - there * BLOCK_SIZE, 0)


def hole(view: View, inode: Inode, offset: int) -> tuple[int, int | None]:
    """The first hole that is at `offset` or behind it: where it begins, and where there is data
    again, None if nowhere. At and behind the end of the file all is a hole.

    Raises PosixError (EIO, ENODATA).
    """
    if inode.damaged:
        raise PosixError(errno.EIO)
    if view.thinned and view.is_thinned(inode):
        raise PosixError(errno.ENODATA)
    start = offset
    for number in data_blocks(view, inode, offset // BLOCK_SIZE):
        if number * BLOCK_SIZE > start:
            return start, number * BLOCK_SIZE
        start = (number + 1) * BLOCK_SIZE
    return min(start, max(offset, inode.size)), None


def seek(inode: Inode, offset: int, whence: int, found: tuple[int, int | None]) -> int:
    """lseek(2) with SEEK_DATA or SEEK_HOLE, given what `hole` says of the offset.

    Raises PosixError(ENXIO).
    """
    start, following = found
    if offset < inode.size:
        if whence == os.SEEK_HOLE:
            return start
        if start > offset:
            return offset
        if following is not None:
            return following
    raise PosixError(errno.ENXIO)


def data_blocks(view: View, inode: Inode, first: int = 0, last: int | None = None) -> Iterator[int]:
    """The numbers of blocks that are data, from `first` up to the end of the file or, if that is
    before, `last`; ascending. The volume must not be used before it is exhausted or dropped."""
    end = -(-inode.size // BLOCK_SIZE)
    last = end if last is None else min(last, end)
    memory = {**inode.inflight, **inode.blocks}
    changed = sorted(
        number for number, block in memory.items() if block is not None and first <= number < last
    )
    stored = (n for n in _stored_blocks(view, inode, first, last) if n not in memory)
    return heapq.merge(changed, stored)


def _stored_blocks(view: View, inode: Inode, first: int, last: int) -> Iterator[int]:
    """Those that are data without what is in memory."""
    in_base = min(last, -(-inode.base_size // BLOCK_SIZE))
    at = first
    for number, digest in data.seen_extents(view, inode).extents(inode.content, first):
        if number >= last:
            break
        yield from _base_blocks(view, inode, at, min(number, in_base))
        if digest:
            yield number
        at = number + 1
    yield from _base_blocks(view, inode, at, in_base)


def _base_blocks(view: View, inode: Inode, first: int, last: int) -> Iterator[int]:
    """The blocks in [first, last) that come from the base file and are no holes in it. What cannot
    be looked at is data: who reads it hears why."""
    if first >= last:
        return
    try:
        fd = data.base_file(view, inode.content)
    except PosixError:
        yield from range(first, last)
        return
    if fd is None:
        return
    while first < last:
        try:
            start = os.lseek(fd, first * BLOCK_SIZE, os.SEEK_DATA)
            stop = os.lseek(fd, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:
                yield from range(first, last)
            return
        yield from range(max(first, start // BLOCK_SIZE), min(last, -(-stop // BLOCK_SIZE)))
        first = -(-stop // BLOCK_SIZE)
