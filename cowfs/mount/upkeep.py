"""What requests are answered otherwise while the daemon looks after the kernel's caches.

Threading: changed by the daemon's worker threads, read by the FUSE thread; each change is one
operation on one attribute.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable

from cowfs.format.audit import CUT, MODE, OWNER, TIMES
from cowfs.mount import wire

GHOSTS_NAME = b".cowfs-ghosts-" + secrets.token_hex(16).encode()
"""A directory below the root that only ghosts can look up; in it every inode number is a name.
Nobody can guess it: what the kernel keeps of a name that others looked up or made, the absence of
it or a symbolic link, holds for ghosts, too."""


def what_is_set(valid: int) -> int:
    """What a process sets, as bits of `Operation.what` (format/audit.py)."""
    what = CUT if valid & wire.SET_SIZE else 0
    if valid & wire.SET_MODE:
        what |= MODE
    if valid & (wire.SET_UID | wire.SET_GID):
        what |= OWNER
    if valid & (wire.SET_ATIME | wire.SET_MTIME):
        what |= TIMES
    return what


class Parking:
    """Who may not begin to write for a moment.

    A checkpoint (`among` is None) stops whoever opens a file for writing or creates one; those who
    have one open, `held`, are stopped at the file. A restore stops who opens one of the files that
    it may change, `among`; not with O_TRUNC, by which the kernel learns the size anyhow, and which
    keeps the file locked until it is answered.
    """

    __slots__ = ("_among", "_held")

    def __init__(self, held: set[int], among: set[int] | None) -> None:
        self._held = held
        self._among = among

    def stops_create(self) -> bool:
        return self._among is None

    def stops_open(self, ino: int, flags: int) -> bool:
        if flags & os.O_ACCMODE == os.O_RDONLY or ino in self._held:
            return False
        return self._among is None or (ino in self._among and not flags & os.O_TRUNC)


class Upkeep:
    """The state of that work.

    ghosts: thread ids whose `setattr` calls change nothing here; the daemon uses them to correct
    what the kernel keeps of an inode (mount/ghosts.py).
    holders: ghosts whose fsync(2) or truncate(2) is answered when an operation is done; the kernel
    lets nobody write to the inode meanwhile (mount/holding.py).
    parking: whose opening for writing waits, while it is not None.
    opened: inodes of which ghosts are shown a mode that lets the owner read and write, since a
    daemon without privileges is checked by the kernel like anybody.
    announcing: ghosts are causing events for watchers.
    appearing: names that ghosts do not see and then "make", for watchers (mount/watchers.py).
    stale: held inodes that a restore corrected; `on_closed` is told when no one holds one any more.
    stranding: a restore is telling the kernel; inodes that went are answered ESTALE, so that the
    kernel looks their paths up again.
    outdated: (directory, name) that a restore gave another meaning, of which the kernel may have
    the old one. Who removes, renames or makes such a name is answered ESTALE, so that the kernel
    looks it up again: it would take what was removed for what it knew under that name.
    unsettled: files that a restore changed and of which the kernel may still have the old times;
    when it writes those back they are ignored.
    refused: files of which something was refused that the kernel sent; it still shows that, until
    `on_refused`, which is told of the first of them, has made it drop the pages.
    dropping: files that nobody can write(2) to and whose pages the kernel is told to drop; what it
    writes back of them is from before, or was stored to a mapping meanwhile, and is ignored.
    """

    def __init__(self) -> None:
        self.ghosts: set[int] = set()
        self.holders: set[int] = set()
        self.parking: Parking | None = None
        self.opened: set[int] = set()
        self.announcing = False
        self.appearing: set[tuple[int, bytes]] = set()
        self.stale: set[int] = set()
        self.on_closed: Callable[[int], None] = lambda ino: None
        self.refused: set[int] = set()
        self.on_refused: Callable[[int], None] = lambda ino: None
        self.stranding = False
        self.outdated: set[tuple[int, bytes]] = set()
        self.unsettled: set[int] = set()
        self.dropping: set[int] = set()
