"""A plain POSIX file system in memory: what the volume is compared with.

Written from POSIX and the Linux man pages, not from cowfs. Errors are OSError with the errno that
the kernel gives; where two apply at once, in the order of the kernel's checks.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

NAME_MAX = 255
NOREPLACE, EXCHANGE = 1, 2


@dataclass(eq=False)
class Node:
    """A file, directory or special file. Lives as long as somebody refers to it, named or not.

    number: identity within the model. times: (atime, mtime) where a call has set them, else None.
    children: of a directory, name to node. unnamed: it never had a name, and may get one.
    """

    number: int
    mode: int
    uid: int
    gid: int
    rdev: int = 0
    nlink: int = 1
    data: bytearray = field(default_factory=bytearray)
    target: bytes = b""
    xattrs: dict[bytes, bytes] = field(default_factory=dict)
    children: dict[bytes, Node] = field(default_factory=dict)
    parent: Node | None = None
    times: tuple[int, int] | None = None
    unnamed: bool = False

    @property
    def is_dir(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)

    @property
    def size(self) -> int:
        return len(self.target) if stat.S_ISLNK(self.mode) else len(self.data)


@dataclass(frozen=True)
class Image:
    """The whole tree at one moment: a shallow copy of every named node."""

    nodes: dict[int, tuple[Node, Node]]

    @staticmethod
    def of(model: Model) -> Image:
        return Image({node.number: (node, _copy(node)) for node in model.reachable()})


def _copy(node: Node) -> Node:
    return replace(
        node,
        data=bytearray(node.data),
        xattrs=dict(node.xattrs),
        children=dict(node.children),
    )


class Model:
    """One file system. `root` is its top directory."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._unnamed: list[Node] = []
        self.root = self.new(stat.S_IFDIR | 0o755, 0, 0)
        self.root.nlink = 2

    def new(self, mode: int, uid: int, gid: int) -> Node:
        """A node without a name."""
        return Node(next(self._numbers), mode, uid, gid)

    # -- looking --------------------------------------------------------------------------------

    def walk(self) -> Iterator[tuple[bytes, Node]]:
        """(path, node) of every name; the root is b""."""
        pending = [(b"", self.root)]
        while pending:
            path, node = pending.pop()
            yield path, node
            for name, child in node.children.items():
                pending.append((path + b"/" + name if path else name, child))

    def reachable(self) -> list[Node]:
        """Every named node once."""
        return list({node.number: node for _, node in self.walk()}.values())

    def lookup(self, parent: Node, name: bytes) -> Node:
        if not parent.is_dir:
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        _check_name(name)
        if name not in parent.children:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        return parent.children[name]

    # -- names ----------------------------------------------------------------------------------

    def _room(self, parent: Node, name: bytes) -> None:
        if not parent.is_dir:
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        _check_name(name)
        if not parent.nlink:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        if name in parent.children:
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))

    def create(
        self,
        parent: Node,
        name: bytes,
        mode: int,
        uid: int = 0,
        gid: int = 0,
        *,
        rdev: int = 0,
        target: bytes = b"",
    ) -> Node:
        """open(O_CREAT|O_EXCL), mkdir, mknod, symlink, by the type in `mode`."""
        self._room(parent, name)
        node = self.new(mode, uid, gid)
        node.rdev, node.target = rdev, target
        if parent.mode & stat.S_ISGID:
            node.gid = parent.gid
            if node.is_dir:
                node.mode |= stat.S_ISGID
        if node.is_dir:
            node.nlink = 2
            parent.nlink += 1
            node.parent = parent
        parent.children[name] = node
        parent.times = None
        return node

    def create_unnamed(self, parent: Node, mode: int, uid: int = 0, gid: int = 0) -> Node:
        """open(O_TMPFILE)."""
        node = self.new(mode, uid, gid)
        node.nlink, node.unnamed = 0, True
        if parent.mode & stat.S_ISGID:
            node.gid = parent.gid
        self._unnamed.append(node)
        return node

    def link(self, node: Node, parent: Node, name: bytes) -> None:
        if node.is_dir:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        if not node.nlink and not node.unnamed:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        self._room(parent, name)
        node.unnamed = False
        parent.children[name] = node
        parent.times = None
        node.nlink += 1

    def unlink(self, parent: Node, name: bytes) -> Node:
        node = self.lookup(parent, name)
        if node.is_dir:
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        self._drop(parent, name)
        return node

    def rmdir(self, parent: Node, name: bytes) -> Node:
        node = self.lookup(parent, name)
        if not node.is_dir:
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if node.children:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
        self._drop(parent, name)
        return node

    def _drop(self, parent: Node, name: bytes) -> None:
        node = parent.children.pop(name)
        parent.times = None
        if node.is_dir:
            node.nlink = 0
            parent.nlink -= 1
        else:
            node.nlink -= 1

    def rename(
        self, parent: Node, name: bytes, new_parent: Node, new_name: bytes, flags: int = 0
    ) -> None:
        """renameat2(2), checks in the order of the kernel."""
        if flags not in (0, NOREPLACE, EXCHANGE):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        for directory in (parent, new_parent):
            if not directory.is_dir:
                raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        _check_name(name)
        _check_name(new_name)
        node = self.lookup(parent, name)
        if not new_parent.nlink:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        old = new_parent.children.get(new_name)
        if old is not None and flags == NOREPLACE:
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
        if old is None and flags == EXCHANGE:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        if _is_within(new_parent, node):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        if flags == EXCHANGE:
            assert old is not None
            if _is_within(parent, old):
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            if old is not node:
                self._exchange(parent, name, new_parent, new_name)
            return
        if old is node:
            return
        if old is not None:
            if node.is_dir and not old.is_dir:
                raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            if old.is_dir and not node.is_dir:
                raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
            if old.children:
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
            self._drop(new_parent, new_name)
        del parent.children[name]
        new_parent.children[new_name] = node
        parent.times = new_parent.times = None
        if node.is_dir:
            parent.nlink -= 1
            new_parent.nlink += 1
            node.parent = new_parent

    def _exchange(self, parent: Node, name: bytes, new_parent: Node, new_name: bytes) -> None:
        one, two = parent.children[name], new_parent.children[new_name]
        parent.children[name], new_parent.children[new_name] = two, one
        parent.times = new_parent.times = None
        parent.nlink += two.is_dir - one.is_dir
        new_parent.nlink += one.is_dir - two.is_dir
        if one.is_dir:
            one.parent = new_parent
        if two.is_dir:
            two.parent = parent

    # -- content and attributes -----------------------------------------------------------------

    def write(self, node: Node, offset: int, data: bytes) -> None:
        if not data:
            return
        if offset > len(node.data):
            node.data.extend(bytes(offset - len(node.data)))
        node.data[offset : offset + len(data)] = data

    def read(self, node: Node, offset: int, size: int) -> bytes:
        return bytes(node.data[offset : offset + size])

    def truncate(self, node: Node, size: int) -> None:
        if size <= len(node.data):
            del node.data[size:]
        else:
            node.data.extend(bytes(size - len(node.data)))

    def allocate(self, node: Node, offset: int, length: int, *, keep: bool, zero: bool) -> None:
        """fallocate(2): KEEP_SIZE, and ZERO_RANGE or PUNCH_HOLE."""
        end = offset + length
        if zero:
            stop = min(end, len(node.data))
            node.data[offset:stop] = bytes(max(stop - offset, 0))
        if not keep and end > len(node.data):
            node.data.extend(bytes(end - len(node.data)))

    def chmod(self, node: Node, mode: int) -> None:
        node.mode = node.mode & ~0o7777 | mode & 0o7777

    def remove_xattr(self, node: Node, name: bytes) -> None:
        if name not in node.xattrs:
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))
        del node.xattrs[name]

    # -- going back -----------------------------------------------------------------------------

    def image(self) -> Image:
        """The tree as it is now."""
        return Image.of(self)

    def restore(self, image: Image) -> None:
        """Show an image again (contract 3 of cowfs).

        Nodes that it has are as they were, also those that somebody holds unlinked; nodes that it
        has not lose their names and live on for whoever holds them. What has no name yet gets none.
        """
        for node in self._unnamed:
            node.unnamed = False
        self._unnamed.clear()
        for node in self.reachable():
            if node.number not in image.nodes:
                node.nlink = 0
                node.children = {}
                node.parent = None
        for node, was in image.nodes.values():
            fresh = _copy(was)
            for name in node.__dataclass_fields__:
                setattr(node, name, getattr(fresh, name))


def _check_name(name: bytes) -> None:
    if len(name) > NAME_MAX:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))


def _is_within(directory: Node | None, top: Node) -> bool:
    """Whether `directory` is `top` or lies below it."""
    while directory is not None:
        if directory is top:
            return True
        directory = directory.parent
    return False
