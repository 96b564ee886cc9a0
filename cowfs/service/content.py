"""A state of the workspace as plain data: every directory and every byte of one point in history.

A state's records may be incomplete on purpose: a base directory that nobody looked into has no
entries in the store, and a block that nobody wrote comes from the base file. `Tree` fills both in
from the base directory, so that what reads history need not know. Nothing is written, and no file
is held in memory as a whole.

Threading: a tree belongs to the thread that opened its workspace.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Hashable, Iterator

from cowfs.errors import (
    ContentLostError,
    CowfsError,
    DamagedRecordError,
    PermissionDeniedError,
    UnknownPathError,
)
from cowfs.format import keys, records
from cowfs.service.selectors import Point
from cowfs.service.workspace import ReadOnly
from cowfs.store.lineage import Lineage
from cowfs.store.snapshot import Snapshot
from cowfs.types import BLOCK_SIZE, NAME_MAX, ROOT_INO
from cowfs.volume.base import BaseEntry, Fingerprint, fingerprint
from cowfs.volume.importing import inode_record, is_shared, recorded_fingerprint

_ZEROS = bytes(BLOCK_SIZE)
_KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symlink",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "character device",
    stat.S_IFBLK: "block device",
}

Block = tuple[int, Hashable, Callable[[], bytes]]
"""One block that may have bytes other than zero: its number, a key (two blocks with equal keys
have equal bytes) and what reads it. What is read may be shorter than the block: zeros follow."""


Failed = Callable[[bytes, CowfsError], None]
"""Told of a path that cannot be read, and why."""


def join(directory: bytes, name: bytes) -> bytes:
    """The path of an entry; the root's path is empty."""
    return directory + b"/" + name if directory else name


class Node:
    """One file, directory or special file of a state, under one of its names.

    path: where it was found, relative to the root, without slashes at the ends (b"" is the root).
    ino: inode number; 0 for what lies in a base directory that was not looked into yet.
    mode: type and permissions. size: bytes. atime, mtime, ctime: ns since 1970.
    target: of a symbolic link. rdev: of a device. above: the directory in which it was found, if it
    was found by listing one.
    """

    __slots__ = (
        "_base_size",
        "_content",
        "_fingerprint",
        "_place",
        "_tree",
        "_xattrs",
        "above",
        "atime",
        "ctime",
        "gid",
        "ino",
        "mode",
        "mtime",
        "nlink",
        "path",
        "rdev",
        "size",
        "target",
        "uid",
    )

    def __init__(self, tree: Tree, path: bytes, ino: int, record: records.InodeRecord) -> None:
        self._tree = tree
        self.path = path
        self.above: Node | None = None
        self.ino = ino
        (
            _,
            self.mode,
            self.nlink,
            self.uid,
            self.gid,
            self.rdev,
            self.size,
            self.atime,
            self.mtime,
            self.ctime,
            self._content,
            self._base_size,
            self.target,
        ) = record
        self._xattrs: dict[bytes, bytes] | None = None
        self._place: bytes | None = None
        self._fingerprint: Fingerprint | None = None

    @property
    def is_dir(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)

    @property
    def is_symlink(self) -> bool:
        return stat.S_ISLNK(self.mode)

    @property
    def permissions(self) -> int:
        """The mode without the type."""
        return stat.S_IMODE(self.mode)

    @property
    def kind(self) -> str:
        """The type in words."""
        return _KINDS.get(stat.S_IFMT(self.mode), "special file")

    @property
    def name(self) -> bytes:
        """The last component of the path."""
        return self.path.rpartition(b"/")[2]

    @property
    def base_identity(self) -> tuple[int, int] | None:
        """(dev, ino) of the base entry that this is, if it was not looked into yet."""
        return self._fingerprint[:2] if self._fingerprint else None

    @property
    def identity(self) -> Hashable:
        """Equal for all names of one file, within a tree."""
        if self.ino:
            return self.ino
        return self.base_identity or self.path

    @property
    def xattrs(self) -> dict[bytes, bytes]:
        """Extended attributes, name to value; not to be modified."""
        if self._xattrs is None:
            self._xattrs = self._tree.snapshot.xattrs(self.ino)
        return self._xattrs

    def entries(self, failed: Failed | None = None) -> Iterator[Node]:
        """What is in a directory (`Tree.entries`)."""
        return self._tree.entries(self, failed)

    def blocks(self) -> Iterator[Block]:
        """The blocks of a regular file that are not holes, ascending.

        Reading one raises ContentLostError, DamagedRecordError or PermissionDeniedError.
        """
        if not self.is_file:
            return iter(())
        if self._place is not None:
            return self._tree._unlisted_blocks(self)
        return self._tree._stored_blocks(self)

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        """(offset, bytes) of everything that is not a hole, ascending, at most 64 KiB each.

        Raises as `blocks` does.
        """
        for number, _, load in self.blocks():
            data = load()
            if data != _ZEROS[: len(data)]:
                yield number * BLOCK_SIZE, data

    def stream(self) -> Iterator[bytes]:
        """The whole content in order, holes as zeros, at most 64 KiB each. Raises as `blocks`."""
        at = 0
        for offset, data in self.pieces():
            yield from _zeros(offset - at)
            yield data
            at = offset + len(data)
        yield from _zeros(self.size - at)

    def read(self) -> bytes:
        """The whole content, in memory: only for files known to be small."""
        return b"".join(self.stream())

    def to_json(self) -> dict[str, object]:
        """Plain data, for JSON."""
        row: dict[str, object] = {
            "type": self.kind,
            "mode": f"{self.permissions:04o}",
            "uid": self.uid,
            "gid": self.gid,
            "size": self.size,
            "mtime": self.mtime,
        }
        if self.is_symlink:
            row["target"] = os.fsdecode(self.target)
        if self.rdev:
            row["rdev"] = [os.major(self.rdev), os.minor(self.rdev)]
        return row

    def __repr__(self) -> str:
        return f"<Node {self.path!r} ino={self.ino} mode={self.mode:o} size={self.size}>"


def _must_not_be_in_itself(node: Node) -> None:
    """Raises DamagedRecordError: such a directory would have no end."""
    above = node.above
    while above is not None:
        if above.ino == node.ino:
            what = f"directory {os.fsdecode(node.path)}"
            raise DamagedRecordError(what=what, detail="it lies in itself")
        above = above.above


class Tree:
    """The tree of one point in history."""

    def __init__(self, workspace: ReadOnly, point: Point) -> None:
        self.workspace = workspace
        self.point = point
        self.reader = workspace.reader
        self.snapshot: Snapshot = workspace.snapshot(point)
        self._start = Snapshot(self.reader, Lineage(((0, 0),)))
        self._paths: dict[int, bytes | None] = {ROOT_INO: b""}

    # -- names ------------------------------------------------------------------------------

    def root(self) -> Node:
        """The top directory."""
        return self.node(ROOT_INO, b"")

    def node(self, ino: int, path: bytes) -> Node:
        """The node of an inode that this state has. Raises DamagedRecordError if it has not."""
        record = self.snapshot.inode(ino)
        if record is None:
            raise DamagedRecordError(what=f"inode {ino}", detail=f"a name without it: {path!r}")
        return Node(self, path, ino, record)

    def find(self, path: bytes) -> Node | None:
        """The node at a path (`/` at the ends, `//` and `.` do not matter), None if there is none.

        Symbolic links are not followed. Raises ContentLostError, PermissionDeniedError.
        """
        node = self.root()
        for name in path.split(b"/"):
            if name in (b"", b"."):
                continue
            if not node.is_dir or name == b".." or len(name) > NAME_MAX or b"\0" in name:
                return None
            below = self._child(node, name)
            if below is None:
                return None
            node = below
        return node

    def lookup(self, path: bytes) -> Node:
        """The node at a path. Raises UnknownPathError, ContentLostError, PermissionDeniedError."""
        node = self.find(path)
        if node is None:
            raise UnknownPathError(path=_text(path), where=self.point.name)
        return node

    def _child(self, directory: Node, name: bytes) -> Node | None:
        place = self._base_place(directory)
        if place is None:
            found = self.snapshot.lookup(directory.ino, name)
            return self.node(found[0], join(directory.path, name)) if found else None
        base = self.workspace.base
        if base is None:
            raise self._unlisted_error(directory, "the base directory is not there")
        try:
            entry = base.lookup(join(place, name))
        except OSError as error:
            raise self._base_error(directory, error) from None
        return self._base_node(directory, place, entry) if entry else None

    def entries(self, directory: Node, failed: Failed | None = None) -> Iterator[Node]:
        """Everything in a directory, sorted by name.

        `failed` is told of what cannot be read, the directory itself or an entry, which is then
        left out; without it the error is raised: ContentLostError when the base directory behind
        it is gone, PermissionDeniedError, DamagedRecordError.
        """
        try:
            place = self._base_place(directory)
            if place is not None:
                yield from self._base_entries(directory, place)
                return
        except (ContentLostError, PermissionDeniedError, DamagedRecordError) as error:
            if failed is None:
                raise
            failed(directory.path, error)
            return
        for name, ino, _ in self.snapshot.entries(directory.ino):
            path = join(directory.path, name)
            try:
                node = self.node(ino, path)
                node.above = directory
                if node.is_dir:
                    _must_not_be_in_itself(node)
            except DamagedRecordError as error:
                if failed is None:
                    raise
                failed(path, error)
                continue
            yield node

    def _base_entries(self, directory: Node, place: bytes) -> list[Node]:
        base = self.workspace.base
        if base is None:
            raise self._unlisted_error(directory, "the base directory is not there")
        try:
            listing = base.scan(place)
        except OSError as error:
            raise self._base_error(directory, error) from None
        return [self._base_node(directory, place, entry) for entry in listing]

    def walk(self, top: Node | None = None, failed: Failed | None = None) -> Iterator[Node]:
        """Everything below a directory (the root when None), depth first, sorted, parents first.

        `failed` as in `entries`.
        """
        stack = [self.entries(top or self.root(), failed)]
        while stack:
            node = next(stack[-1], None)
            if node is None:
                stack.pop()
                continue
            yield node
            if node.is_dir:
                stack.append(self.entries(node, failed))

    # -- where an inode is ----------------------------------------------------------------------

    def directory_path(self, ino: int) -> bytes | None:
        """Path of a directory, None when this state does not have it."""
        known = self._paths
        trail: list[tuple[int, bytes]] = []
        at = ino
        while at not in known:
            links = self.snapshot.links(at)
            if not links or len(trail) > 65536:
                known[at] = None
                break
            trail.append((at, links[0][1]))
            at = links[0][0]
        path = known[at]
        for below, name in reversed(trail):
            path = None if path is None else join(path, name)
            known[below] = path
        return path

    def names(self, ino: int) -> list[tuple[int, bytes, bytes]]:
        """(directory's ino, name, path) of every name that leads to an inode, sorted by path.

        A record alone does not mean that a state has the inode: what was imported late is of
        epoch 0 whatever directory it lies in.
        """
        out = []
        for parent, name in self.snapshot.links(ino):
            above = self.directory_path(parent)
            if above is not None:
                out.append((parent, name, join(above, name)))
        out.sort(key=lambda item: item[2])
        return out

    def has(self, ino: int) -> bool:
        """Whether an inode has a name in this state."""
        return ino == ROOT_INO or any(
            self.directory_path(parent) is not None for parent, _ in self.snapshot.links(ino)
        )

    # -- the base directory -----------------------------------------------------------------------

    def origin(self, thing: int) -> records.OriginRecord | None:
        """Where a directory (by ino) or a content lies in the base; None when it never did."""
        value = self.reader.get("origin", keys.pack_id(thing))
        return records.unpack_origin(value) if value is not None else None

    def base_path(self, origin: records.OriginRecord) -> bytes:
        """Path of a thing relative to the base directory. Raises DamagedRecordError."""
        parts = []
        while origin.parent:
            parts.append(origin.name)
            above = self.origin(origin.parent)
            if above is None or len(parts) > 65536:
                raise DamagedRecordError(what="origin record", detail=f"of {origin.name!r}")
            origin = above
        return b"/".join(reversed(parts))

    def _base_place(self, directory: Node) -> bytes | None:
        """Where the entries of a directory must be listed in the base, None for the store."""
        if directory._place is not None:
            return directory._place
        origin = self.origin(directory.ino)
        if origin is None or origin.state == records.ORIGIN_DONE:
            return None
        if origin.state == records.ORIGIN_LOST:
            raise self._unlisted_error(directory, "it was removed outside before it was read")
        return self.base_path(origin)

    def _unlisted_error(self, directory: Node, detail: str) -> ContentLostError:
        return ContentLostError(path=_text(directory.path) or ".", detail=detail)

    def _base_error(self, node: Node, error: OSError) -> ContentLostError | PermissionDeniedError:
        if error.errno in (errno.EACCES, errno.EPERM):
            return PermissionDeniedError(detail=f"{_text(node.path) or '.'} in the base directory")
        detail = f"the base directory cannot be read: {error.strerror}"
        return ContentLostError(path=_text(node.path) or ".", detail=detail)

    def _base_node(self, directory: Node, place: bytes, entry: BaseEntry) -> Node:
        path = join(directory.path, entry.name)
        ino = self._known_link(entry)
        if ino:
            return self.node(ino, path)
        node = Node(self, path, 0, inode_record(entry, 0))
        node._place = join(place, entry.name)
        node._fingerprint = fingerprint(entry.st)
        node._xattrs = entry.xattrs
        return node

    def _known_link(self, entry: BaseEntry) -> int:
        """The inode of which a base entry is one more name, 0 when there is none in this state.

        The base may have given an inode's number to another file since: the fingerprint tells.
        """
        st = entry.st
        if not is_shared(st):
            return 0
        value = self.reader.get("hardlink", keys.hardlink_key(st.st_dev, st.st_ino))
        ino = keys.unpack_id(value) if value is not None else 0
        if not ino or not self.has(ino):
            return 0
        seen = fingerprint(st)
        for parent, name in {*self._start.links(ino), *self.snapshot.links(ino)}:
            value = self.reader.get("base", keys.base_key(parent, name))
            if value is not None:
                record = records.unpack_base(value)
                if record.ino == ino and recorded_fingerprint(record) == seen:
                    return ino
        return 0

    # -- content --------------------------------------------------------------------------------

    def _stored_blocks(self, node: Node) -> Iterator[Block]:
        content, size, base_size = node._content, node.size, node._base_size
        origin = self.origin(content) if base_size else None
        reachable = origin is not None and origin.state != records.ORIGIN_DONE
        base_end = min(base_size, size) if reachable else 0
        at = 0
        for number, epoch, digest in self._extents(content):
            start = number * BLOCK_SIZE
            if start >= size:
                break
            if at < min(start, base_end):
                yield from self._base_blocks(node, at, min(start, base_end))
            at = start + BLOCK_SIZE
            # Extents of epoch 0 are sealed base content: they count only up to base_size.
            limit = min(BLOCK_SIZE, size - start)
            if not epoch:
                limit = min(limit, base_size - start)
            if digest and limit > 0:
                yield number, (digest, limit), _Load(self.snapshot, digest, limit)
        if at < base_end:
            yield from self._base_blocks(node, at, base_end)

    def _extents(self, content: int) -> Iterator[tuple[int, int, bytes]]:
        """(block number, epoch, hash or b"" for a hole), ascending.

        A block that was given back to the base is what sealing stored of it, or not listed.
        """
        visible = self.snapshot.lineage.visible
        prefix = keys.pack_id(content)
        done = -1
        for key, digest in self.reader.scan("extent", prefix):
            number = keys.extent_block(key)
            if number == done:
                continue
            epoch = keys.epoch_of(key)
            if not visible(epoch):
                continue
            done = number
            if digest == records.EXTENT_BASE:
                sealed = self.reader.get("extent", keys.extent_key(content, number, 0))
                if sealed is None:
                    continue
                epoch, digest = 0, sealed
            yield number, epoch, digest

    def _base_blocks(self, node: Node, start: int, end: int) -> Iterator[Block]:
        """Blocks [start, end) of a content that come from the base file; start is aligned."""
        try:
            fd = self._open_base(node)
        except (ContentLostError, PermissionDeniedError) as error:
            for number in range(start // BLOCK_SIZE, -(-end // BLOCK_SIZE)):
                yield number, (node._content, number), _Fail(error)
            return
        yield from _file_blocks(node, fd, start, end, node._content)

    def _open_base(self, node: Node) -> int:
        """A descriptor of the base file behind a content; the caller closes it."""
        content = node._content
        path, base = _text(node.path), self.workspace.base
        origin = self.origin(content)
        if base is None or origin is None:
            raise ContentLostError(path=path, detail="the base directory is not there")
        value = self.reader.get("base", keys.base_key(origin.parent, origin.name))
        entry = records.unpack_base(value) if value is not None else None
        if origin.state == records.ORIGIN_LOST or entry is None or entry.content != content:
            raise ContentLostError(path=path, detail="its base file was changed outside")
        try:
            fd = base.cached_file(content, self.base_path(origin), recorded_fingerprint(entry))
        except OSError as error:
            raise self._base_error(node, error) from None
        if fd is None:
            raise ContentLostError(path=path, detail="its base file was changed outside")
        # The base closes its own descriptor when many others are opened meanwhile.
        return os.dup(fd)

    def _unlisted_blocks(self, node: Node) -> Iterator[Block]:
        base = self.workspace.base
        assert base is not None
        assert node._place is not None
        try:
            fd = base.open_file(node._place)
        except OSError as error:
            raise self._base_error(node, error) from None
        if fingerprint(os.fstat(fd)) != node._fingerprint:
            os.close(fd)
            raise ContentLostError(path=_text(node.path), detail="it is being changed outside")
        yield from _file_blocks(node, fd, 0, node.size, node.identity)


class _Load:
    """Reads one stored block."""

    __slots__ = ("digest", "limit", "snapshot")

    def __init__(self, snapshot: Snapshot, digest: bytes, limit: int) -> None:
        self.snapshot = snapshot
        self.digest = digest
        self.limit = limit

    def __call__(self) -> bytes:
        data = self.snapshot.block(self.digest)
        return data if len(data) <= self.limit else data[: self.limit]


class _Fail:
    """A block that cannot be read."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __call__(self) -> bytes:
        raise self.error


class _LoadBase:
    """Reads one block of an open base file."""

    __slots__ = ("fd", "node", "offset", "size")

    def __init__(self, node: Node, fd: int, offset: int, size: int) -> None:
        self.node = node
        self.fd = fd
        self.offset = offset
        self.size = size

    def __call__(self) -> bytes:
        try:
            data = os.pread(self.fd, self.size, self.offset)
        except OSError as error:
            raise self.node._tree._base_error(self.node, error) from None
        if len(data) != self.size:
            raise ContentLostError(path=_text(self.node.path), detail="it is being cut outside")
        return data


def _file_blocks(node: Node, fd: int, start: int, end: int, key: Hashable) -> Iterator[Block]:
    """Blocks [start, end) of a base file without its holes. Closes `fd`."""
    try:
        while start < end:
            try:
                start = max(start, os.lseek(fd, start, os.SEEK_DATA) & -BLOCK_SIZE)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    return  # only a hole follows
            if start >= end:
                return
            number, size = start // BLOCK_SIZE, min(BLOCK_SIZE, end - start)
            yield number, (key, number, size), _LoadBase(node, fd, start, size)
            start += BLOCK_SIZE
    finally:
        os.close(fd)


def _zeros(count: int) -> Iterator[bytes]:
    while count > 0:
        yield _ZEROS[:count]
        count -= BLOCK_SIZE


def _text(path: bytes) -> str:
    return os.fsdecode(path)


def same_content(a: Node, b: Node) -> bool:
    """Whether two nodes have the same type and content: bytes, link target or device number.

    Blocks with equal hashes are not read. Raises as `Node.blocks`.
    """
    if stat.S_IFMT(a.mode) != stat.S_IFMT(b.mode):
        return False
    if not a.is_file:
        return a.target == b.target and a.rdev == b.rdev
    if a.size != b.size:
        return False
    left, right = a.blocks(), b.blocks()
    one, two = next(left, None), next(right, None)
    while one is not None or two is not None:
        if one is None or (two is not None and two[0] < one[0]):
            assert two is not None
            if not _same_bytes(two[2](), b""):
                return False
            two = next(right, None)
        elif two is None or one[0] < two[0]:
            if not _same_bytes(one[2](), b""):
                return False
            one = next(left, None)
        else:
            if one[1] != two[1] and not _same_bytes(one[2](), two[2]()):
                return False
            one, two = next(left, None), next(right, None)
    return True


def _same_bytes(a: bytes, b: bytes) -> bool:
    size = max(len(a), len(b))
    return a.ljust(size, b"\0") == b.ljust(size, b"\0")
