"""Entries and attributes as replies carry them (`wire.ENTRY`).

Threading: owned by the FUSE thread.
"""

from __future__ import annotations

import os
import stat

from cowfs.mount import wire
from cowfs.types import NAME_MAX
from cowfs.volume.inode import Inode
from cowfs.volume.volume import Volume

FOREVER = 100_000_000
"""Seconds that the kernel may keep names and attributes: until they are invalidated."""
_BLOCK_SIZE = 4096
_SECOND = 1_000_000_000
_pack = wire.ENTRY.pack


def entry(inode: Inode) -> bytes:
    """Of an inode of the main view; kept with it until it changes."""
    packed: bytes | None = inode.attr
    if packed is None:
        packed = inode.attr = of_inode(inode, inode.ino, inode.mode)
    return packed


def of_inode(
    inode: Inode,
    node: int,
    mode: int,
    *,
    generation: int | None = None,
    entry_valid: int = FOREVER,
    attr_valid: int = FOREVER,
) -> bytes:
    """An entry with the values of an inode. Validity in seconds."""
    size = _BLOCK_SIZE if inode.entries is not None or inode.is_dir else inode.size
    atime, atime_ns = divmod(inode.atime, _SECOND)
    mtime, mtime_ns = divmod(inode.mtime, _SECOND)
    ctime, ctime_ns = divmod(inode.ctime, _SECOND)
    return _pack(
        node,
        inode.generation if generation is None else generation,
        entry_valid,
        attr_valid,
        0,
        0,
        node,
        size,
        (size + 511) >> 9,
        atime,
        mtime,
        ctime,
        atime_ns,
        mtime_ns,
        ctime_ns,
        mode,
        inode.nlink,
        inode.uid,
        inode.gid,
        inode.rdev,
        _BLOCK_SIZE,
        0,
    )


def made_up(
    node: int,
    mode: int,
    *,
    uid: int = 0,
    size: int = 0,
    moment: int = 0,
    entry_valid: int = 0,
    attr_valid: int = 0,
) -> bytes:
    """An entry of something that no inode is behind; `moment` is all its times, in ns."""
    seconds, ns = divmod(moment, _SECOND)
    times = (seconds, seconds, seconds, ns, ns, ns)
    return _pack(
        *(node, 0, entry_valid, attr_valid, 0, 0, node, size, 0),
        *times,
        *(mode, 1, uid, 0, 0, _BLOCK_SIZE, 0),
    )


def absent(valid: int) -> bytes:
    """There is no such name, which the kernel may believe for so many seconds."""
    return made_up(0, stat.S_IFREG, entry_valid=valid)


def directory(node: int) -> bytes:
    """A directory for the daemon's user that the kernel may not keep."""
    return made_up(node, stat.S_IFDIR | 0o700, uid=os.getuid())


def unreadable(node: int, kind: int) -> bytes:
    """A name whose inode is damaged: it is listed, but who looks at it asks, and gets an error."""
    return made_up(node, kind << 12)


def space(volume: Volume) -> bytes:
    """fuse_statfs_out: the room that the store has, of its file system or of its quota."""
    volume.writer.measure()
    room, real = volume.writer.room, volume.store.file_system()
    left = room.left // real.f_frsize
    return wire.STATFS_OUT.pack(
        room.quota // real.f_frsize if room.quota else real.f_blocks,
        left,
        left,
        real.f_files,
        real.f_ffree,
        real.f_bsize,
        NAME_MAX,
        real.f_frsize,
        0,
    )


class Listing:
    """The reply to a READDIRPLUS of so many bytes."""

    __slots__ = ("_records", "_room")

    def __init__(self, size: int) -> None:
        self._records: list[bytes] = []
        self._room = size

    def add(self, name: bytes, entry: bytes, ino: int, kind: int, after: int) -> bool:
        """Add a name; `kind` is the type in its mode, shifted, and `after` where the next one is.
        Returns False when there is no room for it."""
        record = b"".join(
            (entry, wire.DIRENT.pack(ino, after, len(name), kind), name, _PADDING[len(name) & 7])
        )
        self._room -= len(record)
        if self._room < 0:
            return False
        self._records.append(record)
        return True

    def add_dot(self, name: bytes, ino: int, after: int) -> bool:
        """Add `.` or `..`, of which the kernel takes no reference."""
        return self.add(name, _NO_ENTRY, ino, stat.S_IFDIR >> 12, after)

    def reply(self) -> bytes:
        return b"".join(self._records)


_PADDING = [bytes(-n % 8) for n in range(8)]
_NO_ENTRY = bytes(wire.ENTRY.size)
