"""Ghosts: threads of the daemon that make system calls through the mount.

The handlers know a ghost's thread id and change nothing for it, while the kernel takes over what
the call would have done to its own copy of an inode. A ghost reaches an inode without knowing a
path: the hidden directory `GHOSTS_NAME`, which only ghosts find, has every inode number for a name.
What a ghost holds on to in there locks no directory that anyone else uses.

Threading: for the daemon's worker threads; never the FUSE thread, which these calls wait for.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager

from cowfs.mount.device import Device
from cowfs.mount.loop import Loop
from cowfs.mount.nodes import GHOSTS_INO
from cowfs.mount.upkeep import GHOSTS_NAME
from cowfs.mounts import place_of, top_mount

_DIRECTORY = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Hidden:
    """The hidden directory, open: `fd`."""

    def __init__(self, fd: int, device: Device) -> None:
        self.fd = fd
        self._device = device

    @contextlib.contextmanager
    def name(self, ino: int) -> Iterator[bytes]:
        """The name of an inode in it; the kernel forgets it afterwards."""
        name = b"%d" % ino
        try:
            yield name
        finally:
            self._device.invalidate_entry(GHOSTS_INO, name)

    def place(self, name: bytes) -> bytes:
        """A path for calls that take no directory descriptor."""
        return b"/proc/self/fd/%d/%s" % (self.fd, name)

    def open(self, name: bytes) -> int:
        """Open an inode whatever its mode is: a ghost's chmod(2) changes only what the kernel
        shows."""
        flags = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        for mode in (os.O_RDONLY, os.O_WRONLY):
            try:
                return os.open(name, mode | flags, dir_fd=self.fd)
            except PermissionError:
                continue
        os.chmod(name, 0o600, dir_fd=self.fd)
        return os.open(name, os.O_RDONLY | flags, dir_fd=self.fd)


class Ghosts:
    """Makes ghosts of threads."""

    def __init__(self, loop: Loop, mountpoint: str) -> None:
        self._device = loop.device
        self._operations = loop.operations
        self._mountpoint = mountpoint
        mount = top_mount(mountpoint)
        self._name = mount.device if mount is not None else "0:0"
        major, _, minor = self._name.partition(":")
        self._number = os.makedev(int(major), int(minor))
        self._lock = threading.Lock()

    @property
    def device(self) -> int:
        """The mount's st_dev."""
        return self._number

    def mountpoint(self) -> str:
        """Where the mount is now. Raises FileNotFoundError."""
        return place_of(self._name, self._mountpoint)

    @contextlib.contextmanager
    def root(self) -> Iterator[int]:
        """A descriptor of the top of the mount."""
        fd = os.open(self.mountpoint(), os.O_RDONLY | _DIRECTORY)
        try:
            self._must_be_ours(fd)
            yield fd
        finally:
            os.close(fd)

    def haunting(self) -> AbstractContextManager[None]:
        """The calling thread is a ghost."""
        return _listed(self._operations.upkeep.ghosts)

    def holding(self) -> AbstractContextManager[None]:
        """The calling ghost is one that the handlers let wait (mount/holding.py)."""
        return _listed(self._operations.upkeep.holders)

    @contextlib.contextmanager
    def alone(self) -> Iterator[Hidden]:
        """The calling thread is a ghost, and no other thread is that comes here."""
        with self._lock, self.haunting(), self._hidden_directory() as hidden:
            try:
                yield hidden
            finally:
                opened = self._operations.upkeep.opened
                while opened:
                    self._device.invalidate_inode(opened.pop(), attributes_only=True)

    @contextlib.contextmanager
    def _hidden_directory(self) -> Iterator[Hidden]:
        path = os.fsencode(self.mountpoint()) + b"/" + GHOSTS_NAME
        fd = os.open(path, os.O_PATH | _DIRECTORY)
        try:
            self._must_be_ours(fd)
            yield Hidden(fd, self._device)
        finally:
            os.close(fd)

    def _must_be_ours(self, fd: int) -> None:
        """A path may lead elsewhere: somebody put something in its way, or mounted it over it.
        Raises OSError(ESTALE)."""
        if os.fstat(fd).st_dev != self._number:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    @contextlib.contextmanager
    def parent(self, root: int, path: bytes) -> Iterator[tuple[int, bytes]]:
        """(descriptor of the directory, name) of a path below `root`, the top of the mount.

        Symbolic links and other mounts are not followed, whatever became of the path meanwhile: a
        ghost's calls change nothing here, but would do so elsewhere. Raises OSError.
        """
        directory, _, name = path.rpartition(b"/")
        fd = os.open(b".", os.O_PATH | _DIRECTORY, dir_fd=root)
        try:
            for part in directory.split(b"/") if directory else ():
                below = os.open(part, os.O_PATH | _DIRECTORY, dir_fd=fd)
                os.close(fd)
                fd = below
            self._must_be_ours(fd)
            yield fd, name or b"."
        finally:
            os.close(fd)


@contextlib.contextmanager
def _listed(threads: set[int]) -> Iterator[None]:
    """The calling thread is in a set of thread ids."""
    me = threading.get_native_id()
    threads.add(me)
    try:
        yield
    finally:
        threads.discard(me)
