"""FUSE requests to volume operations.

Here are the handlers of the main view, whose node ids are inode numbers; what concerns another view
(mount/nodes.py) is handed on to browsing.py.

The kernel runs with the writeback cache: it keeps size and times of regular files and sends them
by `setattr`, so `write` does not touch times, and reads come on handles opened for writing only.
Entries, attributes and negative entries are valid until they are invalidated (mount/kernel.py).

Threading: every handler runs in the FUSE thread and, but for `fsync`, `fsyncdir` and a `write`
that meets too much uncommitted data, is done without an await: each operation is atomic.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import pyfuse3

from cowfs.errors import DamagedRecordError
from cowfs.format.audit import CUT, XATTR
from cowfs.mount import browsing, replies
from cowfs.mount.browsing import XATTR_CLASSES, Browsing
from cowfs.mount.nodes import BROWSE_NAME, GHOSTS_INO, INO_MASK
from cowfs.mount.upkeep import (
    GHOSTS_NAME,
    Upkeep,
    are_times_of_kernel,
    what_is_set,
)
from cowfs.store.env import LmdbError
from cowfs.types import ROOT_INO
from cowfs.volume import attributes, data, namespace
from cowfs.volume.inode import Inode
from cowfs.volume.posix import PosixError
from cowfs.volume.volume import Volume

log = logging.getLogger(__name__)

_HOLDS = GHOSTS_INO
"""Bits of the handles of holders, above those of other views."""
_GROUP_BYTES = 16 << 20
"""Changed block bytes after which a group is closed before its time."""
_LIMIT_BYTES = 96 << 20
"""Uncommitted block bytes at which writers wait for the store."""
_READDIR_DOTS = 2


class Waiter(browsing.Waiter, Protocol):
    """What a handler can wait for (mount/loop.py)."""

    async def hold(self, ino: int, mtime: int) -> None: ...
    async def park(self) -> None: ...
    @property
    def correcting(self) -> bool: ...
    async def corrected(self) -> None: ...


def guarded(fn: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    """Make a request handler of a plain method.

    A PosixError becomes the request's errno. A damaged record is EIO, and `status` tells of it.
    Anything else is a defect: it is logged and answered with EIO, since an exception that reached
    pyfuse3 would take the whole mount down.
    """

    async def wrapper(self: Operations, *args: Any) -> Any:
        try:
            return fn(self, *args)
        except Exception as error:
            raise self.failure(fn.__name__, error) from None

    wrapper.__name__ = fn.__name__
    wrapper.__doc__ = fn.__doc__
    return wrapper


def handler(fn: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    """The same of a method whose first argument is a node id or a handle: for those of another
    view than the main one the method of that name of `Browsing` is called."""
    browse = getattr(Browsing, fn.__name__)

    async def wrapper(self: Operations, first: int, *args: Any) -> Any:
        try:
            if first > INO_MASK and first < GHOSTS_INO:
                return await browse(self.browsing, first, *args)
            return fn(self, first, *args)
        except Exception as error:
            raise self.failure(fn.__name__, error) from None

    wrapper.__name__ = fn.__name__
    wrapper.__doc__ = fn.__doc__
    return wrapper


class _Directory:
    """An open directory: the listing is taken when it is read from the start."""

    __slots__ = ("inode", "listing")

    def __init__(self, inode: Inode) -> None:
        self.inode = inode
        self.listing: list[tuple[bytes, int]] = []


class Operations:
    """The request handlers of one mount.

    before_removal: called before a name is removed: directory, name, and 1 for a file.
    """

    supports_dot_lookup = False
    enable_writeback_cache = True
    enable_acl = False

    def __init__(self, volume: Volume, waiter: Waiter) -> None:
        self._volume = volume
        self._waiter = waiter
        self._view = volume.main
        self._writers: dict[int, int] = {}
        self._directories: dict[int, _Directory] = {}
        self._next_directory = 1
        self._audit = volume.audit
        self.upkeep = Upkeep()
        self.browsing = Browsing(volume, waiter)
        self.before_removal: Callable[[int, bytes, int], None] | None = None
        self.requests = 0
        self._absent = replies.absent(replies.FOREVER)
        self._absent_now = replies.absent(0)
        self._ghosts_directory = replies.directory(GHOSTS_INO)
        self._no_xattr = pyfuse3.FUSEError(errno.ENODATA)

    def init(self) -> None:
        """The kernel answered: the mount is up (called by pyfuse3)."""

    def stacktrace(self) -> None:
        """pyfuse3's debugging aid, asked for by an extended attribute: not offered."""

    # -- helpers ----------------------------------------------------------------------------

    def _entry(self, inode: Inode) -> pyfuse3.EntryAttributes:
        """A reply by which the kernel takes a reference of the inode."""
        inode.nlookup += 1
        return replies.attributes(inode)

    def _open(self, inode: Inode, flags: int, pid: int) -> pyfuse3.FileInfo:
        """A handle: the inode number, and in bit 0 whether it can write."""
        inode.handles += 1
        writable = flags & os.O_ACCMODE != os.O_RDONLY
        if writable:
            self._writers[inode.ino] = self._writers.get(inode.ino, 0) + 1
            self._audit.opened(-1 if pid in self.upkeep.ghosts else pid, inode.ino)
        return pyfuse3.FileInfo(fh=inode.ino << 1 | writable)

    def writers(self) -> list[int]:
        """Inodes with a handle that can write: only these can have dirty pages."""
        return list(self._writers)

    def _shown_to_ghost(self, inode: Inode, pid: int) -> pyfuse3.EntryAttributes:
        """The truth, but for a mode that lets the ghost in, and makes the kernel flush the file
        when a holder truncates it (mount/holding.py). A file that is open for writing cannot be
        executed, so nobody gets another's rights by that setuid bit."""
        bits = 0
        if pid in self.upkeep.holders and inode.ino in self._writers:
            self.upkeep.opened.add(inode.ino)
            bits = stat.S_ISUID
        if inode.ino in self.upkeep.opened:
            bits |= stat.S_IRUSR | stat.S_IWUSR
        return replies.with_mode(inode, bits)

    def _ghost_entry(self, name: bytes, pid: int) -> pyfuse3.EntryAttributes:
        """What a ghost finds in the hidden directory: the inode with the number that is the name.
        The kernel may not keep it."""
        inode = self._view.inode(int(name))
        inode.nlookup += 1
        entry = self._shown_to_ghost(inode, pid)
        entry.entry_timeout = 0
        return entry

    # -- names ------------------------------------------------------------------------------

    @handler
    def lookup(self, parent: int, name: bytes, ctx: pyfuse3.RequestContext) -> Any:
        if ctx.pid in self.upkeep.ghosts:
            if parent == GHOSTS_INO:
                return self._ghost_entry(name, ctx.pid)
            if parent == ROOT_INO and name == GHOSTS_NAME:
                return self._ghosts_directory
            if (parent, name) in self.upkeep.appearing:
                return self._absent_now
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
            if self.before_removal is not None:
                self.before_removal(parent, name, 1)
            inode = namespace.unlink(self._view, parent, name)
            self._audit.removed(ctx.pid, parent, name, inode)

    @handler
    def rmdir(self, parent: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        if ctx.pid not in self.upkeep.ghosts:
            if name == BROWSE_NAME:
                self._keep_browse(parent, name, errno.EPERM)
            if self.before_removal is not None:
                self.before_removal(parent, name, 0)
            inode = namespace.rmdir(self._view, parent, name)
            self._audit.removed(ctx.pid, parent, name, inode)

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

    def failure(self, request: str, error: Exception) -> pyfuse3.FUSEError:
        """What a request that failed is answered with: without an answer its caller hangs."""
        if isinstance(error, pyfuse3.FUSEError):
            return error
        if isinstance(error, PosixError):
            return pyfuse3.FUSEError(error.errno)
        if isinstance(error, DamagedRecordError):
            self._volume.problem("damaged", b"", str(error))
        elif isinstance(error, LmdbError):
            self._volume.met_damaged_page(error)
        else:
            log.error("%s failed", request, exc_info=error)
        return pyfuse3.FUSEError(errno.EIO)

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

    # -- files ------------------------------------------------------------------------------

    async def open(self, ino: int, flags: int, ctx: pyfuse3.RequestContext) -> Any:
        if ino > INO_MASK:
            return await self._open_browsed(ino, flags, ctx)
        parking = self.upkeep.parking
        if (
            parking is not None
            and parking.stops_open(ino, flags)
            and ctx.pid not in self.upkeep.ghosts
        ):
            await self._waiter.park()
        info = await self._open_file(ino, flags, ctx)
        if self._waiter.correcting and not flags & os.O_TRUNC and ctx.pid not in self.upkeep.ghosts:
            # Its base file was changed outside: the opener must not see the old size. O_TRUNC keeps
            # the file locked, and ends what there was.
            await self._waiter.corrected()
        return info

    async def _open_browsed(self, node: int, flags: int, ctx: pyfuse3.RequestContext) -> Any:
        try:
            return await self.browsing.open(node, flags, ctx)
        except Exception as error:
            raise self.failure("open", error) from None

    @guarded
    def _open_file(self, ino: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        inode = self._view.inode(ino)
        if self.upkeep.stranding and inode.orphan_epoch and not inode.handles:
            raise PosixError(errno.ESTALE)
        if inode.base_size:
            data.open_file(self._view, inode)
        if flags & os.O_TRUNC and ctx.pid not in self.upkeep.ghosts:
            self._truncate_by_open(inode, ctx)
        info = self._open(inode, flags, ctx.pid)
        if ctx.pid in self.upkeep.holders:
            info.fh |= _HOLDS
        return info

    def _truncate_by_open(self, inode: Inode, ctx: pyfuse3.RequestContext) -> None:
        """O_TRUNC is done here, not by `setattr`, so privileges go here too (inode(7))."""
        mode = inode.mode
        if ctx.uid != 0 and mode & (stat.S_ISUID | stat.S_ISGID):
            mode &= ~stat.S_ISUID
            if mode & stat.S_IXGRP:
                mode &= ~stat.S_ISGID
        if b"security.capability" in attributes.xattrs(self._view, inode):
            attributes.remove_xattr(self._view, inode, b"security.capability")
        attributes.set_attributes(
            self._view,
            inode,
            size=0 if inode.size else None,
            mode=mode if mode != inode.mode else None,
        )
        self._audit.changed(ctx.pid, inode, CUT)

    @handler
    def read(self, fh: int, offset: int, size: int) -> bytes:
        return data.read(self._view, self._view.inodes[fh >> 1], offset, size)

    async def write(self, fh: int, offset: int, buffer: bytes) -> int:
        """Store what the kernel wrote back; wait when the store cannot keep up."""
        view, volume = self._view, self._volume
        inode = view.inodes[fh >> 1]
        if inode.ino in self.upkeep.dropping:
            return len(buffer)
        try:
            volume.require_room()
            while not volume.has_room(len(buffer)):
                # What waits for its commit may take less than it seems to.
                group = volume.quiesce()
                if group is None or group.done:
                    raise PosixError(errno.ENOSPC)
                await self._waiter.committed(group)
            if inode.ino in self.upkeep.dropping:
                return len(buffer)
            written = data.write(view, inode, offset, buffer)
            self._audit.wrote(inode, written)
            if view.dirty_bytes >= _GROUP_BYTES:
                group = volume.quiesce()
                if group is not None and volume.uncommitted_bytes >= _LIMIT_BYTES:
                    await self._waiter.committed(group)
        except Exception as error:
            raise self.failure("write", error) from None
        return written

    @handler
    def flush(self, fh: int) -> None:
        raise PosixError(errno.ENOSYS)  # asked once; the kernel then closes without a request

    @handler
    def release(self, fh: int) -> None:
        inode = self._view.inodes[(fh & ~_HOLDS) >> 1]
        inode.handles -= 1
        if fh & 1:
            left = self._writers[inode.ino] - 1
            if left:
                self._writers[inode.ino] = left
            else:
                del self._writers[inode.ino]
            self._audit.closed(inode.ino)
        if not inode.handles and inode.ino in self.upkeep.stale:
            self.upkeep.stale.discard(inode.ino)
            self.upkeep.on_closed(inode.ino)
        self._view.release(inode)

    async def fsync(self, fh: int, datasync: bool) -> None:
        """Contract 4: data, and the names that lead to it, are on stable storage."""
        if fh >= _HOLDS:
            inode = self._view.inodes[(fh & ~_HOLDS) >> 1]
            await self._waiter.hold(inode.ino, inode.mtime)
            self.upkeep.unsettled.discard(inode.ino)
        else:
            await self._sync()

    async def fsyncdir(self, fh: int, datasync: bool) -> None:
        await self._sync()

    async def _sync(self) -> None:
        try:
            group = self._volume.quiesce()
            if group is not None and not group.done:
                await self._waiter.committed(group)
        except PosixError as error:
            raise pyfuse3.FUSEError(error.errno) from None

    # -- directories ------------------------------------------------------------------------

    @handler
    def opendir(self, ino: int, ctx: pyfuse3.RequestContext) -> int:
        inode = self._view.inode(ino)
        fh = self._next_directory
        self._next_directory = fh + 1
        inode.handles += 1
        self._directories[fh] = _Directory(inode)
        return fh

    @handler
    def readdir(self, fh: int, start: int, token: pyfuse3.ReaddirToken) -> None:
        directory, view = self._directories[fh], self._view
        inode = directory.inode
        if start == 0:
            listing = namespace.entries(view, inode.ino) if not inode.orphan_epoch else []
            dots = [(b".", inode.ino << 4 | 4), (b"..", view.parent_of(inode) << 4 | 4)]
            directory.listing = dots + listing
        listing, inodes = directory.listing, view.inodes
        entries = view.directory(inode.ino).entries if not inode.orphan_epoch else {}
        assert entries is not None
        reply = pyfuse3.readdir_reply
        for at in range(start, len(listing)):
            name, packed = listing[at]
            if at < _READDIR_DOTS:
                if not reply(token, name, replies.dot(packed >> 4), at + 1):
                    return
                continue
            if entries.get(name) != packed:
                continue  # it went since the directory was opened
            child = inodes.get(packed >> 4)
            if child is None or child.damaged:
                try:
                    child = view.inode(packed >> 4)
                except PosixError:
                    bare = replies.unreadable(packed >> 4, packed & 15)
                    if not reply(token, name, bare, at + 1):
                        return
                    continue
            if not reply(token, name, child.attr or replies.attributes(child), at + 1):
                return
            child.nlookup += 1

    @handler
    def releasedir(self, fh: int) -> None:
        inode = self._directories.pop(fh).inode
        inode.handles -= 1
        self._view.release(inode)

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
