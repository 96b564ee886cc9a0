"""What all request handlers of the main view need: its state, and how they fail.

Threading: the FUSE thread.
"""

from __future__ import annotations

import errno
import logging
import stat
from collections.abc import Callable
from typing import Protocol

from cowfs.errors import DamagedRecordError
from cowfs.mount import browsing, replies
from cowfs.mount.browsing import Browsing
from cowfs.mount.nodes import GHOSTS_INO
from cowfs.mount.replies import FOREVER
from cowfs.mount.upkeep import Upkeep
from cowfs.store.env import LmdbError
from cowfs.volume.inode import Inode
from cowfs.volume.posix import PosixError
from cowfs.volume.volume import Volume

log = logging.getLogger(__name__)


class Waiter(browsing.Waiter, Protocol):
    """What a handler can wait for (mount/loop.py)."""

    async def hold(self, ino: int, mtime: int) -> None: ...
    async def park(self) -> None: ...
    @property
    def correcting(self) -> bool: ...
    async def corrected(self) -> None: ...
    @property
    def gets_pages(self) -> bool: ...
    async def pages_sent(self, ino: int, start: int, stop: int | None) -> None: ...


class Serving:
    """One mount, as its handlers see it.

    before_removal: called before a name is removed: directory, name, and 1 for a file.
    """

    def __init__(self, volume: Volume, waiter: Waiter) -> None:
        self._volume = volume
        self._waiter = waiter
        self._view = volume.main
        self._writers: dict[int, int] = {}
        self._handles = 0
        self._audit = volume.audit
        self.upkeep = Upkeep()
        self.browsing = Browsing(volume, waiter)
        self.before_removal: Callable[[int, bytes, int], None] | None = None
        self.requests = 0
        self._absent = replies.absent(replies.FOREVER)
        self._absent_now = replies.absent(0)
        self._ghosts_directory = replies.directory(GHOSTS_INO)

    def failure(self, opcode: int, error: Exception) -> int:
        """The errno that a request is answered with whose handler raised: without an answer its
        caller hangs. A damaged record is EIO, and `status` tells of it. What is no PosixError is a
        defect: it is logged."""
        if isinstance(error, PosixError):
            return error.errno
        if isinstance(error, DamagedRecordError):
            self._volume.problem("damaged", b"", str(error))
        elif isinstance(error, LmdbError):
            self._volume.met_damaged_page(error)
        else:
            log.error("request %d failed", opcode, exc_info=error)
        return errno.EIO

    def _entry(self, inode: Inode) -> bytes:
        """A reply by which the kernel takes a reference of the inode."""
        inode.nlookup += 1
        return inode.attr or replies.entry(inode)

    async def _room(self, size: int) -> None:
        """Return when so many bytes of file data fit. What waits for its commit may take less than
        it seems to. Raises PosixError(ENOSPC)."""
        volume = self._volume
        while not volume.has_room(size):
            group = volume.quiesce()
            if group is None or group.done:
                raise PosixError(errno.ENOSPC)
            await self._waiter.committed(group)

    def writers(self) -> list[int]:
        """Inodes with a handle that can write: only these can have dirty pages."""
        return list(self._writers)

    def _shown_to_ghost(self, inode: Inode, pid: int, *, entry_valid: int = FOREVER) -> bytes:
        """The truth, but for a mode that lets the ghost in, and makes the kernel flush the file
        when a holder truncates it (mount/holding.py). A file that is open for writing cannot be
        executed, so nobody gets another's rights by that setuid bit."""
        bits = 0
        if pid in self.upkeep.holders and inode.ino in self._writers:
            self.upkeep.opened.add(inode.ino)
            bits = stat.S_ISUID
        if inode.ino in self.upkeep.opened:
            bits |= stat.S_IRUSR | stat.S_IWUSR
        return replies.of_inode(inode, inode.ino, inode.mode | bits, entry_valid=entry_valid)
