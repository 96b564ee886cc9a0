"""Holding writers off, so that what happens to several files is one moment.

Every write(2) takes the inode's lock, and the kernel keeps that lock while it waits for the answer
to fsync(2) or truncate(2). So a ghost makes such a call, and the daemon answers when it is done:

- For a checkpoint, fsync(2): when the daemon is asked, everything written before is here.
- For a restore, truncate(2). The kernel takes the new size from the answer, and drops the old
  pages, before it lets go of the lock: a writer that waited goes on at the restored size. It must
  have written the dirty pages back first. It does that, under the same lock, for a call that
  changes the mode, and a truncation changes the mode of a file with a setuid bit: a ghost that
  holds is shown one (notify_change in fs/attr.c and fuse_do_setattr in fs/fuse/dir.c of Linux).

  A file whose size stays is held by fsync(2) for a restore too: then its pages can be dropped
  before the lock is let go of, and what they are made to write back first is ignored.

Who opens a file to write meanwhile is parked (upkeep.Parking). Stores to shared mappings take
no lock and are not held off.

Threading: for the daemon's worker threads.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from cowfs.mount.device import Device
from cowfs.mount.ghosts import Ghosts, Hidden
from cowfs.mount.loop import Loop
from cowfs.store.lineage import Lineage
from cowfs.store.snapshot import Snapshot
from cowfs.volume.history import Swapped

log = logging.getLogger(__name__)

T = TypeVar("T")

_HOLD_SECONDS = 1.0
"""How long to wait for all files to be held; what comes is done all the same."""
_DROP_SECONDS = 0.1
_TRIES = 20
_CAPABILITY_VERSION_3 = 0x20080522
_CAP_FSETID = 4
_libc = ctypes.CDLL(None, use_errno=True)


class Holder:
    """Holds the writers of one mount."""

    def __init__(self, loop: Loop, ghosts: Ghosts) -> None:
        self._loop = loop
        self._operations = loop.operations
        self._ghosts = ghosts

    def at_one_moment(self, fn: Callable[[], T]) -> T:
        """Run `fn` in the FUSE thread when everything that was written before is here, and nothing
        that is written after; of as many open files as the loop can hold."""
        loop = self._loop
        at_once = loop.call(lambda: None if self._operations.writers() else [fn()])
        if at_once:
            return at_once[0]

        def finish() -> T:
            try:
                return fn()
            finally:
                let_go()

        def let_go() -> None:
            loop.end_hold()
            loop.end_parking()

        with self._ghosts.alone() as hidden:
            # Only now: a parked creation keeps its directory locked, perhaps the one above.
            writers = loop.call(lambda: loop.begin_hold(None))
            threads: list[threading.Thread] = []
            try:
                for ino in writers:
                    threads.append(self._start(self._flush, hidden, ino))
                self._wait(threads)
                return loop.call(finish)
            except BaseException:
                loop.call(let_go)  # no thread could be started, perhaps
                raise
            finally:
                for thread in threads:
                    thread.join()

    def switch(
        self, fn: Callable[[], Swapped], among: set[int], after: Lineage
    ) -> tuple[Swapped, set[int]]:
        """Run a restore in the FUSE thread; also returns the inodes about which the kernel has been
        told everything. Others of `among` cannot be opened for writing until `Loop.end_parking`,
        and what the kernel writes back of their times is ignored (`Upkeep.unsettled`)."""
        loop, upkeep = self._loop, self._operations.upkeep
        inodes = loop.volume.main.inodes

        def begin() -> dict[int, bool]:
            then = Snapshot(loop.volume.reader, after)
            return {ino: _keeps_size(then, ino, inodes[ino].size) for ino in loop.begin_hold(among)}

        def swap() -> tuple[Swapped, set[int]]:
            sizes = {ino: inodes[ino].size for ino in loop.held}
            swapped = fn()
            upkeep.outdated = set(swapped.invalidation.names)
            upkeep.unsettled = set(swapped.invalidation.files)
            held = upkeep.unsettled & sizes.keys()
            upkeep.dropping = {ino for ino in held if inodes[ino].size == sizes[ino]}
            return swapped, {ino for ino in held if ino in upkeep.dropping or not same[ino]}

        def end() -> None:
            upkeep.dropping = set()
            loop.end_hold()

        with self._ghosts.alone() as hidden:
            same = loop.call(begin)
            threads: list[threading.Thread] = []
            try:
                for ino, stays in same.items():
                    threads.append(self._start(self._flush if stays else self._resize, hidden, ino))
                self._wait(threads)
                swapped, settled = loop.call(swap)
                _drop_pages(loop.device, {ino for ino in upkeep.dropping if same[ino]})
                _drop_soon(loop.device, {ino for ino in upkeep.dropping if not same[ino]})
            finally:
                loop.call(end)
                for thread in threads:
                    thread.join()
        return swapped, settled

    def _start(
        self, hold: Callable[[Hidden, int], None], hidden: Hidden, ino: int
    ) -> threading.Thread:
        def run() -> None:
            try:
                with self._ghosts.haunting():
                    hold(hidden, ino)
            except OSError as error:
                log.info("inode %d is not held: %s", ino, error)

        thread = threading.Thread(target=run, name=f"cowfs-hold-{ino}", daemon=True)
        thread.start()
        return thread

    def _wait(self, threads: list[threading.Thread]) -> None:
        deadline = time.monotonic() + _HOLD_SECONDS
        while (
            len(self._loop.held) < sum(thread.is_alive() for thread in threads)
            and time.monotonic() < deadline
        ):
            time.sleep(0.0002)

    def _flush(self, hidden: Hidden, ino: int) -> None:
        with hidden.name(ino) as name:
            with self._ghosts.holding():
                fd = hidden.open(name)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
            self._correct_times(hidden, name, ino)

    def _resize(self, hidden: Hidden, ino: int) -> None:
        _drop_fsetid()
        with hidden.name(ino) as name:
            with self._ghosts.holding():
                self._truncate(hidden, name)
            self._correct_times(hidden, name, ino)

    def _correct_times(self, hidden: Hidden, name: bytes, ino: int) -> None:
        """Where a restore changed them."""
        times, shown = self._loop.call(lambda: (self._times(ino), self._loop.held.get(ino)))
        if times is None or shown is None or times[1] == shown:
            return
        try:
            now = os.stat(name, dir_fd=hidden.fd, follow_symlinks=False)
            if now.st_mtime_ns == shown:  # else a writer has gone on
                os.utime(name, ns=times, dir_fd=hidden.fd, follow_symlinks=False)
        finally:
            self._loop.call(lambda: self._mark_stale(ino))

    def _mark_stale(self, ino: int) -> None:
        """The kernel shows a ctime of its own: until the file is closed, which it may have been
        meanwhile (FUSE thread)."""
        upkeep, inode = self._operations.upkeep, self._loop.volume.main.inodes.get(ino)
        if inode is not None and inode.handles:
            upkeep.stale.add(ino)
        else:
            upkeep.on_closed(ino)

    def _truncate(self, hidden: Hidden, name: bytes) -> None:
        """By the path, since the close of a descriptor would wait for the lock once more. The size
        does not matter."""
        for _ in range(_TRIES):
            os.stat(
                name, dir_fd=hidden.fd, follow_symlinks=False
            )  # shows the kernel the setuid bit
            try:
                os.truncate(hidden.place(name), 0)
            except BlockingIOError:  # somebody looked at the file in between
                continue
            return
        raise OSError(errno.EAGAIN, "the kernel does not see its setuid bit")

    def _times(self, ino: int) -> tuple[int, int] | None:
        """(atime, mtime) of an inode (FUSE thread)."""
        inode = self._loop.volume.main.inodes.get(ino)
        return None if inode is None else (inode.atime, inode.mtime)


def _keeps_size(then: Snapshot, ino: int, size: int) -> bool:
    """An inode that will have no name goes on as it is."""
    record = then.inode(ino)
    return record is None or record.size == size


def _drop_pages(device: Device, inodes: set[int]) -> None:
    """Drop the pages of held files whose size stays; the kernel does it where the size changes.

    A page that was stored to through a mapping is written back first.
    """
    for ino in inodes:
        device.invalidate_inode(ino)


def _drop_soon(device: Device, inodes: set[int]) -> None:
    """The same where truncate(2) holds: then writing back has to wait for the end of the hold, so
    there is a limit to this."""
    if inodes:
        thread = threading.Thread(target=_drop_pages, args=(device, inodes), daemon=True)
        thread.start()
        thread.join(_DROP_SECONDS)


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Data(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


def _drop_fsetid() -> None:
    """The calling thread may no longer keep setuid bits when it truncates (capabilities(7))."""
    header, data = _Header(_CAPABILITY_VERSION_3, 0), (_Data * 2)()
    if _libc.capget(ctypes.byref(header), data) != 0:
        raise OSError(ctypes.get_errno(), "capget")
    data[0].effective &= ~(1 << _CAP_FSETID)
    if _libc.capset(ctypes.byref(header), data) != 0:
        raise OSError(ctypes.get_errno(), "capset")
