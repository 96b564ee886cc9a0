"""System calls that the os module does not have, and processes that act as another user."""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import mmap
import os
import struct
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_libc = ctypes.CDLL(None, use_errno=True)
_AT_FDCWD = -100
AT_SYMLINK_FOLLOW = 0x400
AT_SYMLINK_NOFOLLOW = 0x100
NOREPLACE, EXCHANGE = 1, 2
UTIME_NOW, UTIME_OMIT = (1 << 30) - 1, (1 << 30) - 2
FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE = 1, 2
NOBODY = 65534
PAGE = mmap.PAGESIZE

PathLike = str | bytes | os.PathLike[str]


def _check(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def renameat2(old: PathLike, new: PathLike, flags: int) -> None:
    """renameat2(2) relative to the working directory."""
    _check(_libc.renameat2(_AT_FDCWD, os.fsencode(old), _AT_FDCWD, os.fsencode(new), flags))


def linkat(old: PathLike, new: PathLike, flags: int = 0) -> None:
    """linkat(2) relative to the working directory."""
    _check(_libc.linkat(_AT_FDCWD, os.fsencode(old), _AT_FDCWD, os.fsencode(new), flags))


def fallocate(fd: int, mode: int, offset: int, length: int) -> None:
    """fallocate(2)."""
    _check(_libc.fallocate(fd, mode, ctypes.c_int64(offset), ctypes.c_int64(length)))


def utimensat(path: PathLike, atime: tuple[int, int], mtime: tuple[int, int]) -> None:
    """utimensat(2) with (seconds, nanoseconds), which may be UTIME_NOW or UTIME_OMIT."""
    times = (ctypes.c_int64 * 4)(*atime, *mtime)
    _check(_libc.utimensat(_AT_FDCWD, os.fsencode(path), times, 0))


def getdents(fd: int, room: int = 4096) -> list[bytes]:
    """The names of one getdents64(2), none at the end."""
    buffer = ctypes.create_string_buffer(room)
    size = _check(_libc.getdents64(fd, buffer, ctypes.c_size_t(room)))
    data, names, at = buffer.raw[:size], list[bytes](), 0
    while at < size:
        # struct dirent64: d_ino, d_off (8 bytes each), d_reclen (2), d_type (1), d_name
        (length,) = struct.unpack_from("=H", data, at + 16)
        names.append(data[at + 19 : at + length].split(b"\0", 1)[0])
        at += length
    return names


class DirectoryStream:
    """A DIR of opendir(3): names as readdir(3) returns them, with telldir and seekdir."""

    def __init__(self, path: PathLike) -> None:
        for name, kind in (("opendir", ctypes.c_void_p), ("readdir64", ctypes.c_void_p)):
            getattr(_libc, name).restype = kind
        _libc.telldir.restype = ctypes.c_long
        self._dir = ctypes.c_void_p(_libc.opendir(os.fsencode(path)))
        if self._dir.value is None:
            _check(-1)

    def next(self) -> bytes | None:
        """The next name, None at the end."""
        ctypes.set_errno(0)
        at = _libc.readdir64(self._dir)
        if not at:
            if ctypes.get_errno():
                _check(-1)
            return None
        # struct dirent64: d_ino, d_off (8 bytes each), d_reclen (2), d_type (1), d_name
        return ctypes.string_at(at + 19)

    def rest(self) -> list[bytes]:
        """All names from here, without `.` and `..`."""
        out = []
        while (name := self.next()) is not None:
            if name not in (b".", b".."):
                out.append(name)
        return out

    def tell(self) -> int:
        return int(_libc.telldir(self._dir))

    def seek(self, place: int) -> None:
        _libc.seekdir(self._dir, ctypes.c_long(place))

    def rewind(self) -> None:
        _libc.rewinddir(self._dir)

    def close(self) -> None:
        _check(_libc.closedir(self._dir))


def resident_pages(mapping: mmap.mmap) -> int:
    """How many pages of a mapping are in the page cache (mincore(2)). It must be writable."""
    size = len(mapping)
    vector = (ctypes.c_ubyte * ((size + PAGE - 1) // PAGE))()
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    _check(_libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), vector))
    return sum(page & 1 for page in vector)


def mount_at(source: PathLike, target: PathLike, *, read_only: bool = False) -> None:
    """mount(2) of one directory on another."""
    none = ctypes.c_char_p(None)
    ms_bind, ms_remount, ms_rdonly = 4096, 32, 1
    for flags in (ms_bind, ms_bind | ms_remount | ms_rdonly) if read_only else (ms_bind,):
        _check(
            _libc.mount(os.fsencode(source), os.fsencode(target), none, ctypes.c_ulong(flags), none)
        )


def umount(target: PathLike, *, lazy: bool = False) -> None:
    """umount2(2)."""
    _check(_libc.umount2(os.fsencode(target), 2 if lazy else 0))


def abort(mountpoint: PathLike) -> None:
    """Break off the connection of a FUSE mount (umount2(2) with MNT_FORCE; needs root)."""
    _libc.umount2(os.fsencode(mountpoint), 1)  # it may say that the mount is busy


class Inotify:
    """An inotify(7) instance."""

    MODIFY, ATTRIB, CLOSE_WRITE = 0x2, 0x4, 0x8
    MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x40, 0x80, 0x100, 0x200

    def __init__(self) -> None:
        self.fd = _check(_libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))

    def watch(self, path: PathLike, mask: int = 0xFFF) -> int:
        return _check(_libc.inotify_add_watch(self.fd, os.fsencode(path), mask))

    def events(self) -> list[tuple[int, bytes]]:
        """(mask, name) of what has arrived."""
        try:
            data = os.read(self.fd, 1 << 20)
        except BlockingIOError:
            return []
        out, at = [], 0
        while at < len(data):
            _, mask, _, length = struct.unpack_from("iIII", data, at)
            out.append((mask & 0xFFF, data[at + 16 : at + 16 + length].rstrip(b"\0")))
            at += 16 + length
        return out

    def close(self) -> None:
        os.close(self.fd)


@contextmanager
def opened(path: PathLike, flags: int = os.O_RDONLY, mode: int = 0o666) -> Iterator[int]:
    """A descriptor that is closed at the end."""
    fd = os.open(path, flags, mode)
    try:
        yield fd
    finally:
        os.close(fd)


def read_all(fd: int) -> bytes:
    """The whole file behind a descriptor, whatever its offset is."""
    pieces, at = [], 0
    while piece := os.pread(fd, 1 << 20, at):
        pieces.append(piece)
        at += len(piece)
    return b"".join(pieces)


def errno_of(call: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """The name of the errno with which a call fails, "" when it succeeds."""
    try:
        call(*args, **kwargs)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return ""


class ChildFailedError(AssertionError):
    """What went wrong in a child process, with its traceback."""


def in_child(
    fn: Callable[[], Any], *, uid: int | None = None, groups: tuple[int, ...] = ()
) -> None:
    """Run `fn` in a forked child, as another user if `uid` is given. Raises ChildFailedError."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        failure = ""
        try:
            os.close(reading)
            if uid is not None:
                os.setgroups(list(groups))
                os.setgid(uid)
                os.setuid(uid)
            fn()
        except BaseException:
            failure = traceback.format_exc()
        try:
            os.write(writing, failure.encode()[:65536])
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        failure = pipe.read().decode("utf-8", "replace")
    _, status = os.waitpid(pid, 0)
    if failure:
        raise ChildFailedError(f"in a child process:\n{failure}")
    if status != 0:
        raise ChildFailedError(f"a child process ended with status {status}")


@contextmanager
def child_process(
    command: list[str], *, cwd: PathLike = "/", stdin: PathLike = "/dev/null"
) -> Iterator[int]:
    """A program that runs until the end of the block; its pid."""
    with open(stdin, "rb") as file:
        process = subprocess.Popen(command, cwd=cwd, stdin=file)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def write_file(path: PathLike, data: bytes, mode: int | None = None) -> None:
    """Make or replace the content of a file."""
    with opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as fd:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        if mode is not None:
            os.fchmod(fd, mode)


def eventually(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for what another process does soon. Raises AssertionError when it does not."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.005)


def read_file(path: PathLike) -> bytes:
    """The content of a file."""
    return Path(os.fsdecode(path)).read_bytes()


def drop_caches() -> None:
    """Have the kernel forget what it can: clean pages, dentries, inodes."""
    os.sync()
    if os.geteuid() == 0:
        Path("/proc/sys/vm/drop_caches").write_text("3")
