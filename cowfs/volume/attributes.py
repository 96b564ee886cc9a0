"""Attributes: chmod, chown, times, extended attributes.

Permission checks are the kernel's (`default_permissions`). Clearing of setuid and setgid bits by
writes and chown is done by the kernel through `setattr`.

Threading: owned by the volume's thread.
"""

from __future__ import annotations

import errno

from cowfs.store.snapshot import Snapshot
from cowfs.types import NAME_MAX
from cowfs.volume import data
from cowfs.volume.inode import Inode
from cowfs.volume.posix import PosixError, now, now_after, storable
from cowfs.volume.view import View

XATTR_SIZE_MAX = 65536
"""Bytes in a value (XATTR_SIZE_MAX of xattr(7))."""


def set_attributes(
    view: View,
    inode: Inode,
    *,
    mode: int | None = None,
    uid: int | None = None,
    gid: int | None = None,
    size: int | None = None,
    atime: int | None = None,
    mtime: int | None = None,
    ctime: int | None = None,
) -> None:
    """Change what is not None; times are ns since 1970.

    `ctime` is given only by the kernel's writeback cache; otherwise it becomes now. A call that
    changes nothing leaves no trace in the epoch.
    """
    view.begin()
    if size is not None and size != inode.size:
        data.truncate(view, inode, size)
        if mtime is None:
            mtime = now_after(inode.mtime)
    changed = size is not None
    if mode is not None and mode & 0o7777 != inode.mode & 0o7777:
        inode.mode = inode.mode & ~0o7777 | mode & 0o7777
        changed = True
    if uid is not None and uid != inode.uid:
        inode.uid = uid
        changed = True
    if gid is not None and gid != inode.gid:
        inode.gid = gid
        changed = True
    if atime is not None and (atime := storable(atime)) != inode.atime:
        inode.atime = atime
        changed = True
    if mtime is not None and (mtime := storable(mtime)) != inode.mtime:
        inode.mtime = mtime
        changed = True
    if ctime is None:
        if not changed and (mode is uid is gid is atime is mtime is None):
            return
        ctime = now() if size is None else now_after(inode.ctime)
    ctime = storable(ctime)
    if ctime != inode.ctime:
        inode.ctime = ctime
        changed = True
    if changed:
        view.mark(inode)


def xattrs(view: View, inode: Inode) -> dict[bytes, bytes]:
    """All extended attributes; not to be modified."""
    if inode.xattrs is None:
        seen = view.snapshot
        if inode.lineage is not None:  # a restore took its name away
            seen = Snapshot(view.volume.reader, inode.lineage)
        inode.xattrs = seen.xattrs(inode.ino)
    return inode.xattrs


def set_xattr(view: View, inode: Inode, name: bytes, value: bytes) -> None:
    """Set one attribute. Raises PosixError (ERANGE, E2BIG)."""
    if not name or len(name) > NAME_MAX:
        raise PosixError(errno.ERANGE)
    if len(value) > XATTR_SIZE_MAX:
        raise PosixError(errno.E2BIG)
    view.begin()
    current = xattrs(view, inode)
    current[name] = value
    if not inode.orphan_epoch:
        view.xattrs[(inode.ino, name)] = value
    inode.ctime = now()
    view.mark(inode)


def remove_xattr(view: View, inode: Inode, name: bytes) -> None:
    """Remove one attribute. Raises PosixError(ENODATA)."""
    current = xattrs(view, inode)
    if name not in current:
        raise PosixError(errno.ENODATA)
    view.begin()
    del current[name]
    if not inode.orphan_epoch:
        view.xattrs[(inode.ino, name)] = None
    inode.ctime = now()
    view.mark(inode)
