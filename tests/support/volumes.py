"""A volume without FUSE, driven by paths: what most tests of `cowfs.volume` work with."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from cowfs.errors import CowfsError
from cowfs.format import records
from cowfs.service import restore as restoring
from cowfs.service.checkpoint import checkpoint
from cowfs.service.engine import LocalEngine
from cowfs.store.group import TransactionGroup
from cowfs.store.lineage import Lineage
from cowfs.volume import attributes, data, namespace, sparse, unnamed
from cowfs.volume.base import Base, BaseEntry, read_xattrs
from cowfs.volume.history import Audience, Author, Invalidation, Swapped
from cowfs.volume.inode import Inode
from cowfs.volume.posix import PosixError, now, outlive
from cowfs.volume.view import View
from cowfs.volume.volume import Volume, create_volume, open_volume
from tests.support.checking import check_store

FILE = stat.S_IFREG | 0o644
DIRECTORY = stat.S_IFDIR | 0o755
START = "0123456789ab"
"""Id of the checkpoint of epoch 0."""

OTHER = (5, 6) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
"""An owner (uid, gid) to give a thing to that is applied to a directory: who is not root can give
away nothing there."""

AUTHOR = Author(1000, "tester", 1, "test")


def usable(mode: int) -> int:
    """A mode of a directory with which whoever runs the test can still look into it."""
    return mode if os.geteuid() == 0 else mode | stat.S_IRWXU


class Facts(NamedTuple):
    """Everything that one path shows. `content`: bytes of a file; target of a link."""

    ino: int
    mode: int
    nlink: int
    uid: int
    gid: int
    rdev: int
    size: int
    atime: int
    mtime: int
    ctime: int
    content: bytes
    xattrs: dict[bytes, bytes]


class Handle:
    """An open file or directory, as the kernel holds it: by inode, whatever becomes of its name."""

    def __init__(self, rig: Rig, inode: Inode) -> None:
        self.inode = inode
        self._rig = rig
        self._view = rig.view
        inode.handles += 1

    def read(self, offset: int = 0, size: int | None = None) -> bytes:
        size = self.inode.size - offset if size is None else size
        return data.read(self._view, self.inode, offset, max(size, 0))

    def write(self, offset: int, content: bytes) -> None:
        data.write(self._view, self.inode, offset, content)

    def truncate(self, size: int) -> None:
        attributes.set_attributes(self._view, self.inode, size=size)

    def allocate(self, mode: int, offset: int, length: int) -> None:
        sparse.allocate(self._view, self.inode, mode, offset, length)

    def close(self) -> None:
        self.inode.handles -= 1
        self._view.release(self.inode)


class _Engine(LocalEngine):
    """Keeps what a kernel would be told."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig.volume)
        self._rig = rig

    def switch(
        self, change: Callable[[Audience], Swapped], among: set[int], after: Lineage
    ) -> Swapped:
        swapped = super().switch(change, among, after)
        self._rig.told.append(swapped.invalidation)
        return swapped


def facts_of(view: View, inode: Inode) -> Facts:
    """What stat, read, readlink and listxattr show of an inode in a view."""
    content = b""
    if inode.is_file:
        content = data.read(view, inode, 0, inode.size)
    elif stat.S_ISLNK(inode.mode):
        content = inode.target
    return Facts(
        inode.ino,
        inode.mode,
        inode.nlink,
        inode.uid,
        inode.gid,
        inode.rdev,
        inode.size,
        inode.atime,
        inode.mtime,
        inode.ctime,
        content,
        dict(attributes.xattrs(view, inode)),
    )


def holes_of(view: View, inode: Inode) -> list[tuple[int, int]]:
    """(start, end) of the holes of a file, as lseek(2) tells of them."""
    holes, at = list[tuple[int, int]](), 0
    while at < inode.size:
        start, stop = sparse.hole(view, inode, at)
        at = inode.size if stop is None else stop
        if start < at:
            holes.append((start, at))
    return holes


class Rig:
    """A volume with its base directory, and shorthands by path (bytes, relative to the root).

    Calls raise what the volume raises (PosixError). `base` may be None: a store without a base.
    check: whether the store must be consistent in the end; for tests that damage it.
    told: what restores told the kernel to look at again.
    """

    def __init__(self, store: Path, base: Path | None) -> None:
        """Make a store, or open the one that is there."""
        self.store = store
        self.base = base
        self.base_fd = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) if base else None
        self.volume: Volume
        self.is_open = False
        self.check = True
        self.told: list[Invalidation] = []
        self.start()

    # -- lives ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the volume (the store is made when there is none)."""
        base = Base(self.base_fd) if self.base_fd is not None else None
        if (self.store / "data.mdb").exists():
            self.volume = open_volume(self.store, base)
        else:
            self.volume = create_volume(self.store, base, self._root(), START)
        self.is_open = True

    def _root(self) -> BaseEntry:
        if self.base is None:
            return BaseEntry(b"", os.stat("/"), b"", {})
        return BaseEntry(b"", os.stat(self.base), b"", read_xattrs(os.fsencode(self.base)))

    def close(self) -> None:
        """End as a daemon does that is asked to."""
        self.is_open = False
        self.volume.close()

    def crash(self) -> list[TransactionGroup]:
        """End as a killed daemon does: what is not committed is gone. Returns the lost groups."""
        self.is_open = False
        volume, writer = self.volume, self.volume.writer
        with writer._changed:
            writer._changed.wait_for(lambda: not writer._busy)
            lost = list(writer._queue)
            writer._queue.clear()
        writer.close()
        volume.reader.close()
        if volume.base is not None:
            volume.base.forget()
        volume.store.close()
        outlive(now())  # nobody changes the base in the tick of the clock in which a daemon dies
        return lost

    def reopen(self) -> None:
        """Another life."""
        if self.is_open:
            self.close()
        self.start()

    def finish(self, *, check: bool = True) -> None:
        """Close for good; with `check` the store must be consistent."""
        try:
            if self.is_open:
                self.close()
            if check and self.check:
                check_store(self.store, self.base_fd)
        finally:
            if self.base_fd is not None:
                os.close(self.base_fd)
                self.base_fd = None

    @property
    def view(self) -> View:
        return self.volume.main

    @property
    def engine(self) -> _Engine:
        return _Engine(self)

    # -- by path --------------------------------------------------------------------------------

    def find(self, path: bytes) -> Inode | None:
        """The inode of a path (b"" is the root), None when a component is missing."""
        inode: Inode | None = self.view.inode(1)
        for name in path.split(b"/") if path else ():
            assert inode is not None
            inode = namespace.lookup(self.view, inode.ino, name)
            if inode is None:
                return None
        return inode

    def at(self, path: bytes) -> Inode:
        """The inode of a path that exists."""
        inode = self.find(path)
        assert inode is not None, f"{path!r} does not exist"
        return inode

    def exists(self, path: bytes) -> bool:
        return self.find(path) is not None

    def place(self, path: bytes) -> tuple[int, bytes]:
        """(inode number of the directory, name) of a path."""
        directory, _, name = path.rpartition(b"/")
        return self.at(directory).ino, name

    def create(
        self,
        path: bytes,
        content: bytes = b"",
        *,
        mode: int = FILE,
        uid: int | None = None,
        gid: int | None = None,
        rdev: int = 0,
    ) -> Inode:
        """Of whoever runs the test, unless an owner is named: nobody else can give things away."""
        parent, name = self.place(path)
        uid = os.geteuid() if uid is None else uid
        gid = os.getegid() if gid is None else gid
        inode = namespace.create(self.view, parent, name, mode, uid, gid, rdev=rdev)
        if content:
            data.write(self.view, inode, 0, content)
        return inode

    def mkdir(self, path: bytes, mode: int = 0o755, gid: int | None = None) -> Inode:
        return self.create(path, mode=stat.S_IFDIR | mode, gid=gid)

    def symlink(self, target: bytes, path: bytes) -> Inode:
        parent, name = self.place(path)
        mode, uid, gid = stat.S_IFLNK | 0o777, os.geteuid(), os.getegid()
        return namespace.create(self.view, parent, name, mode, uid, gid, target=target)

    def link(self, path: bytes, new: bytes) -> Inode:
        return namespace.link(self.view, self.at(path).ino, *self.place(new))

    def unlink(self, path: bytes) -> Inode:
        return namespace.unlink(self.view, *self.place(path))

    def rmdir(self, path: bytes) -> Inode:
        return namespace.rmdir(self.view, *self.place(path))

    def rename(self, path: bytes, new: bytes, flags: int = 0) -> Inode | None:
        return namespace.rename(self.view, *self.place(path), *self.place(new), flags)

    def remove_tree(self, path: bytes) -> None:
        """rm -rf."""
        inode = self.at(path)
        if not inode.is_dir:
            self.unlink(path)
            return
        for name in self.ls(path):
            self.remove_tree(path + b"/" + name)
        self.rmdir(path)

    def ls(self, path: bytes = b"") -> list[bytes]:
        """Names in a directory, sorted."""
        return sorted(name for name, _ in namespace.entries(self.view, self.at(path).ino))

    def write(self, path: bytes, content: bytes, offset: int = 0) -> None:
        """pwrite on an existing file."""
        data.write(self.view, self.at(path), offset, content)

    def save(self, path: bytes, content: bytes) -> None:
        """What `>` does: create or truncate, then write."""
        inode = self.find(path)
        if inode is None:
            inode = self.create(path)
        attributes.set_attributes(self.view, inode, size=0)
        data.write(self.view, inode, 0, content)

    def truncate(self, path: bytes, size: int) -> None:
        attributes.set_attributes(self.view, self.at(path), size=size)

    def read(self, path: bytes) -> bytes:
        """The whole file, as after open(2)."""
        inode = self.at(path)
        data.open_file(self.view, inode)
        return data.read(self.view, inode, 0, inode.size)

    def open(self, path: bytes) -> Handle:
        inode = self.at(path)
        if inode.is_file:
            data.open_file(self.view, inode)
        return Handle(self, inode)

    def allocate(self, path: bytes, mode: int, offset: int, length: int) -> None:
        """fallocate(2)."""
        sparse.allocate(self.view, self.at(path), mode, offset, length)

    def open_unnamed(self, directory: bytes = b"", mode: int = FILE, gid: int = 0) -> Handle:
        """open(2) with O_TMPFILE."""
        return Handle(self, unnamed.create(self.view, self.at(directory).ino, mode, 0, gid))

    def holes(self, path: bytes) -> list[tuple[int, int]]:
        """(start, end) of what lseek(2) says to be holes."""
        return holes_of(self.view, self.at(path))

    def chmod(self, path: bytes, mode: int) -> None:
        attributes.set_attributes(self.view, self.at(path), mode=mode)

    def xattrs(self, path: bytes) -> dict[bytes, bytes]:
        return dict(attributes.xattrs(self.view, self.at(path)))

    def setxattr(self, path: bytes, name: bytes, value: bytes) -> None:
        attributes.set_xattr(self.view, self.at(path), name, value)

    # -- history --------------------------------------------------------------------------------

    def checkpoint(self, message: str = "", label: str = "") -> records.CheckpointRecord:
        return checkpoint(self.engine, AUTHOR, message=message, label=label)

    def restore(self, target: records.CheckpointRecord | str) -> restoring.Restored:
        selector = target if isinstance(target, str) else target.id
        return restoring.restore(self.engine, AUTHOR, selector)

    def restore_paths(
        self,
        target: records.CheckpointRecord | str,
        paths: list[bytes],
        exclude: list[bytes] | None = None,
    ) -> restoring.Restored:
        selector = target if isinstance(target, str) else target.id
        return restoring.restore(self.engine, AUTHOR, selector, paths=paths, exclude=exclude)

    def undo(self) -> restoring.Restored:
        return restoring.undo(self.engine, AUTHOR)

    def redo(self) -> restoring.Restored:
        return restoring.redo(self.engine, AUTHOR)

    # -- looking at all of it -------------------------------------------------------------------

    def facts(self, inode: Inode) -> Facts:
        """What stat, read, readlink and listxattr show of an inode."""
        return facts_of(self.view, inode)

    def paths(self) -> dict[bytes, Inode]:
        """The inode of every path; the root is b""."""
        out: dict[bytes, Inode] = {}
        pending = [(b"", 1)]
        while pending:
            path, ino = pending.pop()
            inode = out[path] = self.view.inode(ino)
            if inode.is_dir:
                prefix = path + b"/" if path else b""
                for name, packed in namespace.entries(self.view, ino):
                    assert packed & 15 == self.view.inode(packed >> 4).kind
                    pending.append((prefix + name, packed >> 4))
        return out

    def tree(self) -> dict[bytes, Facts]:
        """Facts of every path; the root is b""."""
        return {path: self.facts(inode) for path, inode in self.paths().items()}

    def record_counts(self) -> Counter[str]:
        """How many records each table of the store has, once all is committed; without the sums of
        records, which are at most two for each epoch."""
        self.volume.sync()
        reader = self.volume.reader
        counts = Counter(
            {table: sum(1 for _ in reader.scan(table)) for table in self.volume.store.tables}
        )
        counts["meta"] -= sum(1 for _ in reader.scan("meta", b"sums"))
        return counts

    def evict(self) -> None:
        """Forget every object in memory that nothing needs, as cache pressure does."""
        inodes = self.view.inodes
        for ino in [ino for ino, inode in inodes.items() if inode.idle]:
            del inodes[ino]

    def problems(self) -> list[tuple[str, str]]:
        """(kind, path) of what `status` would report."""
        return [(row["kind"], row["path"]) for row in self.volume.problems]


def errno_of(call: object, *args: object, **kwargs: object) -> int:
    """The errno with which a call fails; 0 when it succeeds."""
    assert callable(call)
    try:
        call(*args, **kwargs)
    except PosixError as error:
        return error.errno
    return 0


__all__ = [
    "AUTHOR",
    "DIRECTORY",
    "FILE",
    "OTHER",
    "START",
    "CowfsError",
    "Facts",
    "Handle",
    "Rig",
    "errno_of",
    "usable",
]
