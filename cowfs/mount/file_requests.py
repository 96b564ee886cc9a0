"""Requests on open files and directories of the main view: reading and writing.

Threading: the FUSE thread. `fsync`, `fsyncdir` and a `write` that meets too much uncommitted data
wait for a commit, and an `open` for what a restore or a change from outside makes of the file:
those return a coroutine.
"""

from __future__ import annotations

import errno
import os
import stat

from cowfs.format.audit import CUT
from cowfs.mount import positions, replies, wire
from cowfs.mount.nodes import GHOSTS_INO
from cowfs.mount.requests import Answer, Caller
from cowfs.mount.serving import Serving, Waiter
from cowfs.store.group import TransactionGroup
from cowfs.volume import attributes, data, sparse
from cowfs.volume.inode import Inode
from cowfs.volume.posix import PosixError
from cowfs.volume.volume import Volume

_HOLDS = GHOSTS_INO
"""Bits of the handles of holders, above those of other views."""
_GROUP_BYTES = 16 << 20
"""Changed block bytes after which a group is closed before its time."""
_LIMIT_BYTES = 96 << 20
"""Uncommitted block bytes at which writers wait for the store."""


class _Directory:
    """An open directory: the listing is taken when it is read from the start, or from somewhere
    else when the kernel had kept what comes before."""

    __slots__ = ("inode", "listing")

    def __init__(self, inode: Inode) -> None:
        self.inode = inode
        self.listing: positions.Listing | None = None


class FileRequests(Serving):
    """The handlers of open files and directories."""

    def __init__(self, volume: Volume, waiter: Waiter) -> None:
        super().__init__(volume, waiter)
        self._directories: dict[int, _Directory] = {}
        self._collecting: dict[int, int] = {}
        self._next_directory = 1

    def handles(self) -> int:
        """How many files and directories are open, each as often as it was opened."""
        return self._handles + len(self._directories)

    def _open(self, inode: Inode, flags: int, pid: int, *, holder: bool = False) -> bytes:
        """The reply with a handle: the inode number, and in bit 0 whether it can write."""
        inode.handles += 1
        self._handles += 1
        writable = flags & os.O_ACCMODE != os.O_RDONLY
        if writable:
            self._writers[inode.ino] = self._writers.get(inode.ino, 0) + 1
            self._audit.opened(-1 if pid in self.upkeep.ghosts else pid, inode.ino)
        fh = inode.ino << 1 | writable | (_HOLDS if holder else 0)
        return wire.OPEN_OUT.pack(fh, wire.KEEP_CACHE, 0)

    def open(self, ino: int, flags: int, caller: Caller) -> Answer:
        is_ghost = caller.pid in self.upkeep.ghosts
        parking = self.upkeep.parking
        if parking is not None and parking.stops_open(ino, flags) and not is_ghost:
            return self._open_later(ino, flags, caller)
        opened = self._open_file(ino, flags, caller)
        if self._waiter.correcting and not flags & os.O_TRUNC and not is_ghost:
            # Its base file was changed outside: the opener must not see the old size. O_TRUNC keeps
            # the file locked, and ends what there was.
            return self._corrected(opened)
        return opened

    async def _open_later(self, ino: int, flags: int, caller: Caller) -> bytes:
        await self._waiter.park()
        opened = self._open_file(ino, flags, caller)
        if self._waiter.correcting and not flags & os.O_TRUNC:
            await self._waiter.corrected()
        return opened

    async def _corrected(self, opened: bytes) -> bytes:
        await self._waiter.corrected()
        return opened

    def _open_file(self, ino: int, flags: int, caller: Caller) -> bytes:
        inode = self._view.inode(ino)
        if self.upkeep.stranding and inode.orphan_epoch and not inode.handles:
            raise PosixError(errno.ESTALE)
        if inode.base_size:
            data.open_file(self._view, inode)
        if flags & os.O_TRUNC and caller.pid not in self.upkeep.ghosts:
            self._truncate_by_open(inode, caller)
        return self._open(inode, flags, caller.pid, holder=caller.pid in self.upkeep.holders)

    def _truncate_by_open(self, inode: Inode, caller: Caller) -> None:
        """O_TRUNC is done here, not by `setattr`, so privileges go here too (inode(7))."""
        mode = inode.mode
        if caller.uid != 0 and mode & (stat.S_ISUID | stat.S_ISGID):
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
        self._audit.changed(caller.pid, inode, CUT)

    def read(self, fh: int, offset: int, size: int) -> Answer:
        return data.read_pieces(self._view, self._view.inodes[fh >> 1], offset, size)

    def write(self, fh: int, offset: int, data: memoryview) -> Answer:
        """Store what the kernel wrote back; wait when the store cannot keep up."""
        inode = self._view.inodes[fh >> 1]
        if inode.ino not in self.upkeep.dropping:
            try:
                self._volume.require_room()
                if not self._volume.has_room(len(data)):
                    return self._write_later(inode, offset, bytes(data))
                group = self._write(inode, offset, data)
            except PosixError as error:
                self._refuse(inode, offset + len(data), error)
                raise
            if group is not None:
                return self._written_later(group, len(data))
        return wire.TWO.pack(len(data), 0)

    async def _write_later(self, inode: Inode, offset: int, data: bytes) -> bytes:
        group = None
        try:
            await self._room(len(data))
            if inode.ino not in self.upkeep.dropping:
                group = self._write(inode, offset, data)
        except PosixError as error:
            self._refuse(inode, offset + len(data), error)
            raise
        if group is not None:
            await self._waiter.committed(group)
        return wire.TWO.pack(len(data), 0)

    def _refuse(self, inode: Inode, end: int, error: PosixError) -> None:
        """Whatever the kernel is answered, it takes the pages for written, and the file to be as
        large as they made it. So it is as large, and the pages are dropped: they read as zeros."""
        if error.errno == errno.ENOSPC and end > inode.size:
            sparse.allocate(self._view, inode, 0, 0, end)
        if inode.ino not in self.upkeep.refused:
            self.upkeep.refused.add(inode.ino)
            self.upkeep.on_refused(inode.ino)

    async def _written_later(self, group: TransactionGroup, size: int) -> bytes:
        await self._waiter.committed(group)
        return wire.TWO.pack(size, 0)

    def _write(
        self, inode: Inode, offset: int, buffer: bytes | memoryview
    ) -> TransactionGroup | None:
        """Returns a group whose commit is to be waited for."""
        view = self._view
        self._audit.wrote(inode, data.write(view, inode, offset, buffer))
        if view.dirty_bytes < _GROUP_BYTES:
            return None
        group = self._volume.quiesce()
        return group if self._volume.uncommitted_bytes >= _LIMIT_BYTES else None

    def release(self, fh: int) -> Answer:
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
        return None

    def fsync(self, fh: int) -> Answer:
        """Contract 4: data, and the names that lead to it, are on stable storage."""
        if fh >= _HOLDS:
            return self._hold(self._view.inodes[(fh & ~_HOLDS) >> 1])
        return self.fsyncdir()

    async def _hold(self, inode: Inode) -> None:
        await self._waiter.hold(inode.ino, inode.mtime)
        self.upkeep.unsettled.discard(inode.ino)

    def fsyncdir(self) -> Answer:
        group = self._volume.quiesce()
        return None if group is None or group.done else self._waiter.committed(group)

    # -- directories ------------------------------------------------------------------------

    def opendir(self, ino: int) -> Answer:
        """The kernel may use and keep a listing for one handle of a directory at a time, as long as
        that is open. It looks whether names have changed only where a listing begins: a second one
        would go on, halfway, in what the first one had begun to read before they did."""
        inode = self._view.inode(ino)
        fh = self._next_directory
        self._next_directory = fh + 1
        inode.handles += 1
        self._directories[fh] = _Directory(inode)
        alone = self._collecting.setdefault(ino, fh) == fh
        flags = wire.KEEP_CACHE | wire.CACHE_DIR if alone else wire.KEEP_CACHE
        return wire.OPEN_OUT.pack(fh, flags, 0)

    def readdir(self, fh: int, offset: int, size: int) -> Answer:
        directory, view = self._directories[fh], self._view
        inode = directory.inode
        inodes = view.inodes
        entries = view.directory(inode.ino).entries if not inode.orphan_epoch else {}
        assert entries is not None
        listing = directory.listing
        if offset == 0 or listing is None:
            listing = directory.listing = positions.in_order(list(entries.items()))
        reply = replies.Listing(size)
        if offset == 0:
            reply.add_dot(b".", inode.ino, positions.DOT)
        if offset <= positions.DOT:
            reply.add_dot(b"..", view.parent_of(inode), positions.DOTS)
        for position, name, packed in positions.after(listing, offset):
            if entries.get(name) != packed:
                continue  # it went since the directory was opened
            ino, kind = packed >> 4, packed & 15
            child = inodes.get(ino)
            if child is None or child.damaged:
                try:
                    child = view.inode(ino)
                except PosixError:
                    if not reply.add(name, replies.unreadable(ino, kind), ino, kind, position):
                        break
                    continue
            if not reply.add(name, child.attr or replies.entry(child), ino, kind, position):
                break
            child.nlookup += 1
        answer = reply.reply()
        if not answer:  # the end: who starts again and gets here may have been told of newer names
            directory.listing = None
        return answer

    def releasedir(self, fh: int) -> Answer:
        inode = self._directories.pop(fh).inode
        if self._collecting.get(inode.ino) == fh:
            del self._collecting[inode.ino]
        inode.handles -= 1
        self._view.release(inode)
        return None
