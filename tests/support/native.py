"""The kernel's own file system, with the calls of `volumes.Rig`: what errnos are right."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from pathlib import Path

from tests.support.volumes import FILE

_libc = ctypes.CDLL(None, use_errno=True)


class Native:
    """A directory of an ordinary file system."""

    def __init__(self, top: Path) -> None:
        self._top = os.fsencode(top)

    def _at(self, path: bytes) -> bytes:
        return self._top + b"/" + path

    def create(self, path: bytes, content: bytes = b"", *, mode: int = FILE, rdev: int = 0) -> None:
        if not stat.S_ISREG(mode):
            os.mknod(self._at(path), mode, rdev)
            return
        fd = os.open(self._at(path), os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode & 0o7777)
        os.write(fd, content)
        os.close(fd)

    def mkdir(self, path: bytes) -> None:
        os.mkdir(self._at(path))

    def symlink(self, target: bytes, path: bytes) -> None:
        os.symlink(target, self._at(path))

    def link(self, path: bytes, new: bytes) -> None:
        os.link(self._at(path), self._at(new), follow_symlinks=False)

    def unlink(self, path: bytes) -> None:
        os.unlink(self._at(path))

    def rmdir(self, path: bytes) -> None:
        os.rmdir(self._at(path))

    def rename(self, path: bytes, new: bytes, flags: int = 0) -> None:
        here = -100  # AT_FDCWD
        if _libc.renameat2(here, self._at(path), here, self._at(new), flags) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def names(self) -> dict[bytes, tuple[int, int, int]]:
        """Path to (type, link count, and a number that is equal for names of one inode)."""
        out: dict[bytes, tuple[int, int, int]] = {}
        seen: dict[int, int] = {}
        for directory, below, files in os.walk(self._top):
            for name in sorted(below + files):
                path = os.path.join(directory, name)
                st = os.lstat(path)
                relative = os.path.relpath(path, self._top)
                out[relative] = (stat.S_IFMT(st.st_mode), st.st_nlink, st.st_ino)
        for path in sorted(out):
            kind, nlink, ino = out[path]
            out[path] = (kind, nlink, seen.setdefault(ino, len(seen)))
        return out


def native_errno(call: object, *args: object, **kwargs: object) -> int:
    """The errno with which a system call fails; 0 when it succeeds."""
    assert callable(call)
    try:
        call(*args, **kwargs)
    except OSError as error:
        return error.errno or errno.EIO
    return 0
