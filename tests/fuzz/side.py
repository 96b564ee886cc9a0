"""One directory tree and the system calls made on it: a mount's, or an ordinary file system's.

Both sides get the same calls with the same arguments; what a call returns is made comparable.
A time is compared only if a call has set it: such times lie before `SET_TIMES`, and the clock's
after it.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import random
import stat
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.mount.calls import AT_SYMLINK_FOLLOW, fallocate, linkat, renameat2

SET_TIMES = 10**18
"""Nanoseconds (in 2001): explicit times are below, the clock's above."""
_WHOLE = 1 << 20
"""Files up to this size are read whole."""
_WINDOW = 1 << 16
_PIECE = 1 << 17
_libc = ctypes.CDLL(None, use_errno=True)
Step = tuple[Any, ...]
"""Name of a call and its arguments, all plain values."""
ABSENT = "no such handle"


class Facts(NamedTuple):
    """What one path shows. size: 0 of a directory. mtime: 0 when the clock set it. `group`: the
    first path of the same inode. ino: not comparable between file systems."""

    mode: int
    nlink: int
    uid: int
    gid: int
    rdev: int
    size: int
    mtime: int
    target: str
    xattrs: tuple[tuple[str, bytes], ...]
    group: str
    ino: int


def content_of(seed: int, size: int) -> bytes:
    """The bytes that a step with this seed writes: zeros for 0."""
    return random.Random(seed).randbytes(size) if seed else bytes(size)


def set_time(mtime_ns: int) -> int:
    """A time, or 0 when it is the clock's."""
    return mtime_ns if mtime_ns < SET_TIMES else 0


class Side:
    """One tree. `handles`: open files and directories by number. `maps`: shared mappings, each
    with a descriptor of its own, by number."""

    def __init__(self, top: str) -> None:
        self.top = top
        self.handles: dict[int, int] = {}
        self.maps: dict[int, tuple[mmap.mmap, int]] = {}

    def at(self, path: str) -> str:
        return f"{self.top}/{path}" if path else self.top

    def do(self, step: Step) -> Any:
        """The outcome of a call: what it returns, or the name of its errno."""
        name, *arguments = step
        call: Callable[..., Any] = getattr(self, "do_" + name)
        try:
            return call(*arguments)
        except KeyError:
            return ABSENT
        except OSError as error:
            return errno.errorcode.get(error.errno or 0, "?")

    def close_all(self) -> None:
        """Close every handle and mapping."""
        for number in list(self.maps):
            self.do_unmap(number)
        for number in list(self.handles):
            self.do_close(number)

    # -- handles --------------------------------------------------------------------------------

    def _keep(self, number: int, fd: int) -> None:
        old = self.handles.pop(number, None)
        self.handles[number] = fd
        if old is not None:
            os.close(old)

    def do_open(self, number: int, path: str, flags: int, mode: int) -> None:
        self._keep(number, os.open(self.at(path), flags, mode))

    def do_openat(self, number: int, directory: int, name: str, flags: int, mode: int) -> None:
        self._keep(number, os.open(name, flags, mode, dir_fd=self.handles[directory]))

    def do_dup(self, number: int, other: int) -> None:
        self._keep(number, os.dup(self.handles[other]))

    def do_close(self, number: int) -> None:
        os.close(self.handles.pop(number))

    def do_pread(self, number: int, offset: int, size: int) -> bytes:
        return os.pread(self.handles[number], size, offset)

    def do_read(self, number: int, size: int) -> bytes:
        return os.read(self.handles[number], size)

    def do_lseek(self, number: int, offset: int, whence: int) -> int | None:
        fd = self.handles[number]
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            return None  # what a directory's offset means is the file system's affair
        return os.lseek(fd, offset, whence)

    def do_pwrite(self, number: int, offset: int, size: int, seed: int) -> int:
        return os.pwrite(self.handles[number], content_of(seed, size), offset)

    def do_write(self, number: int, size: int, seed: int) -> int | None:
        fd = self.handles[number]
        if stat.S_ISFIFO(os.fstat(fd).st_mode):
            return None  # it would set the mtime, but on FUSE the kernel never does that
        return os.write(fd, content_of(seed, size))

    def do_ftruncate(self, number: int, size: int) -> None:
        os.ftruncate(self.handles[number], size)

    def do_fallocate(self, number: int, mode: int, offset: int, size: int) -> None:
        fallocate(self.handles[number], mode, offset, size)

    def do_tmpfile(self, number: int, directory: str, flags: int, mode: int) -> None:
        self._keep(number, os.open(self.at(directory), flags | os.O_TMPFILE, mode))

    def do_name(self, number: int, path: str) -> None:
        """Give a name to what a handle is open on."""
        linkat(f"/proc/self/fd/{self.handles[number]}", self.at(path), AT_SYMLINK_FOLLOW)

    def do_fsync(self, number: int) -> None:
        os.fsync(self.handles[number])

    def do_fdatasync(self, number: int) -> None:
        os.fdatasync(self.handles[number])

    def do_fstat(self, number: int) -> Any:
        return _status(os.fstat(self.handles[number]))

    def do_fchmod(self, number: int, mode: int) -> None:
        os.fchmod(self.handles[number], mode)

    def do_fchown(self, number: int, uid: int, gid: int) -> None:
        os.fchown(self.handles[number], uid, gid)

    def do_futimens(self, number: int, atime: int, mtime: int) -> Any:
        fd = self.handles[number]
        os.utime(fd, ns=(atime, mtime))
        return _times(os.fstat(fd))

    def do_fsetxattr(self, number: int, name: str, value: bytes) -> None:
        os.setxattr(self.handles[number], name, value)

    def do_flist(self, number: int) -> list[str]:
        return sorted(os.listdir(self.handles[number]))

    def do_unlinkat(self, number: int, name: str) -> None:
        os.unlink(name, dir_fd=self.handles[number])

    def do_copy_range(self, source: int, target: int, size: int, start: int, to: int) -> int:
        return os.copy_file_range(self.handles[source], self.handles[target], size, start, to)

    def do_direct(self, path: str, offset: int, seed: int) -> Any:
        """Read a page with O_DIRECT, then with a seed write one."""
        fd = os.open(self.at(path), os.O_RDWR | os.O_DIRECT | os.O_NONBLOCK)
        page = mmap.mmap(-1, mmap.PAGESIZE)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return None
            got = os.preadv(fd, [page], offset)
            found = page[:got]
            if seed:
                page[:] = content_of(seed, mmap.PAGESIZE)
                return found, os.pwritev(fd, [page], offset)
            return found
        finally:
            page.close()
            os.close(fd)

    # -- mappings -------------------------------------------------------------------------------

    def do_map(self, number: int, handle: int) -> int:
        """Map a whole file."""
        fd = os.dup(self.handles[handle])
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or not 0 < status.st_size <= _WHOLE:
                os.close(fd)
                return 0
            mapping = mmap.mmap(fd, status.st_size)
        except BaseException:
            os.close(fd)
            raise
        self._unmap(number)
        self.maps[number] = mapping, fd
        return status.st_size

    def _unmap(self, number: int) -> None:
        if number in self.maps:
            mapping, fd = self.maps.pop(number)
            mapping.close()
            os.close(fd)

    def do_unmap(self, number: int) -> None:
        self._unmap(number)

    def _mapped(self, number: int, offset: int, size: int) -> tuple[mmap.mmap, int, int]:
        """A mapping and the part of a range in it that is in the file, too (else SIGBUS)."""
        mapping, fd = self.maps[number]
        size_now = min(len(mapping), os.fstat(fd).st_size)
        offset = min(offset, size_now)
        return mapping, offset, min(offset + size, size_now)

    def do_map_read(self, number: int, offset: int, size: int) -> bytes:
        mapping, start, end = self._mapped(number, offset, size)
        return mapping[start:end]

    def do_map_write(self, number: int, offset: int, size: int, seed: int, sync: bool) -> int:
        """Write to a mapping. Whether that changes the mtime depends on when the kernel last
        cleaned the page: the clock's time is set in any case."""
        mapping, start, end = self._mapped(number, offset, size)
        mapping[start:end] = content_of(seed, end - start)
        if sync:
            mapping.flush()
        os.utime(self.maps[number][1])
        return end - start

    # -- paths ----------------------------------------------------------------------------------

    def do_truncate(self, path: str, size: int) -> None:
        """truncate(2). To the size that a file has, POSIX leaves open whether it sets the mtime;
        ext4 does, FUSE does not."""
        full = self.at(path)
        if stat.S_ISREG(os.stat(full).st_mode) and os.stat(full).st_size == size:
            return
        os.truncate(full, size)

    def do_rename(self, old: str, new: str, flags: int) -> None:
        if flags:
            renameat2(self.at(old), self.at(new), flags)
        else:
            os.rename(self.at(old), self.at(new))

    def do_link(self, old: str, new: str) -> None:
        os.link(self.at(old), self.at(new), follow_symlinks=False)

    def do_unlink(self, path: str) -> None:
        os.unlink(self.at(path))

    def do_rmdir(self, path: str) -> None:
        os.rmdir(self.at(path))

    def do_mkdir(self, path: str, mode: int) -> None:
        os.mkdir(self.at(path), mode)

    def do_mknod(self, path: str, mode: int) -> None:
        os.mknod(self.at(path), mode, os.makedev(1, 3))

    def do_symlink(self, target: str, path: str) -> None:
        os.symlink(target, self.at(path))

    def do_readlink(self, path: str) -> str:
        return os.readlink(self.at(path))

    def do_chmod(self, path: str, mode: int) -> None:
        os.chmod(self.at(path), mode)

    def do_chown(self, path: str, uid: int, gid: int, follow: bool) -> None:
        os.chown(self.at(path), uid, gid, follow_symlinks=follow)

    def do_utimensat(self, path: str, atime: int, mtime: int, follow: bool) -> Any:
        os.utime(self.at(path), ns=(atime, mtime), follow_symlinks=follow)
        return _times(os.stat(self.at(path), follow_symlinks=follow))

    def do_touch(self, path: str) -> None:
        os.utime(self.at(path))

    def do_setxattr(self, path: str, name: str, value: bytes, flags: int) -> None:
        os.setxattr(self.at(path), name, value, flags, follow_symlinks=False)

    def do_removexattr(self, path: str, name: str) -> None:
        os.removexattr(self.at(path), name, follow_symlinks=False)

    def do_getxattr(self, path: str, name: str) -> bytes:
        return os.getxattr(self.at(path), name)

    def do_listxattr(self, path: str) -> list[str]:
        return sorted(os.listxattr(self.at(path)))

    def do_list(self, path: str) -> list[str]:
        return sorted(os.listdir(self.at(path)))

    def do_stat(self, path: str, follow: bool) -> Any:
        return _status(os.stat(self.at(path), follow_symlinks=follow))

    def do_access(self, path: str, mode: int) -> bool:
        return os.access(self.at(path), mode)

    def do_save(self, path: str, size: int, seed: int) -> None:
        """What an editor does: a new file, flushed, renamed over the old one."""
        temporary = self.at(path) + "~"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            os.write(fd, content_of(seed, size))
            os.fsync(fd)
        finally:
            os.close(fd)
        try:
            os.rename(temporary, self.at(path))
        except OSError:
            os.unlink(temporary)
            raise

    def do_syncfs(self) -> None:
        fd = os.open(self.top, os.O_RDONLY)
        try:
            if _libc.syncfs(fd) != 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code))
        finally:
            os.close(fd)

    # -- looking at all of it -------------------------------------------------------------------

    def look(self) -> dict[str, Facts]:
        """Every path ("" is the top) without the content of files."""
        out: dict[str, Facts] = {}
        groups: dict[int, str] = {}
        for path in self.kinds():
            full = self.at(path)
            status = os.lstat(full)
            link = stat.S_ISLNK(status.st_mode)
            names = sorted(os.listxattr(full, follow_symlinks=False))
            mode, nlink, uid, gid, rdev, size, mtime = _status(status)
            out[path] = Facts(
                mode,
                nlink,
                uid,
                gid,
                rdev,
                size,
                mtime,
                os.readlink(full) if link else "",
                tuple((n, os.getxattr(full, n, follow_symlinks=False)) for n in names),
                groups.setdefault(status.st_ino, path),
                status.st_ino,
            )
        return out

    def exactly(self) -> dict[str, tuple[Any, ...]]:
        """Every path with all that it shows, but for content and atime: to be compared only with
        the same side at another time. The last two are ctime and inode number."""
        out = {}
        for path, facts in self.look().items():
            status = os.lstat(self.at(path))
            times = status.st_mtime_ns, status.st_ctime_ns
            out[path] = (*facts[:6], facts.target, facts.xattrs, *times, status.st_ino)
        return out

    def kinds(self) -> dict[str, int]:
        """Every path, sorted, with its type (stat.S_IFMT); "" is the top."""
        out: dict[str, int] = {"": stat.S_IFDIR}
        pending = [""]
        while pending:
            path = pending.pop()
            with os.scandir(self.at(path)) as entries:
                for entry in entries:
                    below = f"{path}/{entry.name}" if path else entry.name
                    out[below] = stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode)
                    if out[below] == stat.S_IFDIR:
                        pending.append(below)
        return dict(sorted(out.items()))


def _status(status: os.stat_result) -> tuple[int, int, int, int, int, int, int]:
    """mode, nlink, uid, gid, rdev, size, set mtime: what does not depend on the file system.

    The mtime of a removed directory: what it had in it when it went is not comparable.
    """
    directory = stat.S_ISDIR(status.st_mode)
    return (
        status.st_mode,
        status.st_nlink,
        status.st_uid,
        status.st_gid,
        status.st_rdev,
        0 if directory else status.st_size,
        set_time(status.st_mtime_ns) if status.st_nlink or not directory else 0,
    )


def _times(status: os.stat_result) -> tuple[int, int]:
    return status.st_atime_ns, status.st_mtime_ns


def ranges(fd: int) -> list[tuple[int, int]]:
    """(start, end) of what is worth reading in a file: all of a small one; of a large one what is
    not a hole, with something around it. `fd` belongs to a file system that knows its holes."""
    size = os.fstat(fd).st_size
    if size <= _WHOLE:
        return [(0, size)]
    out: list[tuple[int, int]] = [(0, _WINDOW)]
    for start, end in segments(fd):
        start, end = max(start - _WINDOW, 0), min(end + _WINDOW, size)
        if start <= out[-1][1]:
            out[-1] = out[-1][0], max(out[-1][1], end)
        else:
            out.append((start, end))
    out.append((max(size - _WINDOW, out[-1][1]), size))
    return out


def segments(fd: int) -> list[tuple[int, int]]:
    """(start, end) of a file's data; holes left out."""
    out: list[tuple[int, int]] = []
    at, offset = 0, os.lseek(fd, 0, os.SEEK_CUR)
    try:
        while True:
            start = os.lseek(fd, at, os.SEEK_DATA)
            at = os.lseek(fd, start, os.SEEK_HOLE)
            out.append((start, at))
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
    finally:
        os.lseek(fd, offset, os.SEEK_SET)
    return out


def read_range(fd: int, start: int, end: int) -> bytes:
    """Bytes of a file, fewer when it ends before."""
    pieces = []
    while start < end:
        piece = os.pread(fd, min(end - start, _PIECE), start)
        if not piece:
            break
        pieces.append(piece)
        start += len(piece)
    return b"".join(pieces)
