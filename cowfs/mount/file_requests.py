"""Requests on open files and directories of the main view: reading and writing.

Threading: the FUSE thread. `fsync`, `fsyncdir` and a `write` that meets too much uncommitted data
wait for a commit, and an `open` for what a restore or a change from outside makes of the file.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Any

import pyfuse3

from cowfs.format.audit import CUT
from cowfs.mount import replies
from cowfs.mount.nodes import GHOSTS_INO, INO_MASK
from cowfs.mount.serving import Serving, Waiter, guarded, handler
from cowfs.volume import attributes, data, namespace
from cowfs.volume.inode import Inode
from cowfs.volume.posix import PosixError
from cowfs.volume.volume import Volume

_HOLDS = GHOSTS_INO
"""Bits of the handles of holders, above those of other views."""
_GROUP_BYTES = 16 << 20
"""Changed block bytes after which a group is closed before its time."""
_LIMIT_BYTES = 96 << 20
"""Uncommitted block bytes at which writers wait for the store."""
_READDIR_DOTS = 2


class _Directory:
    """An open directory: the listing is taken when it is read from the start."""

    __slots__ = ("inode", "listing")

    def __init__(self, inode: Inode) -> None:
        self.inode = inode
        self.listing: list[tuple[bytes, int]] = []


class FileRequests(Serving):
    """The handlers of open files and directories."""

    def __init__(self, volume: Volume, waiter: Waiter) -> None:
        super().__init__(volume, waiter)
        self._directories: dict[int, _Directory] = {}
        self._next_directory = 1

    def handles(self) -> int:
        """How many files and directories are open, each as often as it was opened."""
        return self._handles + len(self._directories)

    def _open(self, inode: Inode, flags: int, pid: int) -> pyfuse3.FileInfo:
        """A handle: the inode number, and in bit 0 whether it can write."""
        inode.handles += 1
        self._handles += 1
        writable = flags & os.O_ACCMODE != os.O_RDONLY
        if writable:
            self._writers[inode.ino] = self._writers.get(inode.ino, 0) + 1
            self._audit.opened(-1 if pid in self.upkeep.ghosts else pid, inode.ino)
        return pyfuse3.FileInfo(fh=inode.ino << 1 | writable)

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
        self._handles -= 1
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
