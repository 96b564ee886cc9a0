"""A state of the workspace as plain data: every directory and every byte of one point in history.

A state's records may be incomplete on purpose: a base directory that nobody looked into has no
entries in the store, and a block that nobody wrote comes from the base file. `Tree` fills both in
from the base directory, so that what reads history need not know. Nothing is written, and no file
is held in memory as a whole.

Threading: a tree belongs to the thread that opened its workspace.
"""

from __future__ import annotations

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
from cowfs.service.blocks import Block, Contents, Stored, Unlisted, base_error
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

    @property
    def is_thinned(self) -> bool:
        """Whether its content is not kept any more (as far as its state says so)."""
        if not self.is_file or self._place is not None:
            return False
        return self._tree.contents.is_thinned(self._content)

    def entries(self, failed: Failed | None = None) -> Iterator[Node]:
        """What is in a directory (`Tree.entries`)."""
        return self._tree.entries(self, failed)

    def blocks(self) -> Iterator[Block]:
        """The blocks of a regular file that are not holes, ascending.

        Reading one raises ContentLostError (of which ThinnedError is one), DamagedRecordError or
        PermissionDeniedError.
        """
        if not self.is_file:
            return iter(())
        if self._place is not None:
            assert self._fingerprint is not None
            return self._tree.contents.unlisted(
                Unlisted(self.path, self._place, self.size, self._fingerprint, self.identity)
            )
        file = Stored(self.path, self._content, self.size, self._base_size)
        return self._tree.contents.stored(file)

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
        record = point.checkpoint
        self.contents = Contents(
            self.snapshot,
            workspace.base,
            point.name,
            thinned=bool(record is not None and record.thinned),
        )
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
            raise base_error(directory.path, error) from None
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
            raise base_error(directory.path, error) from None
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

    def _base_place(self, directory: Node) -> bytes | None:
        """Where the entries of a directory must be listed in the base, None for the store."""
        if directory._place is not None:
            return directory._place
        origin = self.contents.origin(directory.ino)
        if origin is None or origin.state == records.ORIGIN_DONE:
            return None
        if origin.state == records.ORIGIN_LOST:
            raise self._unlisted_error(directory, "it was removed outside before it was read")
        return self.contents.base_path(origin)

    def _unlisted_error(self, directory: Node, detail: str) -> ContentLostError:
        return ContentLostError(path=_text(directory.path) or ".", detail=detail)

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
