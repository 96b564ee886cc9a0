"""Bringing an exported directory from one checkpoint to another, whatever was done in it meanwhile.

A survey says what was in the directory when it had been written: type, owner, size, inode number
and times of everything. The ctime of what is touched becomes the time then, and no program can set
it; so what is as in the survey was not touched, if the clock ticked between (`settle`). What was
touched, what came, and what the two checkpoints differ in (by their change records, which name more
than differs) is removed and written anew. So the cost is one lstat(2) for each entry, and beyond
that what differs.

The directory is only ours and that of the commands that ran in it, which have ended: names are not
given to other things meanwhile.

Threading: none of its own.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from cowfs.service.content import Node, Tree, join
from cowfs.service.exporting.directory import Writer
from cowfs.service.exporting.report import silent
from cowfs.tree.changes import touched_between

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_KERNEL_XATTRS = ("security.selinux", "security.ima", "security.evm")
"""The kernel's own: it would not let go of them, and gives them to each file."""
_TICK_SECONDS = 0.001


class NotRenewableError(Exception):
    """The directory must be written anew as a whole."""


class Fact(NamedTuple):
    """What tells whether something was touched. Of a directory without the size."""

    device: int
    ino: int
    mode: int
    uid: int
    gid: int
    size: int
    mtime: int
    ctime: int


class Survey:
    """Everything in a directory. facts: by path; b"" is the directory. atimes: likewise, ns."""

    def __init__(self, top: Path, *, force: bool = False) -> None:
        """force: open directories that are closed to us. Raises OSError."""
        self.facts: dict[bytes, Fact] = {}
        self.atimes: dict[bytes, int] = {}
        self._top = os.fsencode(top)
        self._add(b"", os.lstat(self._top))
        pending = [b""]
        while pending:
            path = pending.pop()
            for name, st in self._entries(path, force):
                below = join(path, name)
                self._add(below, st)
                if stat.S_ISDIR(st.st_mode):
                    pending.append(below)

    def _add(self, path: bytes, st: os.stat_result) -> None:
        size = 0 if stat.S_ISDIR(st.st_mode) else st.st_size
        self.facts[path] = Fact(
            st.st_dev,
            st.st_ino,
            st.st_mode,
            st.st_uid,
            st.st_gid,
            size,
            st.st_mtime_ns,
            st.st_ctime_ns,
        )
        self.atimes[path] = st.st_atime_ns

    def _entries(self, path: bytes, force: bool) -> Iterator[tuple[bytes, os.stat_result]]:
        place = join(self._top, path) if path else self._top
        try:
            fd = os.open(place, _DIRECTORY | os.O_NOATIME)
        except PermissionError:
            if not force:
                raise
            os.chmod(place, stat.S_IRWXU)
            fd = os.open(place, _DIRECTORY | os.O_NOATIME)
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    yield os.fsencode(entry.name), entry.stat(follow_symlinks=False)
        finally:
            os.close(fd)


def settle(survey: Survey, beside: Path) -> None:
    """Return when a change would have a later ctime than everything in a survey. beside: a
    directory of ours in the same file system."""
    newest = max(fact.ctime for fact in survey.facts.values())
    place = beside / "clock"
    with open(place, "wb") as file:
        while True:
            os.utime(file.fileno())
            if os.fstat(file.fileno()).st_ctime_ns > newest:
                break
            time.sleep(_TICK_SECONDS)
    place.unlink()


def renew(top: Path, before: Survey, old: Tree, new: Tree) -> None:
    """Make a directory, which was surveyed when it showed `old`, show `new`.

    Raises NotRenewableError, and OSError and CowfsError for what cannot be written or read; the
    directory must then be written anew.
    """
    now = Survey(top, force=True)
    if len({fact.device for fact in now.facts.values()}) > 1:
        raise NotRenewableError  # something is mounted in it
    touched = {path for path, _ in before.facts.items() ^ now.facts.items()}
    wrong = touched | _differing(old, new)
    _reset_atimes(os.fsencode(top), before, now, wrong)
    _Renewal(os.fsencode(top), new).run(sorted(wrong))


def _differing(old: Tree, new: Tree) -> set[bytes]:
    """The paths, in either state, of all that was touched between them."""
    touched = touched_between(old.reader, old.snapshot.lineage, new.snapshot.lineage)
    found: set[bytes] = set()
    for tree in (old, new):
        for parent, name in touched.names:
            above = tree.directory_path(parent)
            if above is not None:
                found.add(join(above, name))
        for ino in touched.inodes:
            path = tree.directory_path(ino)  # the root has no name
            found.update([path] if path == b"" else (name[2] for name in tree.names(ino)))
    return found


def _reset_atimes(top: bytes, before: Survey, now: Survey, wrong: set[bytes]) -> None:
    """A command read files: what it did not touch otherwise gets its access time back."""
    for path, atime in before.atimes.items():
        if path not in wrong and now.atimes[path] != atime:
            times = (atime, before.facts[path].mtime)
            os.utime(join(top, path) if path else top, ns=times, follow_symlinks=False)


class _Renewal:
    """Writes what is wrong in a directory anew."""

    def __init__(self, top: bytes, tree: Tree) -> None:
        self._top = top
        self._tree = tree
        self._directories: dict[bytes, Node] = {}
        self._made: set[bytes] = set()
        fd = os.open(top, _DIRECTORY)
        try:
            self._writer = Writer(tree, fd, silent)
        finally:
            os.close(fd)

    def run(self, wrong: Iterable[bytes]) -> None:
        """wrong: paths, each directory before what is in it."""
        for path in wrong:
            if not self._is_made(path):
                self._renew(path)
        for path, node in sorted(self._directories.items(), reverse=True):
            self._set_attributes(path, node)
        for problem in self._writer.report.problems:
            if problem.what == "content":
                raise NotRenewableError

    def _is_made(self, path: bytes) -> bool:
        """Whether it lies in a directory that was written as a whole."""
        while path and self._made:
            path = path.rpartition(b"/")[0]
            if path in self._made:
                return True
        return False

    def _place(self, path: bytes) -> bytes:
        return join(self._top, path) if path else self._top

    def _renew(self, path: bytes) -> None:
        node = self._tree.find(path)
        place = self._place(path)
        try:
            mode = os.lstat(place).st_mode
        except (FileNotFoundError, NotADirectoryError):
            mode = 0
        stays = node is not None and node.is_dir and stat.S_ISDIR(mode)
        if mode and not stays:
            if stat.S_ISDIR(mode):
                remove(Path(os.fsdecode(place)))
            else:
                os.unlink(place)
        if node is None:
            if mode:
                self._changed_above(path)
            return
        if stays:
            self._directories[path] = node
        else:
            self._changed_above(path)
            self._write(path, node)

    def _changed_above(self, path: bytes) -> None:
        """The directory of a path has other times now."""
        above = path.rpartition(b"/")[0]
        if above not in self._directories:
            node = self._tree.find(above)
            if node is not None and node.is_dir:
                self._directories[above] = node

    def _write(self, path: bytes, node: Node) -> None:
        if not node.is_dir:
            self._write_file(path, node)
            return
        self._make(path, node)
        self._made.add(path)
        for below in self._tree.walk(node):
            if below.is_dir:
                self._make(below.path, below)
            else:
                self._write_file(below.path, below)

    def _make(self, path: bytes, node: Node) -> None:
        os.mkdir(self._place(path), stat.S_IRWXU)
        self._directories[path] = node

    def _write_file(self, path: bytes, node: Node) -> None:
        if node.nlink > 1:
            raise NotRenewableError  # all its names would have to be made
        fd = os.open(self._place(path.rpartition(b"/")[0]), _DIRECTORY)
        try:
            self._writer.write(fd, node)
        finally:
            os.close(fd)

    def _set_attributes(self, path: bytes, node: Node) -> None:
        fd = os.open(self._place(path), _DIRECTORY)
        try:
            for name in os.listxattr(fd):
                if os.fsencode(name) not in node.xattrs and name not in _KERNEL_XATTRS:
                    os.removexattr(fd, name)
            self._writer.set_attributes(fd, node)
        finally:
            os.close(fd)


def remove(place: Path) -> None:
    """Remove a directory that is ours with all that is in it, be it closed to us; nothing happens
    when it is not there. Raises OSError."""
    for above, names, _ in os.walk(place):
        for name in names:
            path = os.path.join(above, name)
            mode = os.lstat(path).st_mode
            if stat.S_ISDIR(mode) and mode & stat.S_IRWXU != stat.S_IRWXU:
                os.chmod(path, stat.S_IRWXU)
    if place.exists():
        place.chmod(stat.S_IRWXU)
        shutil.rmtree(place)
