"""The ordinary file system's side: its tree can be recorded, and made anew from a record."""

from __future__ import annotations

import fcntl
import mmap
import os
import shutil
import stat
from typing import NamedTuple

from tests.fuzz.side import Facts, Side, read_range, segments


class Saved(NamedTuple):
    """One path of a record. data: (start, bytes) of a file, holes left out; None of another name
    of a file that comes earlier. times: (atime, mtime) in ns."""

    facts: Facts
    times: tuple[int, int]
    data: list[tuple[int, bytes]] | None


Record = dict[str, Saved]


class Twin(Side):
    """The tree that a mount's is compared with."""

    def record(self) -> Record:
        """All of the tree, as it is now."""
        out: Record = {}
        for path, facts in self.look().items():
            status = os.lstat(self.at(path))
            data = None
            if stat.S_ISREG(facts.mode) and facts.group == path:
                data = self._data(path)
            out[path] = Saved(facts, (status.st_atime_ns, status.st_mtime_ns), data)
        return out

    def _data(self, path: str) -> list[tuple[int, bytes]]:
        fd = os.open(self.at(path), os.O_RDONLY)
        try:
            return [(start, read_range(fd, start, end)) for start, end in segments(fd)]
        finally:
            os.close(fd)

    def rebuild(self, record: Record, again: dict[int, str]) -> None:
        """Make the tree that was recorded, of new inodes.

        again: by the number of a handle (mappings: -1 - number) the path of the inode that it is
        open on in the restored tree. All other handles keep what they have, which has no name now.
        """
        self._clear()
        for path, saved in record.items():
            self._make(path, saved)
        for number, path in again.items():
            self._reopen(number, path)
        for path, saved in reversed(record.items()):
            os.utime(self.at(path), ns=saved.times, follow_symlinks=False)

    def _clear(self) -> None:
        for name in os.listdir(self.top):
            path = self.at(name)
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)
        for name in os.listxattr(self.top):
            os.removexattr(self.top, name)

    def _make(self, path: str, saved: Saved) -> None:
        facts, full = saved.facts, self.at(path)
        if facts.group != path:
            os.link(self.at(facts.group), full, follow_symlinks=False)
            return
        if stat.S_ISLNK(facts.mode):
            os.symlink(facts.target, full)
        elif saved.data is not None:
            with open(full, "xb", buffering=0) as file:
                for start, content in saved.data:
                    os.pwrite(file.fileno(), content, start)
                os.ftruncate(file.fileno(), facts.size)
        elif stat.S_ISDIR(facts.mode):
            if path:
                os.mkdir(full)
        else:
            os.mknod(full, facts.mode, facts.rdev)
        os.chown(full, facts.uid, facts.gid, follow_symlinks=False)
        if not stat.S_ISLNK(facts.mode):
            os.chmod(full, stat.S_IMODE(facts.mode))
        for name, value in facts.xattrs:
            os.setxattr(full, name, value, follow_symlinks=False)

    def _reopen(self, number: int, path: str) -> None:
        if number >= 0:
            self._put(self.handles[number], path)
            return
        mapping, fd = self.maps[-1 - number]
        length = len(mapping)
        mapping.close()
        self._put(fd, path)
        size = os.fstat(fd).st_size
        os.ftruncate(fd, max(size, length))
        self.maps[-1 - number] = mmap.mmap(fd, length), fd
        os.ftruncate(fd, size)

    def _put(self, fd: int, path: str) -> None:
        """Have a descriptor refer to another file, opened like the one before, at its offset."""
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        offset = 0
        if stat.S_ISREG(os.fstat(fd).st_mode) and not flags & os.O_PATH:
            offset = os.lseek(fd, 0, os.SEEK_CUR)
        new = os.open(self.at(path), flags | os.O_NOFOLLOW)
        os.dup2(new, fd, inheritable=False)
        os.close(new)
        if offset:
            os.lseek(fd, offset, os.SEEK_SET)
