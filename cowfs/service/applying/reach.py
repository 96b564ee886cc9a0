"""How an apply reaches things in the base: directory by directory, never through a symbolic link.

A thing is opened first (O_PATH), looked at, and changed by that descriptor only: whatever happens
to its name meanwhile, nothing else is changed.

Directories and files that their owner has closed to itself are opened by a daemon of that owner.
Each gets the mode that it shall have when the apply ends.

Threading: for the thread of the apply.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Iterator

from cowfs.volume.base import Base, place

_THING = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = _THING | os.O_DIRECTORY
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


def keeps_owner_out(mode: int, uid: int) -> bool:
    """Whether we, as the owner, cannot look up names in a directory of that mode."""
    return uid == os.geteuid() != 0 and not mode & stat.S_IXUSR


def let_in(fd: int) -> None:
    """Let its owner look up, make and remove names in a directory."""
    _allow(fd, stat.S_IRWXU)


def _allow(fd: int, wanted: int) -> None:
    st = os.fstat(fd)
    if st.st_uid == os.geteuid() != 0 and wanted & ~st.st_mode:
        os.chmod(place(fd), stat.S_IMODE(st.st_mode) | wanted)


def sync_file_system(fd: int) -> None:
    """syncfs(2) of the file system that something open is on. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syncfs(fd) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


class Reach:
    """Opens things below the base by their paths. `b""` or `b"."` is the base itself."""

    def __init__(self, base: Base) -> None:
        self._base = base

    def directory(self, path: bytes) -> int:
        """An O_PATH descriptor of a directory. Raises OSError."""
        fd = os.dup(self._base.fd)
        for part in path.split(b"/") if path else ():
            try:
                below = _open(part, _DIRECTORY, fd)
            finally:
                os.close(fd)
            fd = below
        return fd

    @contextlib.contextmanager
    def parent(self, path: bytes) -> Iterator[tuple[int, bytes]]:
        """(descriptor of the directory, name)."""
        directory, _, name = path.rpartition(b"/")
        fd = self.directory(directory)
        try:
            yield fd, name
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def changing(self, path: bytes) -> Iterator[tuple[int, bytes]]:
        """As `parent`, to make or to remove the name."""
        with self.parent(path) as (fd, name):
            let_in(fd)
            yield fd, name

    def lstat(self, path: bytes) -> os.stat_result | None:
        """None when there is nothing."""
        try:
            with self.thing(path) as (_, st):
                return st
        except (FileNotFoundError, NotADirectoryError):
            return None

    @contextlib.contextmanager
    def thing(self, path: bytes) -> Iterator[tuple[int, os.stat_result]]:
        """(descriptor, stat) of whatever lies there. Raises OSError."""
        with self.parent(path) as (above, name):
            fd = os.dup(above) if name in (b"", b".") else _open(name, _THING, above)
        try:
            yield fd, os.fstat(fd)
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def readable(self, path: bytes) -> Iterator[int]:
        """As `open_file`; closed at the end."""
        file = self.open_file(path)
        try:
            yield file
        finally:
            os.close(file)

    def open_file(self, path: bytes) -> int:
        """A descriptor to read a regular file, also one that its owner may not read: its mode is
        another one for a moment. Raises OSError."""
        with self.thing(path) as (fd, st):
            if not stat.S_ISREG(st.st_mode):
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            try:
                return os.open(place(fd), _READ)
            except PermissionError:
                _allow(fd, stat.S_IRUSR)
                try:
                    return os.open(place(fd), _READ)
                finally:
                    os.chmod(place(fd), stat.S_IMODE(st.st_mode))


def _open(name: bytes, flags: int, above: int) -> int:
    try:
        return os.open(name, flags, dir_fd=above)
    except PermissionError:
        let_in(above)
        return os.open(name, flags, dir_fd=above)
