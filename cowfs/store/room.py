"""How much a store can still take, and what it keeps back for the time when the disk is full.

The *reserve* is a file of `RESERVE_BYTES` beside the data file, allocated and never written. A
commit that fails for lack of room gives it up, and is then tried again: so deleting, a checkpoint
and unmounting work on a full disk. New data is refused from then on, until there is room for the
reserve again; free pages inside the data file count as room.

Threading: `Reserve` belongs to whoever has the store open for writing: its opener, then the writer
thread.
"""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import dataclass, field
from pathlib import Path

RESERVE_BYTES = 4 << 20
SLACK_BYTES = 1 << 20
"""Room that is not given away: for the trees of LMDB and of the file system below it. With less
than this, a commit that fails has failed for lack of room: LMDB reports a write that was cut short
as an I/O error."""


def is_full(error: Exception) -> bool:
    """Whether a failed commit means that there is no room: the disk, a quota of the system or of
    files' sizes (ulimit -f), or the map of LMDB is full."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    text = str(error)
    return any(word in text for word in _FULL)


_FULL = ("MDB_MAP_FULL", *map(os.strerror, (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)))


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes. used: pages of the data file that hold something. inside: free pages that have room on
    the disk. outside: what the file system can still give, for holes and for a longer file, and
    LMDB's map allows. reserved: what is still to be
    kept back of both. quota: the most that may be used, 0 for no limit. left: what may still be
    written, 0 when the store is full; asked at each write."""

    used: int
    inside: int
    outside: int
    reserved: int
    quota: int = 0
    left: int = field(init=False)

    def __post_init__(self) -> None:
        left = self.inside + self.outside - self.reserved - SLACK_BYTES
        if self.quota:
            left = min(left, self.quota - self.used)
        object.__setattr__(self, "left", max(left, 0))

    @property
    def limited_by_quota(self) -> bool:
        """Whether it is the quota that leaves nothing."""
        return bool(self.quota) and self.used >= self.quota


class Reserve:
    """The reserve of one store."""

    def __init__(self, store: Path) -> None:
        self._path = store / "reserve"
        try:
            self.held = self._path.stat().st_blocks * 512 >= RESERVE_BYTES
        except OSError:
            self.held = False

    def take(self, free: int) -> None:
        """Allocate it when `free` bytes of disk are enough for it and some more."""
        if self.held or free < RESERVE_BYTES + SLACK_BYTES:
            return
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return  # no inode left, perhaps; works without
        try:
            os.posix_fallocate(fd, 0, RESERVE_BYTES)
            self.held = True
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                with contextlib.suppress(OSError):
                    os.ftruncate(fd, 0)
        finally:
            os.close(fd)

    def give_up(self) -> bool:
        """Free its room; False when there was none."""
        if not self.held:
            return False
        self.held = False
        try:
            # The name stays: where inodes are short, too, it can be taken again.
            os.truncate(self._path, 0)
        except OSError:
            return False
        return True
