"""FUSE requests to volume operations.

Here are the handlers of the main view, whose node ids are inode numbers: of names and attributes,
and from file_requests.py those of open files. What concerns another view (mount/nodes.py) is handed
on to browsing.py.

The kernel runs with the writeback cache: it keeps size and times of regular files and sends them
by `setattr`, so `write` does not touch times, and reads come on handles opened for writing only.
Entries, attributes and negative entries are valid until they are invalidated (mount/kernel.py).

Threading: every handler runs in the FUSE thread and, but for `fsync`, `fsyncdir` and a `write`
that meets too much uncommitted data, is done without an await: each operation is atomic.
"""

from __future__ import annotations

import errno
import stat
from typing import Any

import pyfuse3

from cowfs.format.audit import XATTR
from cowfs.mount import replies
from cowfs.mount.browsing import XATTR_CLASSES
from cowfs.mount.file_requests import FileRequests
from cowfs.mount.nodes import BROWSE_NAME, GHOSTS_INO, INO_MASK
from cowfs.mount.serving import guarded, handler
from cowfs.mount.upkeep import GHOSTS_NAME, are_times_of_kernel, what_is_set
from cowfs.types import ROOT_INO
from cowfs.volume import attributes, namespace
from cowfs.volume.inode import Inode
from cowfs.volume.posix import PosixError


class Operations(FileRequests):
    """The request handlers of one mount."""

    supports_dot_lookup = False
    enable_writeback_cache = True
    enable_acl = False

    def init(self) -> None:
        """The kernel answered: the mount is up (called by pyfuse3)."""

    def stacktrace(self) -> None:
        """pyfuse3's debugging aid, asked for by an extended attribute: not offered."""

    # -- names ------------------------------------------------------------------------------

    def _ghost_entry(self, name: bytes, pid: int) -> pyfuse3.EntryAttributes:
        """What a ghost finds in the hidden directory: the inode with the number that is the name.
        The kernel may not keep it."""
        inode = self._view.inode(int(name))
        inode.nlookup += 1
        entry = self._shown_to_ghost(inode, pid)
        entry.entry_timeout = 0
        return entry

    @handler
    def lookup(self, parent: int, name: bytes, ctx: pyfuse3.RequestContext) -> Any:
        if ctx.pid in self.upkeep.ghosts:
            if parent == GHOSTS_INO:
                return self._ghost_entry(name, ctx.pid)
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
        return inode.attr or replies.attributes(inode)

    @guarded
    def forget(self, inodes: list[tuple[int, int]]) -> None:
        for ino, count in inodes:
            if ino > INO_MASK:
                self.browsing.forget(ino, count)
            else:
                self._view.forget(ino, count)

    def _keep_browse(self, parent: int, name: bytes, code: int) -> None:
        """`.cowfs` can be neither made nor removed, unless there is one of the project's own."""
        if parent == ROOT_INO and namespace.find(self._view, parent, name) is None:
            raise PosixError(code)

    def _create(
        self,
        parent: int,
        name: bytes,
        mode: int,
        ctx: pyfuse3.RequestContext,
        rdev: int = 0,
        target: bytes = b"",
    ) -> Inode:
        if ctx.pid in self.upkeep.ghosts:
            found = namespace.lookup(self._view, parent, name)
            if found is None:
                raise PosixError(errno.ENOENT)
            return found
        if name == BROWSE_NAME:
            self._keep_browse(parent, name, errno.EEXIST)
        inode = namespace.create(
            self._view, parent, name, mode, ctx.uid, ctx.gid, rdev=rdev, target=target
        )
        self._audit.made(ctx.pid, parent, name, inode)
        return inode

    @handler
    def mknod(
        self, parent: int, name: bytes, mode: int, rdev: int, ctx: pyfuse3.RequestContext
    ) -> Any:
        return self._entry(self._create(parent, name, mode, ctx, rdev))

    @handler
    def mkdir(self, parent: int, name: bytes, mode: int, ctx: pyfuse3.RequestContext) -> Any:
        return self._entry(self._create(parent, name, stat.S_IFDIR | mode & 0o7777, ctx))

    @handler
    def symlink(self, parent: int, name: bytes, target: bytes, ctx: pyfuse3.RequestContext) -> Any:
        return self._entry(self._create(parent, name, stat.S_IFLNK | 0o777, ctx, target=target))

    async def create(
        self, parent: int, name: bytes, mode: int, flags: int, ctx: pyfuse3.RequestContext
    ) -> Any:
        if parent > INO_MASK:
            raise pyfuse3.FUSEError(errno.EROFS)
        parking = self.upkeep.parking
        if parking is not None and parking.stops_create() and ctx.pid not in self.upkeep.ghosts:
            await self._waiter.park()
        return await self._create_and_open(parent, name, mode, flags, ctx)

    @guarded
    def _create_and_open(
        self, parent: int, name: bytes, mode: int, flags: int, ctx: pyfuse3.RequestContext
    ) -> Any:
        if ctx.pid not in self.upkeep.ghosts:
            self._must_be_current(parent, name)  # without O_EXCL it may be there
        inode = self._create(parent, name, stat.S_IFREG | mode & 0o7777, ctx)
        return self._open(inode, flags, ctx.pid), self._entry(inode)

    @handler
    def link(self, ino: int, new_parent: int, new_name: bytes, ctx: pyfuse3.RequestContext) -> Any:
        if new_parent > INO_MASK:
            raise PosixError(errno.EROFS)
        if new_name == BROWSE_NAME:
            self._keep_browse(new_parent, new_name, errno.EEXIST)
        inode = namespace.link(self._view, ino, new_parent, new_name)
        self._audit.linked(ctx.pid, inode, new_parent, new_name)
        return self._entry(inode)

    @handler
    def unlink(self, parent: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        if ctx.pid not in self.upkeep.ghosts:
            self._must_be_current(parent, name)
            if self.before_removal is not None:
                self.before_removal(parent, name, 1)
            inode = namespace.unlink(self._view, parent, name)
            self._audit.removed(ctx.pid, parent, name, inode)

    @handler
    def rmdir(self, parent: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        if ctx.pid not in self.upkeep.ghosts:
            if name == BROWSE_NAME:
                self._keep_browse(parent, name, errno.EPERM)
            self._must_be_current(parent, name)
            if self.before_removal is not None:
                self.before_removal(parent, name, 0)
            inode = namespace.rmdir(self._view, parent, name)
            self._audit.removed(ctx.pid, parent, name, inode)

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

    @handler
    def rename(
        self,
        parent: int,
        name: bytes,
        new_parent: int,
        new_name: bytes,
        flags: int,
        ctx: pyfuse3.RequestContext,
    ) -> None:
        if new_parent > INO_MASK:
            raise PosixError(errno.EROFS)
        if name == BROWSE_NAME:
            self._keep_browse(parent, name, errno.EPERM)
        if new_name == BROWSE_NAME:
            self._keep_browse(new_parent, new_name, errno.EEXIST)
        self._must_be_current(parent, name)
        self._must_be_current(new_parent, new_name)
        old = namespace.rename(self._view, parent, name, new_parent, new_name, flags)
        self._audit.renamed(ctx.pid, parent, name, new_parent, new_name, old)

    @handler
    def readlink(self, ino: int, ctx: pyfuse3.RequestContext) -> bytes:
        return self._view.inode(ino).target

    # -- attributes -------------------------------------------------------------------------

    @handler
    def getattr(self, ino: int, ctx: pyfuse3.RequestContext) -> Any:
        if ctx.pid in self.upkeep.ghosts:
            if ino == GHOSTS_INO:
                return self._ghosts_directory
            return self._shown_to_ghost(self._view.inode(ino), ctx.pid)
        inode = self._view.inode(ino)
        return inode.attr or replies.attributes(inode)

    async def setattr(
        self,
        ino: int,
        attr: pyfuse3.EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: int | None,
        ctx: pyfuse3.RequestContext,
    ) -> Any:
        if ino > INO_MASK:
            raise pyfuse3.FUSEError(errno.EROFS)
        if ctx.pid in self.upkeep.holders and fields.update_size:
            if not fields.update_mode:  # the kernel had no reason to flush the file first
                raise pyfuse3.FUSEError(errno.EAGAIN)
            inode = self._view.inode(ino)
            await self._waiter.hold(ino, attr.st_mtime_ns if fields.update_mtime else inode.mtime)
            self.upkeep.unsettled.discard(ino)
            return replies.attributes(inode)
        return await self._set_attributes(ino, attr, fields, fh, ctx)

    @guarded
    def _set_attributes(
        self,
        ino: int,
        attr: pyfuse3.EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: int | None,
        ctx: pyfuse3.RequestContext,
    ) -> Any:
        inode, audited = self._view.inode(ino), 0
        if are_times_of_kernel(fields):
            # A ghost's fsync or close may be what makes the kernel write back another's times;
            # what it does for watchers changes some itself.
            if ino in self.upkeep.unsettled or (
                self.upkeep.announcing and ctx.pid in self.upkeep.ghosts
            ):
                return replies.attributes(inode)
        elif ctx.pid in self.upkeep.ghosts:
            if fields.update_mode:
                self.upkeep.opened.add(ino)
            return self._shown_to_ghost(inode, ctx.pid)
        else:
            audited = what_is_set(fields)
        size = attr.st_size if fields.update_size else None
        if size is not None and size > inode.size:
            self._volume.require_room()
        attributes.set_attributes(
            self._view,
            inode,
            mode=attr.st_mode if fields.update_mode else None,
            uid=attr.st_uid if fields.update_uid else None,
            gid=attr.st_gid if fields.update_gid else None,
            size=size,
            atime=attr.st_atime_ns if fields.update_atime else None,
            mtime=attr.st_mtime_ns if fields.update_mtime else None,
            ctime=attr.st_ctime_ns if fields.update_ctime else None,
        )
        if audited:
            self._audit.changed(ctx.pid, inode, audited)
        return replies.attributes(inode)

    @handler
    def setxattr(self, ino: int, name: bytes, value: bytes, ctx: pyfuse3.RequestContext) -> None:
        if not name.startswith(XATTR_CLASSES):
            raise PosixError(errno.ENOTSUP)
        self._volume.require_room()
        attributes.set_xattr(self._view, inode := self._view.inode(ino), name, value)
        self._audit.changed(ctx.pid, inode, XATTR)

    async def getxattr(self, ino: int, name: bytes, ctx: pyfuse3.RequestContext) -> bytes:
        """Asked for security.capability before every first write of a file: keep it short."""
        inode = self._view.inodes.get(ino)
        if inode is not None and inode.xattrs is not None:
            value = inode.xattrs.get(name)
        else:
            try:
                if ino > INO_MASK:
                    return await self.browsing.getxattr(ino, name, ctx)
                value = attributes.xattrs(self._view, self._view.inode(ino)).get(name)
            except Exception as error:
                raise self.failure("getxattr", error) from None
        if not name.startswith(XATTR_CLASSES):
            raise pyfuse3.FUSEError(errno.ENOTSUP)
        if value is None:
            raise self._no_xattr
        return value

    @handler
    def listxattr(self, ino: int, ctx: pyfuse3.RequestContext) -> list[bytes]:
        names = attributes.xattrs(self._view, self._view.inode(ino))
        return [name for name in names if name.startswith(XATTR_CLASSES)]

    @handler
    def removexattr(self, ino: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        if not name.startswith(XATTR_CLASSES):
            raise PosixError(errno.ENOTSUP)
        attributes.remove_xattr(self._view, inode := self._view.inode(ino), name)
        self._audit.changed(ctx.pid, inode, XATTR)

    # -- the rest ---------------------------------------------------------------------------

    @guarded
    def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        """The room that the store has: of its file system or, with a quota, of that."""
        self._volume.writer.measure()
        room, real = self._volume.writer.room, self._volume.store.file_system()
        stats = pyfuse3.StatvfsData()
        for name in ("bsize", "frsize", "blocks", "files", "ffree", "favail"):
            setattr(stats, f"f_{name}", getattr(real, f"f_{name}"))
        if room.quota:
            stats.f_blocks = room.quota // real.f_frsize
        stats.f_bfree = stats.f_bavail = room.left // real.f_frsize
        stats.f_namemax = 255
        return stats

    @handler
    def access(self, ino: int, mode: int, ctx: pyfuse3.RequestContext) -> bool:
        raise PosixError(errno.ENOSYS)  # default_permissions: the kernel decides

    @handler
    def poll(self, ino: int, fh: int, handle: Any, ctx: pyfuse3.RequestContext) -> int:
        raise PosixError(errno.ENOSYS)  # regular files are always ready; the kernel knows
