"""The base directory: listings with fingerprints, and file content.

The directory is reached through a descriptor that was opened before anything was mounted over it.
It is only read here (contract 6); service/apply.py writes it.

What changed in this very tick of the clock can change once more, or be changed in the workspace,
without its times showing it (git calls that racily clean). So a look at such a thing waits until
the tick is over and is repeated: every later change has later times than what was seen.

Threading: `scan` may run in any thread; the descriptor cache belongs to the volume's thread.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from cowfs.volume.posix import outlive, storable

STAGING = b".cowfs-apply"
"""Directory in the base where `apply` keeps moved and new things until they are in place."""
_OPEN_FILES = 128
_LOOKS = 3
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PLACE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""To reach what is in a directory: needs no right to list it."""
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class BaseEntry(NamedTuple):
    """One name of a base directory. `st` is its lstat, `target` of a symbolic link."""

    name: bytes
    st: os.stat_result
    target: bytes
    xattrs: dict[bytes, bytes]


Fingerprint = tuple[int, int, int, int, int]


def same_file(st: os.stat_result, seen: Fingerprint) -> bool:
    """Whether nobody wrote or replaced a file since. ctime is left out: a link or a rename changes
    it, and the caller may have made those itself."""
    return fingerprint(st)[:4] == seen[:4]


def fingerprint(st: os.stat_result) -> Fingerprint:
    """(dev, ino, size, mtime, ctime): equal as long as nobody changed the file."""
    mtime, ctime = storable(st.st_mtime_ns), storable(st.st_ctime_ns)
    return st.st_dev, st.st_ino, st.st_size, mtime, ctime


def place(fd: int) -> str:
    """A path of what a descriptor is open on, for calls that take no O_PATH descriptor. It leads
    to the thing itself, a symbolic link too (proc(5), /proc/pid/fd)."""
    return f"/proc/self/fd/{fd}"


class Base:
    """The directory that a workspace was made from."""

    def __init__(self, fd: int) -> None:
        """`fd`: the open directory; it stays the caller's to close."""
        self.fd = fd
        self._files: OrderedDict[int, int] = OrderedDict()

    def open_directory(self, path: bytes) -> int:
        """A descriptor of a directory below the base, to list it; no component may be a symbolic
        link."""
        above = self._open_place(path.rpartition(b"/")[0]) if path else self.fd
        try:
            return os.open(path.rpartition(b"/")[2] or b".", _DIRECTORY, dir_fd=above)
        finally:
            if path:
                os.close(above)

    def _open_place(self, path: bytes) -> int:
        """The same for what is in the directory."""
        fd = os.open(b".", _PLACE, dir_fd=self.fd)
        for part in path.split(b"/") if path else ():
            try:
                below = os.open(part, _PLACE, dir_fd=fd)
            finally:
                os.close(fd)
            fd = below
        return fd

    def scan(self, path: bytes) -> list[BaseEntry]:
        """Everything in one directory, sorted by name. Raises OSError (ENOENT, EACCES, ...)."""
        return _settled(lambda: self._scan(path))

    def _scan(self, path: bytes) -> list[BaseEntry]:
        fd = self.open_directory(path)
        try:
            out = []
            with os.scandir(fd) as entries:
                for entry in entries:
                    if not path and os.fsencode(entry.name) == STAGING:
                        continue
                    try:
                        st = entry.stat(follow_symlinks=False)
                        out.append(_entry(fd, os.fsencode(entry.name), st))
                    except FileNotFoundError:
                        continue
        finally:
            os.close(fd)
        out.sort()
        return out

    def root(self) -> BaseEntry:
        """The directory itself."""
        place = b"/proc/self/fd/%d/." % self.fd
        return _settled(lambda: [BaseEntry(b"", os.fstat(self.fd), b"", read_xattrs(place))])[0]

    def lookup(self, path: bytes) -> BaseEntry | None:
        """One entry, None when it is not there."""
        found = _settled(lambda: self._lookup(path))
        return found[0] if found else None

    def _lookup(self, path: bytes) -> list[BaseEntry]:
        directory, _, name = path.rpartition(b"/")
        try:
            fd = self._open_place(directory)
        except (FileNotFoundError, NotADirectoryError):
            return []
        try:
            return [_entry(fd, name, os.stat(name, dir_fd=fd, follow_symlinks=False))]
        except FileNotFoundError:
            return []
        finally:
            os.close(fd)

    def stat(self, path: bytes) -> os.stat_result | None:
        """lstat of one entry, None when it is not there: the cheap part of `lookup`."""
        try:
            return os.stat(path, dir_fd=self.fd, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
        found = self.lookup(path)
        return found.st if found is not None else None

    def open_file(self, path: bytes) -> int:
        """A descriptor of a regular file. Raises OSError."""
        directory, _, name = path.rpartition(b"/")
        fd = self._open_place(directory)
        try:
            return os.open(name, _FILE, dir_fd=fd)
        finally:
            os.close(fd)

    def cached_file(self, content: int, path: bytes, expected: Fingerprint) -> int | None:
        """A descriptor of the base file behind a content, None when it is another file now."""
        fd = self._files.get(content)
        if fd is not None:
            if not same_file(os.fstat(fd), expected):
                self.forget(content)
                return None
            self._files.move_to_end(content)
            return fd
        try:
            fd = self.open_file(path)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO):
                return None
            raise
        if not same_file(os.fstat(fd), expected):
            os.close(fd)
            return None
        self._files[content] = fd
        if len(self._files) > _OPEN_FILES:
            os.close(self._files.popitem(last=False)[1])
        return fd

    def forget(self, content: int | None = None) -> None:
        """Close the cached descriptor of one content, or all of them."""
        if content is None:
            for fd in self._files.values():
                os.close(fd)
            self._files.clear()
        elif content in self._files:
            os.close(self._files.pop(content))


def _settled(look: Callable[[], list[BaseEntry]]) -> list[BaseEntry]:
    """What a look finds when nothing changed in the tick before it. Where somebody changes things
    all the time it is what is there after a few ticks."""
    found = look()
    for _ in range(_LOOKS):
        if not any(outlive(entry.st.st_ctime_ns) for entry in found):
            break
        found = look()
    return found


def _entry(fd: int, name: bytes, st: os.stat_result) -> BaseEntry:
    target = os.readlink(name, dir_fd=fd) if stat.S_ISLNK(st.st_mode) else b""
    place = b"/proc/self/fd/%d/%s" % (fd, name)
    return BaseEntry(name, st, target, read_xattrs(place))


def read_xattrs(path: bytes, *, follow: bool = False) -> dict[bytes, bytes]:
    """Extended attributes of a path itself; {} where the file system has none.

    follow: of what it leads to, for /proc/self/fd/N.
    """
    try:
        names = os.listxattr(path, follow_symlinks=follow)
        return {
            os.fsencode(name): os.getxattr(path, name, follow_symlinks=follow) for name in names
        }
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.ENODATA, errno.ENOENT, errno.EACCES, errno.EPERM):
            return {}
        raise
