"""The kernel's caches: flush them before a checkpoint, correct them after a restore.

Names, attributes and pages are dropped by FUSE notifications. One thing they cannot do: with the
writeback cache the kernel itself keeps size, mtime and ctime of a regular file as long as anything
holds the inode, and believes no reply about them. An inode that nobody holds goes away when its
name is invalidated. For one that is held (an open file, a mapping, an inotify watch) the daemon
makes the system calls truncate(2) and utimensat(2) through the mount, as a *ghost*: the handlers
know its thread id and change nothing, while the kernel takes over size and mtime. (ctime it sets
to now; it shows the restored one when the file was closed by all.)

Threading: for the daemon's worker threads; never the FUSE thread, which these calls wait for. At
most one thread at a time.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
import threading
from collections.abc import Callable, Iterator

import pyfuse3

from cowfs.mount.loop import Loop
from cowfs.volume.history import Invalidation

log = logging.getLogger(__name__)

_libc = ctypes.CDLL(None, use_errno=True)


class Kernel:
    """The kernel's side of one mount."""

    def __init__(self, loop: Loop, mountpoint: str) -> None:
        self._loop = loop
        self._mountpoint = os.fsencode(mountpoint)

    def flush(self) -> None:
        """Write all dirty pages and times back: syncfs(2) on the mount. Raises OSError.

        `pyfuse3.syncfs` would hold the GIL that the FUSE thread needs to serve the writes.
        """
        fd = os.open(self._mountpoint, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if _libc.syncfs(fd) != 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code))
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def stranding(self) -> Iterator[None]:
        """While it lasts, paths that lead to inodes that a restore took away are looked up anew."""
        operations = self._loop.operations
        operations.stranding = True
        try:
            yield
        finally:
            operations.stranding = False

    def invalidate(self, invalidation: Invalidation) -> None:
        """When this returns, no process sees a stale name, attribute or page (contract 3)."""
        for parent, name in invalidation.names:
            _notify(pyfuse3.invalidate_entry, parent, name)
        for ino in invalidation.inodes:
            _notify(pyfuse3.invalidate_inode, ino)
        if invalidation.files:
            self._correct_held(invalidation.files)

    def _correct_held(self, files: list[tuple[int, int, bytes]]) -> None:
        view = self._loop.volume.main

        def still_held() -> list[tuple[bytes, int, int, int]]:
            """(path, size, atime, mtime) of those the kernel has not forgotten."""
            out = []
            for ino, parent, name in files:
                inode = view.inodes.get(ino)
                if inode is None or not inode.nlookup or inode.orphan_epoch:
                    continue
                above = view.snapshot.directory_path(parent)
                if above is not None:
                    path = above + b"/" + name if above else name
                    out.append((path, inode.size, inode.atime, inode.mtime))
            return out

        held = self._loop.call(still_held)
        if not held:
            return
        ghosts, me = self._loop.operations.ghosts, threading.get_native_id()
        root = os.open(self._mountpoint, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        ghosts.add(me)
        try:
            for path, size, atime, mtime in held:
                try:
                    _correct(root, path, size, atime, mtime)
                except OSError as error:
                    log.warning("the kernel keeps old size or times of %r: %s", path, error)
        finally:
            ghosts.discard(me)
            os.close(root)


def _correct(root: int, path: bytes, size: int, atime: int, mtime: int) -> None:
    """Make the kernel take over size and mtime of one file, if it shows others."""
    shown = os.stat(path, dir_fd=root, follow_symlinks=False)
    if shown.st_size != size:
        place = b"/proc/self/fd/%d/%s" % (root, path)
        try:
            os.truncate(place, size)
        except PermissionError:
            os.chmod(path, 0o600, dir_fd=root)
            os.truncate(place, size)
        _notify(pyfuse3.invalidate_inode, shown.st_ino)
    if shown.st_size != size or shown.st_mtime_ns != mtime:
        os.utime(path, ns=(atime, mtime), dir_fd=root, follow_symlinks=False)
        _notify(pyfuse3.invalidate_inode, shown.st_ino, True)


def _notify(fn: Callable[..., None], *args: object) -> None:
    """A notification about something that the kernel may have forgotten meanwhile."""
    try:
        fn(*args)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ENOTEMPTY):
            raise
