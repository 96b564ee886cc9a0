"""FUSE requests to volume operations.

Here are the handlers of the main view, whose node ids are inode numbers: of names and attributes,
and from file_requests.py and sparse_requests.py those of open files. What concerns another view
(mount/nodes.py) is handed on to browsing.py.

The kernel runs with the writeback cache: it keeps size and times of regular files and sends them
by `setattr`, so `write` does not touch times, and reads come on handles opened for writing only.
Entries, attributes and negative entries are valid until they are invalidated (mount/kernel.py).

Threading: every handler runs in the FUSE thread. What it does is done when it returns, in one
piece; a few return a coroutine instead, where something else has to happen first.
"""

from __future__ import annotations

import errno
import stat

from cowfs.format.audit import XATTR
from cowfs.mount import replies, wire
from cowfs.mount.browsing import XATTR_CLASSES
from cowfs.mount.nodes import BROWSE_NAME, GHOSTS_INO, INO_MASK
from cowfs.mount.requests import Answer, Attributes, Caller
from cowfs.mount.sparse_requests import SparseRequests
from cowfs.mount.upkeep import GHOSTS_NAME, what_is_set
from cowfs.types import ROOT_INO
from cowfs.volume import attributes, namespace, unnamed
from cowfs.volume.inode import Inode
from cowfs.volume.posix import PosixError

_SECOND = 1_000_000_000


class Operations(SparseRequests):
    """The request handlers of one mount."""

    # -- names ------------------------------------------------------------------------------

    def _ghost_entry(self, name: bytes, pid: int) -> bytes:
        """What a ghost finds in the hidden directory: the inode with the number that is the name.
        The kernel may not keep it."""
        inode = self._view.inode(int(name))
        inode.nlookup += 1
        return self._shown_to_ghost(inode, pid, entry_valid=0)

    def lookup(self, parent: int, name: bytes, pid: int) -> Answer:
        if pid in self.upkeep.ghosts:
            if parent == GHOSTS_INO:
                return self._ghost_entry(name, pid)
            if parent == ROOT_INO and name == GHOSTS_NAME:
                return self._ghosts_directory
            if (parent, name) in self.upkeep.appearing:
                return self._absent_now
        elif self.upkeep.outdated:
            self.upkeep.outdated.discard((parent, name))
        inode = namespace.find(self._view, parent, name)
        if inode is None:
            if name == BROWSE_NAME and parent == ROOT_INO:
                return self.browsing.root()
            return self._absent
        if inode.damaged:  # the kernel needs an inode to remove its name
            return replies.unreadable(inode.ino, inode.kind)
        inode.nlookup += 1
        return inode.attr or replies.entry(inode)

    def reopen(self, node: int, name: bytes) -> Answer:
        inode = self._view.inode(node)
        if name == b"..":
            if inode.orphan_epoch:
                return errno.ESTALE
            inode = self._view.inode(self._view.parent_of(inode))
        inode.nlookup += 1
        return inode.attr or replies.entry(inode)

    def forget(self, node: int, count: int) -> None:
        """The kernel gives references to an inode of any view back."""
        if node > INO_MASK:
            self.browsing.forget(node, count)
        else:
            self._view.forget(node, count)

    def _keep_browse(self, parent: int, name: bytes, code: int) -> None:
        """`.cowfs` can be neither made nor removed, unless there is one of the project's own."""
        if parent == ROOT_INO and namespace.find(self._view, parent, name) is None:
            raise PosixError(code)

    def _create(
        self,
        parent: int,
        name: bytes,
        mode: int,
        caller: Caller,
        rdev: int = 0,
        target: bytes = b"",
    ) -> Inode:
        pid, uid, gid = caller
        if pid in self.upkeep.ghosts:
            found = namespace.lookup(self._view, parent, name)
            if found is None:
                raise PosixError(errno.ENOENT)
            return found
        if name == BROWSE_NAME:
            self._keep_browse(parent, name, errno.EEXIST)
        inode = namespace.create(self._view, parent, name, mode, uid, gid, rdev=rdev, target=target)
        self._audit.made(pid, parent, name, inode)
        return inode

    def mknod(self, parent: int, name: bytes, mode: int, rdev: int, caller: Caller) -> Answer:
        return self._entry(self._create(parent, name, mode, caller, rdev))

    def mkdir(self, parent: int, name: bytes, mode: int, caller: Caller) -> Answer:
        return self._entry(self._create(parent, name, mode, caller))

    def symlink(self, parent: int, name: bytes, target: bytes, caller: Caller) -> Answer:
        return self._entry(self._create(parent, name, stat.S_IFLNK | 0o777, caller, target=target))

    def create(self, parent: int, name: bytes, mode: int, flags: int, caller: Caller) -> Answer:
        parking = self.upkeep.parking
        if parking is not None and parking.stops_create() and caller.pid not in self.upkeep.ghosts:
            return self._create_later(parent, name, mode, flags, caller)
        return self._create_and_open(parent, name, mode, flags, caller)

    async def _create_later(
        self, parent: int, name: bytes, mode: int, flags: int, caller: Caller
    ) -> bytes:
        await self._waiter.park()
        return self._create_and_open(parent, name, mode, flags, caller)

    def _create_and_open(
        self, parent: int, name: bytes, mode: int, flags: int, caller: Caller
    ) -> bytes:
        if caller.pid not in self.upkeep.ghosts:
            self._must_be_current(parent, name)  # without O_EXCL it may be there
        inode = self._create(parent, name, stat.S_IFREG | mode & 0o7777, caller)
        handle = self._open(inode, flags, caller.pid)
        return self._entry(inode) + handle

    def tmpfile(self, parent: int, mode: int, flags: int, caller: Caller) -> Answer:
        """O_TMPFILE. Stopped as a creation is: the file may soon have a name."""
        parking = self.upkeep.parking
        if parking is not None and parking.stops_create():
            return self._make_unnamed_later(parent, mode, flags, caller)
        return self._make_unnamed(parent, mode, flags, caller)

    async def _make_unnamed_later(
        self, parent: int, mode: int, flags: int, caller: Caller
    ) -> bytes:
        await self._waiter.park()
        return self._make_unnamed(parent, mode, flags, caller)

    def _make_unnamed(self, parent: int, mode: int, flags: int, caller: Caller) -> bytes:
        pid, uid, gid = caller
        inode = unnamed.create(self._view, parent, stat.S_IFREG | mode & 0o7777, uid, gid)
        handle = self._open(inode, flags, pid)
        return self._entry(inode) + handle

    def link(self, ino: int, new_parent: int, new_name: bytes, pid: int) -> Answer:
        if ino > INO_MASK:
            return errno.EXDEV
        if new_name == BROWSE_NAME:
            self._keep_browse(new_parent, new_name, errno.EEXIST)
        inode = namespace.link(self._view, ino, new_parent, new_name)
        if inode.nlink == 1:
            self._audit.made(pid, new_parent, new_name, inode)  # without a name before
        else:
            self._audit.linked(pid, inode, new_parent, new_name)
        return self._entry(inode)

    def unlink(self, parent: int, name: bytes, pid: int) -> Answer:
        if pid not in self.upkeep.ghosts:
            self._must_be_current(parent, name)
            if self.before_removal is not None:
                self.before_removal(parent, name, 1)
            inode = namespace.unlink(self._view, parent, name)
            self._audit.removed(pid, parent, name, inode)
        return None

    def rmdir(self, parent: int, name: bytes, pid: int) -> Answer:
        if pid not in self.upkeep.ghosts:
            if name == BROWSE_NAME:
                self._keep_browse(parent, name, errno.EPERM)
            self._must_be_current(parent, name)
            if self.before_removal is not None:
                self.before_removal(parent, name, 0)
            inode = namespace.rmdir(self._view, parent, name)
            self._audit.removed(pid, parent, name, inode)
        return None

    def _must_be_current(self, parent: int, name: bytes) -> None:
        """Raises PosixError(ESTALE) while the kernel may know a name by what it was."""
        outdated = self.upkeep.outdated
        if outdated and (parent, name) in outdated:
            raise PosixError(errno.ESTALE)

    def renew(self, inodes: set[int]) -> list[tuple[int, bytes]]:
        """The kernel shall find other inodes of its own for these; returns their names."""
        names = []
        for ino in inodes:
            inode = self._view.inode(ino)
            inode.generation += 1
            inode.attr = None
            names += self._view.snapshot.links(ino)
        return names

    def bury(self, directories: list[int]) -> None:
        """A ghost removed these; the kernel's inodes are dead should they come back."""
        self._view.recall(directories)
        for ino in directories:
            inode = self._view.inodes.get(ino)
            if inode is not None:
                inode.removed = True

    def rename(
        self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int, pid: int
    ) -> Answer:
        if new_parent > INO_MASK:
            return errno.EROFS
        if name == BROWSE_NAME:
            self._keep_browse(parent, name, errno.EPERM)
        if new_name == BROWSE_NAME:
            self._keep_browse(new_parent, new_name, errno.EEXIST)
        self._must_be_current(parent, name)
        self._must_be_current(new_parent, new_name)
        old = namespace.rename(self._view, parent, name, new_parent, new_name, flags)
        self._audit.renamed(pid, parent, name, new_parent, new_name, old)
        return None

    def readlink(self, ino: int) -> Answer:
        return self._view.inode(ino).target

    # -- attributes -------------------------------------------------------------------------

    def getattr(self, ino: int, pid: int) -> Answer:
        if pid in self.upkeep.ghosts:
            if ino == GHOSTS_INO:
                return wire.attr_out(self._ghosts_directory)
            return wire.attr_out(self._shown_to_ghost(self._view.inode(ino), pid))
        inode = self._view.inode(ino)
        return wire.attr_out(inode.attr or replies.entry(inode))

    def setattr(self, ino: int, new: Attributes, pid: int) -> Answer:
        valid, upkeep = new.valid & wire.SET_ALL, self.upkeep
        if pid in upkeep.holders and valid & wire.SET_SIZE:
            return self._set_when_released(ino, new)
        inode = self._view.inode(ino)
        if valid == wire.SET_MTIME | wire.SET_CTIME:
            # What the kernel writes back, in the name of whoever makes it do so. A ghost's fsync or
            # close may be what makes it write back another's times; what it does for watchers
            # changes some itself.
            if ino not in upkeep.unsettled and not (upkeep.announcing and pid in upkeep.ghosts):
                self._set(inode, valid, new)
        elif pid in upkeep.ghosts:
            if valid & wire.SET_MODE:
                upkeep.opened.add(ino)
            return wire.attr_out(self._shown_to_ghost(inode, pid))
        else:
            self._set(inode, valid, new)
            if what := what_is_set(valid):
                self._audit.changed(pid, inode, what)
        return wire.attr_out(inode.attr or replies.entry(inode))

    def _set_when_released(self, ino: int, new: Attributes) -> Answer:
        """A holder's truncation: the kernel takes the size from the answer, and is told the mode
        when it had a reason to flush the file first."""
        if not new.valid & wire.SET_MODE:
            return errno.EAGAIN
        inode = self._view.inode(ino)
        given = new.valid & wire.SET_MTIME
        mtime = new.mtime * _SECOND + new.mtime_ns if given else inode.mtime

        async def wait() -> bytes:
            await self._waiter.hold(ino, mtime)
            self.upkeep.unsettled.discard(ino)
            return wire.attr_out(inode.attr or replies.entry(inode))

        return wait()

    def _set(self, inode: Inode, valid: int, new: Attributes) -> None:
        _, size, atime, mtime, ctime, atime_ns, mtime_ns, ctime_ns, mode, uid, gid = new
        if valid & wire.SET_SIZE and size > inode.size:
            self._volume.require_room()
        attributes.set_attributes(
            self._view,
            inode,
            mode=mode if valid & wire.SET_MODE else None,
            uid=uid if valid & wire.SET_UID else None,
            gid=gid if valid & wire.SET_GID else None,
            size=size if valid & wire.SET_SIZE else None,
            atime=atime * _SECOND + atime_ns if valid & wire.SET_ATIME else None,
            mtime=mtime * _SECOND + mtime_ns if valid & wire.SET_MTIME else None,
            ctime=ctime * _SECOND + ctime_ns if valid & wire.SET_CTIME else None,
        )

    def setxattr(self, ino: int, name: bytes, value: bytes, pid: int) -> Answer:
        if not name.startswith(XATTR_CLASSES):
            return errno.ENOTSUP
        self._volume.require_room()
        attributes.set_xattr(self._view, inode := self._view.inode(ino), name, value)
        self._audit.changed(pid, inode, XATTR)
        return None

    def getxattr(self, ino: int, name: bytes) -> bytes | int:
        """Asked for security.capability before every first write of a file: keep it short."""
        inode = self._view.inodes.get(ino)
        if inode is None or inode.xattrs is None:
            value = attributes.xattrs(self._view, self._view.inode(ino)).get(name)
        else:
            value = inode.xattrs.get(name)
        if not name.startswith(XATTR_CLASSES):
            return errno.ENOTSUP
        return errno.ENODATA if value is None else value

    def listxattr(self, ino: int) -> list[bytes]:
        names = attributes.xattrs(self._view, self._view.inode(ino))
        return [name for name in names if name.startswith(XATTR_CLASSES)]

    def removexattr(self, ino: int, name: bytes, pid: int) -> Answer:
        if not name.startswith(XATTR_CLASSES):
            return errno.ENOTSUP
        attributes.remove_xattr(self._view, inode := self._view.inode(ino), name)
        self._audit.changed(pid, inode, XATTR)
        return None

    # -- the rest ---------------------------------------------------------------------------

    def statfs(self) -> Answer:
        return replies.space(self._volume)
