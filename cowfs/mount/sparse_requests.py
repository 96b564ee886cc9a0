"""Requests about sparse files: fallocate(2), and where data and holes are (lseek(2)).

For fallocate the kernel keeps the file locked, sends what it has of a range that shall become
zeros, sets times and takes setuid bits away by itself, as for a write.

For lseek it only keeps the file locked: what was written may still be in its page cache, where the
daemon sees a hole. Only a file that is open for writing has such pages (`Serving.writers`); of one,
the kernel is told to drop what it has of a seeming hole, which makes it send what was written
there. Linux before 6.16 does not wait for pages that are on their way already; there the answer
for a file that is open for writing is ENOSYS, upon which the kernel takes all files of this mount
for data, for good, without asking again.

Threading: the FUSE thread. What has to wait for the kernel or a commit is a coroutine.
"""

from __future__ import annotations

import errno
import os

from cowfs.format.audit import CUT
from cowfs.mount import wire
from cowfs.mount.file_requests import FileRequests
from cowfs.mount.requests import Answer
from cowfs.volume import sparse
from cowfs.volume.inode import Inode


class SparseRequests(FileRequests):
    """The handlers for the room that open files take, beside those of reading and writing."""

    def fallocate(self, fh: int, offset: int, length: int, mode: int, pid: int) -> Answer:
        """ENOSPC when what is missing of the range would not fit now, though nothing is reserved;
        holes may be made in a full store."""
        inode = self._view.inodes[fh >> 1]
        if not mode & sparse.PUNCH_HOLE:
            self._volume.require_room()
            needed = sparse.missing(self._view, inode, offset, length)
            if not self._volume.has_room(needed):
                return self._allocate_later(inode, offset, length, mode, pid, needed)
        self._allocate(inode, offset, length, mode, pid)
        return None

    async def _allocate_later(
        self, inode: Inode, offset: int, length: int, mode: int, pid: int, needed: int
    ) -> None:
        await self._room(needed)
        self._allocate(inode, offset, length, mode, pid)

    def _allocate(self, inode: Inode, offset: int, length: int, mode: int, pid: int) -> None:
        size = inode.size
        sparse.allocate(self._view, inode, mode, offset, length)
        if mode & ~sparse.KEEP_SIZE or inode.size != size:
            self._audit.changed(pid, inode, CUT)

    def lseek(self, fh: int, offset: int, whence: int) -> Answer:
        if offset < 0:
            return errno.ENXIO
        inode = self._view.inodes[fh >> 1]
        hole = sparse.hole(self._view, inode, offset)
        if inode.ino in self._writers and (whence == os.SEEK_HOLE or hole[0] == offset):
            if not self._waiter.gets_pages:
                return errno.ENOSYS
            return self._seek_when_sent(inode, offset, whence, hole)
        return wire.LSEEK_OUT.pack(sparse.seek(inode, offset, whence, hole))

    async def _seek_when_sent(
        self, inode: Inode, offset: int, whence: int, hole: tuple[int, int | None]
    ) -> bytes:
        while True:
            await self._waiter.pages_sent(inode.ino, *hole)
            again = sparse.hole(self._view, inode, offset)
            if again[0] == hole[0] or whence == os.SEEK_DATA:
                return wire.LSEEK_OUT.pack(sparse.seek(inode, offset, whence, again))
            hole = again
