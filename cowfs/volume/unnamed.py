"""Files that are made without a name (open(2), O_TMPFILE), and the first name of one.

Until then such a file is an orphan: it is in no checkpoint, and gone with its last handle or the
process that serves it. With its name it becomes a part of the open epoch, with all that was written
to it. A restore takes that away: what is written to a file that the restored state does not have
never enters its tree (contract 3).

Threading: owned by the volume's thread.
"""

from __future__ import annotations

import stat

from cowfs.format import keys, records
from cowfs.volume.inode import Inode
from cowfs.volume.posix import now
from cowfs.volume.view import View


def create(view: View, parent: int, mode: int, uid: int, gid: int) -> Inode:
    """A file without a name; `parent` is the directory that it could have been in, which passes its
    group on if it is setgid. Raises PosixError (ENOTDIR, ENOSPC)."""
    directory = view.directory(parent)
    view.volume.require_room()
    view.begin()
    if directory.mode & stat.S_ISGID:
        gid = directory.gid
    moment = now()
    record = records.InodeRecord(0, mode, 0, uid, gid, 0, 0, moment, moment, moment, 0, 0, b"")
    inode = view.add_inode(record)
    view.created.discard(inode.ino)
    inode.orphan_epoch = view.head
    view.orphans[inode.ino] = inode
    view.unnamed.add(inode.ino)
    return inode


def enter(view: View, inode: Inode) -> None:
    """One of `View.unnamed` is about to get a name."""
    if inode.orphan_epoch != view.head:
        view.began[inode.ino] = inode.orphan_epoch
    view.unnamed.discard(inode.ino)
    view.orphans.pop(inode.ino, None)
    if inode.ino in view.volume.orphans:
        view.volume.orphans.discard(inode.ino)
        view.volume.extra.delete("orphan", keys.pack_id(inode.ino))
    inode.orphan_epoch = 0
    view.created.add(inode.ino)
    for name, value in (inode.xattrs or {}).items():
        view.xattrs[(inode.ino, name)] = value
    view.mark(inode)
