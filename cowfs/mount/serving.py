"""What all request handlers of the main view need: its state, and how they fail.

Threading: the FUSE thread.
"""

from __future__ import annotations

import errno
import logging
import stat
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import pyfuse3

from cowfs.errors import DamagedRecordError
from cowfs.mount import browsing, replies
from cowfs.mount.browsing import Browsing
from cowfs.mount.nodes import GHOSTS_INO, INO_MASK
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


def guarded(fn: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    """Make a request handler of a plain method.

    A PosixError becomes the request's errno. A damaged record is EIO, and `status` tells of it.
    Anything else is a defect: it is logged and answered with EIO, since an exception that reached
    pyfuse3 would take the whole mount down.
    """

    async def wrapper(self: Serving, *args: Any) -> Any:
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

    async def wrapper(self: Serving, first: int, *args: Any) -> Any:
        try:
            if first > INO_MASK and first < GHOSTS_INO:
                return await browse(self.browsing, first, *args)
            return fn(self, first, *args)
        except Exception as error:
            raise self.failure(fn.__name__, error) from None

    wrapper.__name__ = fn.__name__
    wrapper.__doc__ = fn.__doc__
    return wrapper


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
        self._no_xattr = pyfuse3.FUSEError(errno.ENODATA)

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

    def _entry(self, inode: Inode) -> pyfuse3.EntryAttributes:
        """A reply by which the kernel takes a reference of the inode."""
        inode.nlookup += 1
        return replies.attributes(inode)

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
