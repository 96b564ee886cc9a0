"""The kernel's caches: flush them before a checkpoint, correct them after a restore.

Names, attributes and pages are dropped by FUSE notifications. One thing they cannot do: with the
writeback cache the kernel itself keeps size, mtime and ctime of a regular file as long as anything
holds the inode, and believes no reply about them. An inode that nobody holds goes away when its
name is invalidated. For one that is held (an open file, a mapping, an inotify watch) the daemon
makes the system calls truncate(2) and utimensat(2) through the mount, as a *ghost*: the handlers
know its thread id and change nothing, while the kernel takes over size and mtime. (ctime it sets
to now; it shows the restored one as soon as the file was closed by all. A program that runs can be
corrected by nobody: its names get another inode, by another generation of its node id, and who runs
it keeps the pages that it has.)

A ghost reaches an inode without knowing a path, by a hidden name that only ghosts can look up.

Threading: for the daemon's worker threads; never the FUSE thread, which these calls wait for. What
ghosts do is serialised here.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import NamedTuple, TypeVar

from cowfs.errors import StoreFullError
from cowfs.mount.device import Device
from cowfs.mount.ghosts import Ghosts, Hidden
from cowfs.mount.holding import Holder
from cowfs.mount.loop import Loop, LoopEndedError
from cowfs.mount.nodes import CHECKPOINTS_INO
from cowfs.mount.watchers import (
    Find,
    announce_gone,
    announce_new,
    watched_inodes,
    working_directories,
)
from cowfs.store.lineage import Lineage
from cowfs.tree.announcing import Announcement
from cowfs.volume.history import Audience, Invalidation, Swapped

log = logging.getLogger(__name__)

T = TypeVar("T")

_FORGET_TRIES = 20
_libc = ctypes.CDLL(None, use_errno=True)


class _Refused(NamedTuple):
    """An inode of which the kernel has pages that could not be stored."""

    ino: int


class Kernel:
    """The kernel's side of one mount."""

    def __init__(self, loop: Loop, mountpoint: str, watch_limit: int) -> None:
        """`watch_limit`: how many names a restore announces to watchers one by one."""
        self._watch_limit = watch_limit
        self._loop = loop
        self._device = loop.device
        self._ghosts = Ghosts(loop, mountpoint)
        self._holder = Holder(loop, self._ghosts)
        self._closed: SimpleQueue[int | frozenset[int] | str | _Refused | None] = SimpleQueue()
        loop.operations.upkeep.on_closed = self._closed.put
        loop.operations.upkeep.on_refused = lambda ino: self._closed.put(_Refused(ino))
        loop.volume.visits.let_go = self._closed.put
        loop.volume.external.adoption.on_adopted = self._adopted
        self._closing = False
        self._evictor = threading.Thread(target=self._evict, name="cowfs-evictor", daemon=True)
        self._evictor.start()

    def mountpoint(self) -> str:
        """Where the mount is now. Raises FileNotFoundError."""
        return self._ghosts.mountpoint()

    def close(self) -> None:
        """End the evictor thread. What it has not come to is left: the mount is gone, or goes."""
        self._closing = True
        self._closed.put(None)
        self._evictor.join()

    def _evict(self) -> None:
        """Files that were corrected while they were held show a ctime of the kernel's own; when
        the last handle is closed the kernel is made to forget them. And what was adopted from the
        base is shown; what could not be stored is not, any more. Checkpoints that were looked into
        are forgotten by their names below `.cowfs`, as far as nobody holds what is in them
        (volume/browsing.py)."""
        while (item := self._closed.get()) is not None and not self._closing:
            if isinstance(item, frozenset):
                self._show_adopted(item)
                continue
            try:
                if isinstance(item, _Refused):
                    self._loop.operations.upkeep.refused.discard(item.ino)
                    self._device.invalidate_inode(item.ino)
                elif isinstance(item, str):
                    self._device.invalidate_entry(CHECKPOINTS_INO, item.encode())
                else:
                    self._forget_closed(item)
            except (LoopEndedError, OSError) as error:
                log.info("%r stays in the kernel's cache: %s", item, error)

    def _forget_closed(self, ino: int) -> None:
        """Somebody may have opened it again, or be looking at it."""
        for right in self._loop.call(lambda: self._right_ones([ino])):
            with self._ghosts.alone() as hidden:
                self._forget_unheld(hidden, right)

    def _adopted(self, inodes: set[int]) -> None:
        """The base changed these from outside, and the kernel has them (FUSE thread)."""
        self._loop.begin_correction()
        self._closed.put(frozenset(inodes))

    def _show_adopted(self, inodes: frozenset[int]) -> None:
        view = self._loop.volume.main

        def look() -> Invalidation:
            view.recall(inodes)
            known = view.inodes
            found = [known[ino] for ino in inodes if ino in known and known[ino].nlookup]
            files = [inode.ino for inode in found if inode.is_file and not inode.orphan_epoch]
            return Invalidation(inodes=[inode.ino for inode in found], files=files)

        try:
            self._invalidate(self._loop.call(look), set())
        except (LoopEndedError, OSError) as error:
            log.info("the kernel shows old values of %d inodes: %s", len(inodes), error)
        finally:
            self._loop.post(self._loop.end_correction)

    def flush(self) -> None:
        """Write all dirty pages and times back, and wait until they are here.

        What a handler refuses is gone for good; the program that wrote it learns so by fsync(2).
        Raises StoreFullError when it was for lack of room, and then nothing else has happened.

        Both can be dirty only while a handle that can write exists (a mapping keeps it). syncfs(2)
        writes times back and starts the write-back of pages, but it does not wait for the pages of
        a FUSE mount; close(2) of any handle waits for all write-back of its inode: so each inode
        with such a handle is opened and closed once. `pyfuse3.syncfs` would hold the GIL that the
        FUSE thread needs to serve the writes.
        """
        if not self._loop.call(self._loop.operations.writers):
            return
        with self._ghosts.root() as root:
            while _libc.syncfs(root) != 0:
                code = ctypes.get_errno()
                if code != errno.EINTR:
                    self._refused(OSError(code, os.strerror(code)))
                    break
        writers = self._loop.call(self._loop.operations.writers)
        with self._ghosts.alone() as hidden:
            for ino in writers:
                try:
                    _wait_for_writeback(hidden, ino)
                except OSError as error:
                    self._refused(error)

    def _refused(self, error: OSError) -> None:
        """Dirty pages were not taken. Damage of one file is told by that file's errors."""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreFullError(
                path=str(self._loop.volume.store.path),
                detail="what was written to open files does not fit",
            )
        if error.errno != errno.EIO:
            raise error
        log.warning("what was written to an open file could not be taken: %s", error)

    def at_one_moment(self, fn: Callable[[], T]) -> T:
        """Run `fn` in the FUSE thread; contract 2: everything that was written before is here."""
        self.flush()  # so that the hold is short, and for what it does not reach
        return self._holder.at_one_moment(fn)

    def switch(
        self, change: Callable[[Audience], Swapped], among: set[int], after: Lineage
    ) -> Swapped:
        """Run a restore in the FUSE thread. When this returns, no process sees a stale name,
        attribute or page (contract 3). `among`: the inodes that may change; `after`: to what."""
        loop, upkeep = self._loop, self._loop.operations.upkeep
        audience = self._audience()

        def end() -> None:
            upkeep.stranding = False
            upkeep.outdated = set()
            upkeep.unsettled = set()
            loop.end_parking()

        upkeep.stranding = True
        try:
            swapped, settled = self._holder.switch(lambda: change(audience), among, after)
            self._invalidate(swapped.invalidation, settled)
        finally:
            loop.call(end)
        return swapped

    def _audience(self) -> Audience:
        """Who watches something on this mount."""
        watched = watched_inodes(self._ghosts.device)
        return Audience(frozenset(watched), self._watch_limit)

    def _invalidate(self, invalidation: Invalidation, settled: set[int]) -> None:
        """Make the kernel forget what changed; of `settled` it has the size and times."""
        told = invalidation.announcement
        if told is not None:
            self._announce_gone(told)
        names = list(invalidation.names)
        running = self._running(invalidation.files)
        if running:
            names += self._loop.call(lambda: self._loop.operations.renew(running))
        outdated = self._loop.operations.upkeep.outdated
        for parent, name in names:
            self._device.invalidate_entry(parent, name)
            outdated.discard((parent, name))
        for ino in invalidation.inodes:
            if ino not in running:
                self._device.invalidate_inode(ino, attributes_only=ino in settled)
        files = [ino for ino in invalidation.files if ino not in running and ino not in settled]
        if told is not None:
            self._announce_new(told)
            files += [a.ino for a in told.appeared if stat.S_ISREG(a.mode) and a.ino not in settled]
        if files:
            self._correct_all(files)

    def _announce_gone(self, told: Announcement) -> None:
        used = working_directories(self.mountpoint()) if told.gone else set()
        with self._announcing() as find:
            dead = announce_gone(find, told, used)
        if dead:
            self._loop.call(lambda: self._loop.operations.bury(dead))

    def _announce_new(self, told: Announcement) -> None:
        upkeep = self._loop.operations.upkeep
        upkeep.appearing.update((a.parent, a.name) for a in told.appeared)
        try:
            with self._announcing() as find:
                announce_new(find, told)
        finally:
            upkeep.appearing.clear()
        # The calls left the kernel with times of its own and perhaps with absent names.
        names = [(appeared.parent, appeared.name) for appeared in told.appeared]
        names += [(modified.parent, modified.name) for modified in told.modified]
        for parent, name in names:
            self._device.invalidate_entry(parent, name)

    @contextlib.contextmanager
    def _announcing(self) -> Iterator[Find]:
        """The calling thread is a ghost that causes events; yields how it finds paths."""
        upkeep = self._loop.operations.upkeep
        with self._ghosts.alone(), self._ghosts.root() as root:
            upkeep.announcing = True
            try:
                yield partial(self._ghosts.parent, root)
            finally:
                upkeep.announcing = False

    def _correct_all(self, files: list[int]) -> None:
        """Make the kernel take over size and times of those that it still has."""
        upkeep = self._loop.operations.upkeep
        for right in self._loop.call(lambda: self._right_ones(files)):
            with self._ghosts.alone() as hidden:
                try:
                    if not _is_right(hidden, right):
                        # Somebody may have changed it since.
                        for now in self._loop.call(lambda: self._right_ones([right.ino])):  # noqa: B023
                            _correct(self._device, hidden, now)
                            upkeep.stale.add(now.ino)
                    upkeep.unsettled.discard(right.ino)
                    self._forget_unheld(hidden, right)
                except OSError as error:
                    log.warning("old size or times of inode %d stay: %s", right.ino, error)

    def _right_ones(self, files: Iterable[int]) -> list[_Right]:
        """Those the kernel still has (FUSE thread)."""
        view = self._loop.volume.main
        view.recall(files)
        found = (view.inodes.get(ino) for ino in files)
        return [
            _Right(i.ino, i.size, i.atime, i.mtime, i.ctime)
            for i in found
            if i is not None and i.nlookup and not i.orphan_epoch
        ]

    def _forget_unheld(self, hidden: Hidden, right: _Right) -> None:
        """A look-up that ran meanwhile may have kept an inode in the kernel that nobody holds, with
        a ctime of the kernel's own: make the kernel forget it. Normally the first look is right."""
        view, ino, upkeep = self._loop.volume.main, right.ino, self._loop.operations.upkeep
        for _ in range(_FORGET_TRIES):
            with hidden.name(ino) as name:
                shown = os.stat(name, dir_fd=hidden.fd, follow_symlinks=False)
                if shown.st_ctime_ns == right.ctime:
                    return

            def names() -> list[tuple[int, bytes]]:
                view.recall([ino])
                inode = view.inodes.get(ino)
                if inode is not None and inode.handles:
                    upkeep.stale.add(ino)  # here, where no handle can go meanwhile
                    return []
                return view.snapshot.links(ino)

            links = self._loop.call(names)
            if not links:
                return
            for parent, last in links:
                self._device.invalidate_entry(parent, last)

    def _running(self, files: list[int]) -> set[int]:
        """Those of the files that are programs which run now: nobody may open them for writing."""
        inodes = self._loop.volume.main.inodes

        def programs() -> list[int]:
            found = (inodes.get(ino) for ino in files)
            return [i.ino for i in found if i is not None and i.handles and i.mode & 0o111]

        candidates = self._loop.call(programs)
        if not candidates:
            return set()
        with self._ghosts.alone() as hidden:
            return {ino for ino in candidates if _is_running(hidden, ino)}


@dataclass(frozen=True, slots=True)
class _Right:
    """What the kernel should show of a regular file; times in ns."""

    ino: int
    size: int
    atime: int
    mtime: int
    ctime: int


def _is_running(hidden: Hidden, ino: int) -> bool:
    with hidden.name(ino) as name:
        try:
            os.close(os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=hidden.fd))
        except OSError as error:
            return error.errno == errno.ETXTBSY
    return False


def _wait_for_writeback(hidden: Hidden, ino: int) -> None:
    """Return when everything that was written to an inode is here."""
    with hidden.name(ino) as name:
        try:
            os.close(hidden.open(name))
        except OSError as error:
            if error.errno == errno.EWOULDBLOCK:
                log.info("inode %d is leased: its pages were not waited for", ino)
            elif error.errno not in (errno.ENOENT, errno.ESTALE):
                raise  # else the inode is gone: its last handle was closed, which waited as well


def _is_right(hidden: Hidden, right: _Right) -> bool:
    with hidden.name(right.ino) as name:
        shown = os.stat(name, dir_fd=hidden.fd, follow_symlinks=False)
    return shown.st_size == right.size and shown.st_mtime_ns == right.mtime


def _correct(device: Device, hidden: Hidden, right: _Right) -> None:
    """Make the kernel take over size and mtime of one file."""
    with hidden.name(right.ino) as name:
        if os.stat(name, dir_fd=hidden.fd, follow_symlinks=False).st_size != right.size:
            path = hidden.place(name)
            try:
                os.truncate(path, right.size)
            except PermissionError:
                os.chmod(name, 0o600, dir_fd=hidden.fd)
                os.truncate(path, right.size)
            device.invalidate_inode(right.ino)
        times = (right.atime, right.mtime)
        os.utime(name, ns=times, dir_fd=hidden.fd, follow_symlinks=False)
        device.invalidate_inode(right.ino, attributes_only=True)
