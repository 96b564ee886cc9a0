"""File content: read, write, truncate, open.

A block is looked for in this order: changed in memory, in flight to the store, an extent of the
store, the base file (below `base_size`), else zeros. Blocks in memory may be shorter than
`BLOCK_SIZE`; what is missing up to the file's size is zeros.

Threading: owned by the volume's thread.
"""

from __future__ import annotations

import errno
import os

from cowfs.format import records
from cowfs.store.snapshot import Snapshot
from cowfs.types import BLOCK_SIZE
from cowfs.volume.importing import recorded_fingerprint
from cowfs.volume.inode import NO_BLOCKS, Buffer, Inode
from cowfs.volume.posix import PosixError
from cowfs.volume.view import View

MAX_SIZE = (1 << 63) - 1
"""Largest file size, bytes (off_t)."""


def read(view: View, inode: Inode, offset: int, size: int) -> bytes:
    """Bytes [offset, offset + size), cut at the end of the file. Raises PosixError(EIO)."""
    pieces = read_pieces(view, inode, offset, size)
    return bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)


def read_pieces(view: View, inode: Inode, offset: int, size: int) -> list[bytes | memoryview]:
    """The same in pieces that belong one behind the other. Some may be parts of LMDB's map, so
    they are valid until the volume is used again."""
    if inode.damaged:
        raise PosixError(errno.EIO)
    if view.thinned and view.is_thinned(inode):
        raise PosixError(errno.ENODATA)
    end = min(offset + size, inode.size)
    pieces = []
    while offset < end:
        number, start = divmod(offset, BLOCK_SIZE)
        stop = min(BLOCK_SIZE, end - number * BLOCK_SIZE)
        pieces.append(_piece(view, inode, number, start, stop))
        offset = number * BLOCK_SIZE + stop
    return pieces


def _piece(view: View, inode: Inode, number: int, start: int, stop: int) -> bytes | memoryview:
    """Bytes [start, stop) of one block, filled with zeros."""
    # Who reads all of it has it in the kernel's page cache then; else the rest will be asked for.
    whole = start == 0 and (stop == BLOCK_SIZE or number * BLOCK_SIZE + stop == inode.size)
    found = block(view, inode, number, once=whole)
    if found is None:
        return bytes(stop - start)
    if start == 0 and len(found) == stop and not isinstance(found, bytearray):
        return found
    piece = bytes(found[start:stop])
    missing = stop - start - len(piece)
    return piece + bytes(missing) if missing else piece


def block(
    view: View, inode: Inode, number: int, *, once: bool = False
) -> Buffer | memoryview | None:
    """A block as it is now, None for zeros. Not to be modified. once: as `read_block_once`."""
    if number in inode.blocks:
        return inode.blocks[number]
    if number in inode.inflight:
        return inode.inflight[number]
    digest, limit = seen_extents(view, inode).block_source(inode.content, number, inode.base_size)
    if digest is None:
        return _base_block(view, inode.content, inode.base_size, number)
    if not digest:
        return None
    if digest == records.EXTENT_THINNED:
        raise PosixError(errno.ENODATA)
    volume = view.volume
    read_block = volume.read_block_once if once else volume.read_block
    data = read_block(digest, inode.ino)
    return data if limit >= len(data) else data[:limit]


def seen_extents(view: View, inode: Inode) -> Snapshot:
    """Where the inode's extents are seen; a restore leaves orphans with an older lineage."""
    if inode.lineage is None:
        return view.snapshot
    return Snapshot(view.volume.reader, inode.lineage)


def _base_block(view: View, content: int, base_size: int, number: int) -> bytes | None:
    """A block of the base file. Raises PosixError(EIO) when the base lost it (contract 7)."""
    fd = base_file(view, content)
    if fd is None:
        return None
    start = number * BLOCK_SIZE
    try:
        return os.pread(fd, min(BLOCK_SIZE, base_size - start), start)
    except OSError as error:
        raise _unreadable(view, content, error) from None


def base_file(view: View, content: int) -> int | None:
    """A descriptor of the base file that blocks of a content without an extent come from, not the
    caller's to close; None when there is none or it is sealed: then they are holes.

    Raises PosixError(EIO) when the base lost it (contract 7).
    """
    volume, importer = view.volume, view.volume.importer
    origin = importer.origin(content)
    if origin is None:
        return None
    if origin.state == records.ORIGIN_DONE and not importer.is_fresh(content):
        return None
    # A content that is being sealed says ORIGIN_DONE before its blocks can be seen in the store.
    path = importer.base_path(origin)
    entry = importer.base_entry(origin.parent, origin.name)
    if (
        origin.state == records.ORIGIN_LOST
        or volume.base is None
        or entry is None
        or entry.content != content
    ):
        volume.problem("lost", path, "its old content was not saved before it changed outside")
        raise PosixError(errno.EIO)
    try:
        fd = volume.base.cached_file(content, path, recorded_fingerprint(entry))
    except OSError as error:
        raise _unreadable(view, content, error) from None
    if fd is None:
        volume.external.files.lose(content)
        raise PosixError(errno.EIO)
    return fd


def _unreadable(view: View, content: int, error: OSError) -> PosixError:
    importer = view.volume.importer
    origin = importer.origin(content)
    path = importer.base_path(origin) if origin is not None else b""
    view.volume.problem("unreadable", path, f"cannot read the base: {error.strerror}")
    return PosixError(error.errno or errno.EIO)


def open_file(view: View, inode: Inode) -> bool:
    """Called when a file is opened: see that its base file is still the one that was recorded.

    Returns whether a change from outside was adopted. Raises PosixError.
    """
    if not inode.base_size or inode.orphan_epoch:
        return False
    return view.volume.external.files.look_at_file(view, inode)


def write(view: View, inode: Inode, offset: int, data: bytes | memoryview) -> int:
    """Write all of `data`; returns its length. The file grows, its times are not touched. What is
    kept of a memoryview is copied.

    With the writeback cache the kernel owns size and times and sends them in `setattr`.
    Raises PosixError (EFBIG, EIO).
    """
    size = len(data)
    end = offset + size
    if end > MAX_SIZE:
        raise PosixError(errno.EFBIG)
    if inode.damaged:
        raise PosixError(errno.EIO)
    view.begin()
    number, start = divmod(offset, BLOCK_SIZE)
    if start + size <= BLOCK_SIZE:
        _write_block(view, inode, number, start, data)
    else:
        done = 0
        while done < size:
            number, start = divmod(offset + done, BLOCK_SIZE)
            step = min(BLOCK_SIZE - start, size - done)
            _write_block(view, inode, number, start, data[done : done + step])
            done += step
    if end > inode.size:
        inode.size = end
    view.mark(inode)
    return size


def _write_block(
    view: View, inode: Inode, number: int, start: int, data: bytes | memoryview
) -> None:
    blocks = inode.own_blocks()
    stop = start + len(data)
    old = blocks.get(number)
    if type(old) is bytearray:
        had = len(old)
        if start > had:
            old.extend(bytes(start - had))
        old[start:stop] = data
        view.dirty_bytes += len(old) - had
        return
    if start == 0 and (stop == BLOCK_SIZE or number * BLOCK_SIZE + stop >= inode.size):
        # The whole block: nothing of the old one remains.
        view.dirty_bytes += stop - (len(old) if old is not None else 0)
        blocks[number] = bytes(data)
        return
    before = block(view, inode, number, once=True)
    limit = min(BLOCK_SIZE, inode.size - number * BLOCK_SIZE)
    buffer = bytearray(before[:limit]) if before is not None and limit > 0 else bytearray()
    if start > len(buffer):
        buffer.extend(bytes(start - len(buffer)))
    buffer[start:stop] = data
    blocks[number] = buffer
    view.dirty_bytes += len(buffer) - (len(old) if old is not None else 0)


def truncate(view: View, inode: Inode, size: int) -> None:
    """Set the size. What is cut off never comes back (it reads as zeros after growing again).

    Truncating to zero takes a new content id, in constant time. Times are the caller's.
    """
    if size > MAX_SIZE or size < 0:
        raise PosixError(errno.EFBIG if size > 0 else errno.EINVAL)
    if size == inode.size:
        return
    view.begin()
    if size == 0:
        _empty(view, inode)
    elif size < inode.size:
        _shorten(view, inode, size)
    inode.size = size
    view.mark(inode)


def _empty(view: View, inode: Inode) -> None:
    """A new content; the old one's blocks of this epoch are garbage at once."""
    view.discard_blocks(inode)
    inode.inflight = NO_BLOCKS
    view.dropped.append((inode.content, inode.orphan_epoch or view.head))
    inode.reference = inode.content
    inode.content = view.volume.take_id()
    inode.base_size = 0


def _shorten(view: View, inode: Inode, size: int) -> None:
    keep, rest = divmod(size, BLOCK_SIZE)
    first = keep + 1 if rest else keep
    if rest:
        found = block(view, inode, keep)
        if found is not None and len(found) > rest:
            put_block(view, inode, keep, bytes(found[:rest]))
    last = (inode.size + BLOCK_SIZE - 1) // BLOCK_SIZE
    gone = {n for n in inode.blocks if n >= first} | {n for n in inode.inflight if n >= first}
    gone.update(n for n, _ in seen_extents(view, inode).extents(inode.content, first) if n < last)
    for number in gone:
        put_block(view, inode, number, None)
    inode.base_size = min(inode.base_size, size)


def put_block(view: View, inode: Inode, number: int, data: bytes | None) -> None:
    """Take the place of a block; None is a hole. The caller marks the inode."""
    old = inode.blocks.get(number)
    view.dirty_bytes += (len(data) if data is not None else 0) - (len(old) if old else 0)
    inode.own_blocks()[number] = data
