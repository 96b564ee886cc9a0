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
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue

import pyfuse3

from cowfs.mount.loop import Loop, LoopEndedError
from cowfs.mount.operations import GHOST_PREFIX
from cowfs.mount.watchers import (
    announce_gone,
    announce_new,
    watched_inodes,
    working_directories,
)
from cowfs.tree.announcing import Announcement
from cowfs.types import ROOT_INO
from cowfs.volume.history import Audience, Invalidation

log = logging.getLogger(__name__)

_MOST_HELD = 128
"""Files that are held at the same time; each needs a worker of the FUSE loop."""
_HOLD_SECONDS = 1.0
_FORGET_TRIES = 20
_libc = ctypes.CDLL(None, use_errno=True)


class Kernel:
    """The kernel's side of one mount."""

    def __init__(self, loop: Loop, mountpoint: str, watch_limit: int) -> None:
        """`watch_limit`: how many names a restore announces to watchers one by one."""
        self._watch_limit = watch_limit
        self._loop = loop
        self._mountpoint = os.fsencode(mountpoint)
        self._lock = threading.Lock()
        self._settled: set[int] = set()
        self._closed: SimpleQueue[int | None] = SimpleQueue()
        loop.operations.on_closed = self._closed.put
        self._evictor = threading.Thread(target=self._evict, name="cowfs-evictor", daemon=True)
        self._evictor.start()

    def close(self) -> None:
        """End the evictor thread."""
        self._closed.put(None)
        self._evictor.join()

    def _evict(self) -> None:
        """Files that were corrected while they were held show a ctime of the kernel's own; when
        the last handle is closed the kernel is made to forget them."""
        while (ino := self._closed.get()) is not None:
            closed = ino
            try:
                view = self._loop.volume.main
                for parent, name in self._loop.call(lambda: view.snapshot.links(closed)):  # noqa: B023
                    _notify(pyfuse3.invalidate_entry, parent, name)
            except (LoopEndedError, OSError) as error:
                log.info("inode %d stays in the kernel's cache: %s", closed, error)

    def flush(self) -> None:
        """Write all dirty pages and times back, and wait until they are here. Raises OSError.

        syncfs(2) writes times back and starts the write-back of pages, but it does not wait for
        the pages of a FUSE mount. Pages can be dirty only while a handle that can write exists
        (a mapping keeps it), and close(2) of any handle waits for all write-back of its inode: so
        each inode with such a handle is opened and closed once. `pyfuse3.syncfs` would hold the GIL
        that the FUSE thread needs to serve the writes.
        """
        root = self._open_root()
        try:
            while _libc.syncfs(root) != 0:
                code = ctypes.get_errno()
                if code != errno.EINTR:
                    raise OSError(code, os.strerror(code))
            writers = self._loop.call(self._loop.operations.writers)
            if writers:
                with self._ghost():
                    for ino in writers:
                        _wait_for_writeback(root, ino)
        finally:
            os.close(root)

    def _open_root(self) -> int:
        return os.open(self._mountpoint, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    @contextlib.contextmanager
    def _ghost(self) -> Iterator[None]:
        """The calling thread is a ghost."""
        ghosts, me = self._loop.operations.ghosts, threading.get_native_id()
        with self._lock:
            ghosts.add(me)
            try:
                yield
            finally:
                ghosts.discard(me)
                opened = self._loop.operations.opened
                while opened:
                    _notify(pyfuse3.invalidate_inode, opened.pop(), True)

    @contextlib.contextmanager
    def holding(self, among: set[int] | None = None) -> Iterator[set[int]]:
        """While it lasts, no write(2) to files that are open for writing begins (`among`: only to
        these inodes); everything written before is here. The caller adds the inodes that it changed
        to the set that it is given: of these the kernel gets the new size and drops the old pages
        at the end.

        So a checkpoint is one moment also across files, and no page that was made dirty on top of
        the old state brings old bytes back into a restored file. fsync(2) takes the inode's lock,
        writes its pages and times back and then asks the daemon; as long as that request is not
        answered, writers wait for the lock. (Writers through shared mappings do not take it, and
        above `_MOST_HELD` files the others are not held.)
        """
        writers = self._loop.call(self._loop.operations.writers)
        if among is not None:
            writers = [ino for ino in writers if ino in among]
        changed: set[int] = set()
        if not writers:
            yield changed
            return
        root, over = self._open_root(), threading.Event()
        self._loop.call(self._loop.begin_hold)
        threads = [
            threading.Thread(target=self._hold, args=(root, ino, over), daemon=True)
            for ino in writers[:_MOST_HELD]
        ]
        try:
            for thread in threads:
                thread.start()
            deadline = time.monotonic() + _HOLD_SECONDS
            while (
                len(self._loop.held) < sum(thread.is_alive() for thread in threads)
                and time.monotonic() < deadline
            ):
                time.sleep(0.0002)
            yield changed
            self._settled = self._loop.held & changed
            for ino in self._settled:
                _notify(pyfuse3.invalidate_inode, ino)
        finally:
            right = self._loop.call(lambda: self._right_ones(self._loop.held & changed))
            self._loop.call(self._loop.end_hold)
            # Writers that were waiting go on with the old size until this is done. What they wrote
            # beyond the new one is cut off before a close of a holder would write it back.
            if right:
                self._correct_all(root, right)
            over.set()
            for thread in threads:
                thread.join()
            os.close(root)

    def _hold(self, root: int, ino: int, over: threading.Event) -> None:
        """The thread that holds one inode."""
        operations, me = self._loop.operations, threading.get_native_id()
        operations.ghosts.add(me)
        operations.holders.add(me)
        try:
            with _hidden_name(root, ino) as name:
                fd = _open_hidden(root, name)
                try:
                    os.fsync(fd)
                    over.wait()
                finally:
                    os.close(fd)
        except OSError as error:
            log.info("inode %d is not held: %s", ino, error)
        finally:
            operations.holders.discard(me)
            operations.ghosts.discard(me)

    @contextlib.contextmanager
    def stranding(self) -> Iterator[None]:
        """While it lasts, paths that lead to inodes that a restore took away are looked up anew."""
        operations = self._loop.operations
        operations.stranding = True
        try:
            yield
        finally:
            operations.stranding = False

    def audience(self) -> Audience:
        """Who watches something on this mount."""
        device = os.stat(self._mountpoint).st_dev
        return Audience(frozenset(watched_inodes(device)), self._watch_limit)

    def invalidate(self, invalidation: Invalidation) -> None:
        """When this returns, no process sees a stale name, attribute or page (contract 3)."""
        told = invalidation.announcement
        if told is not None:
            self._announce_gone(told)
        names = list(invalidation.names)
        running = self._running(invalidation.files)
        if running:
            names += self._loop.call(lambda: self._loop.operations.renew(running))
        for parent, name in names:
            _notify(pyfuse3.invalidate_entry, parent, name)
        for ino in invalidation.inodes:
            if ino not in running and ino not in self._settled:
                _notify(pyfuse3.invalidate_inode, ino)
        if told is not None:
            self._announce_new(told)
        if invalidation.files:
            done = running | self._settled
            self._correct_held([ino for ino in invalidation.files if ino not in done])
        self._settled = set()

    def _announce_gone(self, told: Announcement) -> None:
        used = working_directories(os.fsdecode(self._mountpoint)) if told.gone else set()
        root = self._open_root()
        try:
            with self._ghost():
                dead = announce_gone(root, told, used)
        finally:
            os.close(root)
        if dead:
            self._loop.call(lambda: self._loop.operations.bury(dead))

    def _announce_new(self, told: Announcement) -> None:
        operations = self._loop.operations
        operations.appearing.update((a.parent, a.name) for a in told.appeared)
        root = self._open_root()
        try:
            with self._ghost():
                announce_new(root, told)
        finally:
            operations.appearing.clear()
            os.close(root)
        # The calls left the kernel with times of its own and perhaps with absent names.
        for appeared in told.appeared:
            _notify(pyfuse3.invalidate_entry, appeared.parent, appeared.name)
        for modified in told.modified:
            _notify(pyfuse3.invalidate_entry, modified.parent, modified.name)

    def _right_ones(self, files: Iterable[int]) -> list[tuple[int, int, int, int, int]]:
        """(inode, size, atime, mtime, ctime) of those the kernel still has (FUSE thread)."""
        found = (self._loop.volume.main.inodes.get(ino) for ino in files)
        return [
            (i.ino, i.size, i.atime, i.mtime, i.ctime)
            for i in found
            if i is not None and i.nlookup and not i.orphan_epoch
        ]

    def _correct_held(self, files: list[int]) -> None:
        right = self._loop.call(lambda: self._right_ones(files))
        if right:
            root = self._open_root()
            try:
                self._correct_all(root, right)
            finally:
                os.close(root)

    def _correct_all(self, root: int, right: list[tuple[int, int, int, int, int]]) -> None:
        stale = self._loop.operations.stale
        with self._ghost():
            for ino, size, atime, mtime, ctime in right:
                try:
                    if _correct(root, ino, size, atime, mtime):
                        stale.add(ino)
                    self._forget_unheld(root, ino, ctime)
                except OSError as error:
                    log.warning("old size or times of inode %d stay: %s", ino, error)

    def _forget_unheld(self, root: int, ino: int, ctime: int) -> None:
        """A look-up that ran meanwhile may have kept an inode in the kernel that nobody holds, with
        a ctime of the kernel's own: make the kernel forget it. Normally the first look is right."""
        view = self._loop.volume.main
        for _ in range(_FORGET_TRIES):
            with _hidden_name(root, ino) as name:
                if os.stat(name, dir_fd=root, follow_symlinks=False).st_ctime_ns == ctime:
                    return

            def names() -> list[tuple[int, bytes]]:
                inode = view.inodes.get(ino)
                return [] if inode is None or inode.handles else view.snapshot.links(ino)

            links = self._loop.call(names)
            if not links:
                self._loop.operations.stale.add(ino)
                return
            for parent, last in links:
                _notify(pyfuse3.invalidate_entry, parent, last)

    def _running(self, files: list[int]) -> set[int]:
        """Those of the files that are programs which run now: nobody may open them for writing."""
        inodes = self._loop.volume.main.inodes

        def programs() -> list[int]:
            found = (inodes.get(ino) for ino in files)
            return [i.ino for i in found if i is not None and i.handles and i.mode & 0o111]

        candidates = self._loop.call(programs)
        running = set()
        if candidates:
            root = self._open_root()
            try:
                with self._ghost():
                    running = {ino for ino in candidates if _is_running(root, ino)}
            finally:
                os.close(root)
        return running


@contextlib.contextmanager
def _hidden_name(root: int, ino: int) -> Iterator[bytes]:
    """A name by which a ghost reaches an inode; the kernel forgets it afterwards."""
    name = GHOST_PREFIX + b"%d" % ino
    try:
        yield name
    finally:
        _notify(pyfuse3.invalidate_entry, ROOT_INO, name)


def _is_running(root: int, ino: int) -> bool:
    with _hidden_name(root, ino) as name:
        try:
            os.close(os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=root))
        except OSError as error:
            return error.errno == errno.ETXTBSY
    return False


def _wait_for_writeback(root: int, ino: int) -> None:
    """Return when everything that was written to an inode is here."""
    with _hidden_name(root, ino) as name:
        try:
            os.close(_open_hidden(root, name))
        except OSError as error:
            if error.errno == errno.EWOULDBLOCK:
                log.info("inode %d is leased: its pages were not waited for", ino)
            elif error.errno not in (errno.ENOENT, errno.ESTALE):
                raise  # else the inode is gone: its last handle was closed, which waited as well


def _open_hidden(root: int, name: bytes) -> int:
    """Open an inode whatever its mode is: a ghost's chmod(2) changes only what the kernel shows."""
    flags = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    for mode in (os.O_RDONLY, os.O_WRONLY):
        try:
            return os.open(name, mode | flags, dir_fd=root)
        except PermissionError:
            continue
    os.chmod(name, 0o600, dir_fd=root)
    return os.open(name, os.O_RDONLY | flags, dir_fd=root)


def _correct(root: int, ino: int, size: int, atime: int, mtime: int) -> bool:
    """Make the kernel take over size and mtime of one file; False when it shows them already."""
    with _hidden_name(root, ino) as name:
        shown = os.stat(name, dir_fd=root, follow_symlinks=False)
        if shown.st_size != size:
            place = b"/proc/self/fd/%d/%s" % (root, name)
            try:
                os.truncate(place, size)
            except PermissionError:
                os.chmod(name, 0o600, dir_fd=root)
                os.truncate(place, size)
            _notify(pyfuse3.invalidate_inode, ino)
        if shown.st_size == size and shown.st_mtime_ns == mtime:
            return False
        os.utime(name, ns=(atime, mtime), dir_fd=root, follow_symlinks=False)
        _notify(pyfuse3.invalidate_inode, ino, True)
        return True


def _notify(fn: Callable[..., None], *args: object) -> None:
    """A notification about something that the kernel may have forgotten meanwhile."""
    try:
        fn(*args)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ENOTEMPTY):
            raise
