"""Attributes as FUSE replies carry them.

Threading: owned by the FUSE thread.
"""

from __future__ import annotations

import os
import stat

import pyfuse3

from cowfs.volume.inode import Inode

FOREVER = 1e8
"""Seconds that the kernel may keep names and attributes: until they are invalidated."""


def attributes(inode: Inode) -> pyfuse3.EntryAttributes:
    """Of an inode; kept with it until it changes."""
    entry = inode.attr
    if entry is not None:
        return entry  # type: ignore[no-any-return]
    entry = inode.attr = pyfuse3.EntryAttributes()
    entry.st_ino = inode.ino
    entry.generation = inode.generation
    entry.st_mode = inode.mode
    entry.st_nlink = inode.nlink
    entry.st_uid = inode.uid
    entry.st_gid = inode.gid
    entry.st_rdev = inode.rdev
    size = 4096 if inode.entries is not None or inode.is_dir else inode.size
    entry.st_size = size
    entry.st_blocks = (size + 511) >> 9
    entry.st_atime_ns = inode.atime
    entry.st_mtime_ns = inode.mtime
    entry.st_ctime_ns = inode.ctime
    entry.entry_timeout = entry.attr_timeout = FOREVER
    return entry


def with_mode(inode: Inode, bits: int) -> pyfuse3.EntryAttributes:
    """Of an inode, for one reply, with more mode bits than it has."""
    inode.attr = None
    entry = attributes(inode)
    inode.attr = None
    entry.st_mode = inode.mode | bits
    return entry


def absent(timeout: float) -> pyfuse3.EntryAttributes:
    """There is no such name, which the kernel may believe for so many seconds."""
    entry = pyfuse3.EntryAttributes()
    entry.st_ino = 0
    entry.entry_timeout = timeout
    return entry


def directory(node: int) -> pyfuse3.EntryAttributes:
    """A directory for the daemon's user that the kernel may not keep."""
    entry = pyfuse3.EntryAttributes()
    entry.st_ino = node
    entry.st_mode = stat.S_IFDIR | 0o700
    entry.st_uid = os.getuid()
    entry.entry_timeout = entry.attr_timeout = 0
    return entry


def unreadable(ino: int, kind: int) -> pyfuse3.EntryAttributes:
    """A name whose inode is damaged: it is listed, but who looks at it asks, and gets an error."""
    entry = pyfuse3.EntryAttributes()
    entry.st_ino = ino
    entry.st_mode = kind << 12
    entry.entry_timeout = entry.attr_timeout = 0
    return entry


def dot(ino: int) -> pyfuse3.EntryAttributes:
    """Attributes of `.` and `..`, of which the kernel takes no reference."""
    entry = pyfuse3.EntryAttributes()
    entry.st_ino = ino
    entry.st_mode = stat.S_IFDIR | 0o755
    return entry
