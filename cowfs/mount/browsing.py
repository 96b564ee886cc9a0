"""`.cowfs/checkpoints`: every checkpoint as a directory that can only be read.

The handlers have the names of those of the main view, where what concerns a node id or a handle of
another view is handed on (serving.py). All that would change something is EROFS.

What the kernel is told of a checkpoint's tree it may keep for ever, and `.cowfs` itself until a
restore brings one of the project's own. Not so the names of checkpoints and labels: those are
looked up each time, so that one that was removed is gone at once, with all below it.

Threading: the FUSE thread. Unlike those of the main view these handlers may wait for a commit:
what they show is in the store.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Any, Protocol

import pyfuse3

from cowfs.mount import replies
from cowfs.mount.nodes import BROWSE_INO, CHECKPOINTS_INO, INO_MASK, NAMES, TOPS, VIEW_SHIFT
from cowfs.store.writer import TransactionGroup
from cowfs.types import NAME_MAX, ROOT_INO
from cowfs.volume import attributes, data
from cowfs.volume.browsing import (
    CHECKPOINT,
    DIRECTORY,
    LINK,
    Name,
    NotStoredError,
    SealedView,
    Visit,
)
from cowfs.volume.inode import Inode
from cowfs.volume.posix import PosixError
from cowfs.volume.volume import Volume

XATTR_CLASSES = (b"user.", b"trusted.", b"security.")
"""Other classes are refused; above all POSIX ACLs, which nobody would enforce here (programs then
use chmod(2)). Those of base files are kept in the store and hidden."""
_CHECKPOINTS = b"checkpoints"
_TIME_SECONDS = 1
"""How long the kernel may believe when the last checkpoint was made."""
_DOTS = 2


class Waiter(Protocol):
    """How a handler waits for a commit (mount/loop.py)."""

    async def committed(self, group: TransactionGroup) -> None: ...


class _Names:
    """Node ids of paths below `checkpoints` that are no checkpoints: labels, short ids. One is
    known as long as the kernel refers to it."""

    def __init__(self) -> None:
        self._paths = {CHECKPOINTS_INO: b""}
        self._nodes = {b"": CHECKPOINTS_INO}
        self._uses: dict[int, int] = {}
        self._next = CHECKPOINTS_INO + 1

    def path(self, node: int) -> bytes:
        path = self._paths.get(node)
        if path is None:
            raise PosixError(errno.ESTALE)
        return path

    def use(self, path: bytes) -> int:
        """The node of a path, of which the kernel takes a reference."""
        node = self._nodes.get(path)
        if node is None:
            node = self._nodes[path] = self._next
            self._paths[node] = path
            self._next += 1
        self._uses[node] = self._uses.get(node, 0) + 1
        return node

    def forget(self, node: int, count: int) -> None:
        left = self._uses.get(node, 0) - count
        if left > 0:
            self._uses[node] = left
        elif node in self._uses:
            del self._uses[node]
            if node != CHECKPOINTS_INO:
                del self._nodes[self._paths.pop(node)]


class _File:
    """An open file of a checkpoint."""

    __slots__ = ("inode", "visit")

    def __init__(self, visit: Visit, inode: Inode) -> None:
        self.visit = visit
        self.inode = inode


class _Directory:
    """An open directory of a checkpoint; the listing is taken at the first read."""

    __slots__ = ("ino", "listing", "visit")

    def __init__(self, visit: Visit, ino: int) -> None:
        self.visit = visit
        self.ino = ino
        self.listing: list[tuple[bytes, int]] | None = None


class _NamesDirectory:
    """`.cowfs`, `.cowfs/checkpoints`, or a part of labels, open."""

    __slots__ = ("listing", "node")

    def __init__(self, node: int) -> None:
        self.node = node
        self.listing: list[tuple[bytes, str]] = []


class Browsing:
    """The request handlers of what lies below `.cowfs`."""

    def __init__(self, volume: Volume, waiter: Waiter) -> None:
        self._volume = volume
        self._visits = volume.visits
        self._waiter = waiter
        self._names = _Names()
        self._handles: dict[int, _File | _Directory | _NamesDirectory] = {}
        self._next_handle = INO_MASK + 1
        self._absent = replies.absent(replies.FOREVER)
        self._absent_now = replies.absent(0)

    # -- helpers ----------------------------------------------------------------------------

    async def _commit(self) -> None:
        """All that was done so far is committed, and seen. Raises PosixError(ENOSPC or EIO)."""
        group = self._volume.quiesce()
        if group is not None and not group.done:
            await self._waiter.committed(group)
        self._volume.reap()

    def _place(self, node: int) -> tuple[Visit, int]:
        """The checkpoint and inode number of a node."""
        number, ino = node >> VIEW_SHIFT, node & INO_MASK
        if number == TOPS:
            return self._visits.visit(f"{ino:012x}"), ROOT_INO
        return self._visits.numbered(number), ino

    def _inode(self, node: int) -> tuple[Visit, SealedView, Inode]:
        if node >> VIEW_SHIFT == NAMES:
            raise PosixError(errno.EINVAL)
        visit, ino = self._place(node)
        view = self._visits.view(visit)
        return visit, view, view.inode(ino)

    def _node(self, visit: Visit, ino: int) -> int:
        if ino == ROOT_INO:
            return _top(visit.checkpoint.encode())
        return visit.number << VIEW_SHIFT | ino

    async def _bring(self, visit: Visit, view: SealedView, directory: int) -> None:
        """See that the store has the entries of a directory."""
        self._visits.use(visit)  # nobody else gets its number meanwhile
        try:
            view.bring(directory)
            await self._commit()
        finally:
            self._visits.leave(visit)

    def _attributes(self, visit: Visit, view: SealedView, inode: Inode) -> pyfuse3.EntryAttributes:
        entry: pyfuse3.EntryAttributes | None = inode.attr
        if entry is None:
            entry = replies.attributes(inode)
            entry.st_ino = self._node(visit, inode.ino)
            if inode.ino == ROOT_INO:
                entry.entry_timeout = 0
            else:
                entry.generation = visit.turn
            if inode.is_dir and not view.is_listed(inode.ino):
                entry.attr_timeout = 0  # its link count may be another one when it is
                inode.attr = None
        return entry

    def _entry(self, visit: Visit, view: SealedView, inode: Inode) -> pyfuse3.EntryAttributes:
        """A reply by which the kernel takes a reference."""
        if inode.ino != ROOT_INO:
            self._visits.use(visit)
        if inode.damaged:
            return replies.unreadable(self._node(visit, inode.ino), inode.kind)
        return self._attributes(visit, view, inode)

    # -- names ------------------------------------------------------------------------------

    def root(self) -> pyfuse3.EntryAttributes:
        """The reply to a look-up of `.cowfs`."""
        return self._names_directory(BROWSE_INO)

    def _names_directory(self, node: int) -> pyfuse3.EntryAttributes:
        entry = replies.directory(node)
        entry.st_mode = stat.S_IFDIR | 0o555
        entry.attr_timeout = _TIME_SECONDS
        if node in (BROWSE_INO, CHECKPOINTS_INO):
            entry.entry_timeout = replies.FOREVER
        moment = self._volume.open_epoch.opened  # when the last checkpoint was made
        entry.st_atime_ns = entry.st_mtime_ns = entry.st_ctime_ns = moment
        return entry

    def _name_attributes(self, node: int, name: Name) -> pyfuse3.EntryAttributes:
        entry = self._names_directory(node)
        if name.kind == LINK:
            entry.st_mode = stat.S_IFLNK | 0o777
            entry.st_size = len(name.target)
        return entry

    async def lookup(self, parent: int, name: bytes, ctx: pyfuse3.RequestContext) -> Any:
        if parent == BROWSE_INO:
            if name == _CHECKPOINTS:
                return self._name_attributes(self._names.use(b""), Name(DIRECTORY))
            return self._absent
        if parent >> VIEW_SHIFT == NAMES:
            return await self._look_up_checkpoint(parent, name)
        visit, ino = self._place(parent)
        view = self._visits.view(visit)
        try:
            inode = view.find(ino, name)
        except NotStoredError:
            await self._bring(visit, view, ino)
            view = self._visits.view(visit)
            inode = view.find(ino, name, brought=True)
        if inode is None:
            return self._absent
        return self._entry(visit, view, inode)

    async def _look_up_checkpoint(self, parent: int, name: bytes) -> Any:
        if len(name) > NAME_MAX:
            raise PosixError(errno.ENAMETOOLONG)
        above = self._names.path(parent)
        path = above + b"/" + name if above else name
        self._volume.reap()
        found = self._visits.find_name(path)
        if found is None:
            await self._commit()  # one may be on its way
            found = self._visits.find_name(path)
            if found is None:
                return self._absent_now
        if found.kind == CHECKPOINT:
            visit, view, root = self._inode(_top(path))
            return self._entry(visit, view, root)
        return self._name_attributes(self._names.use(path), found)

    def _name(self, node: int) -> Name:
        """What a node of `NAMES` is now."""
        if node in (BROWSE_INO, CHECKPOINTS_INO):
            return Name(DIRECTORY)
        found = self._visits.find_name(self._names.path(node))
        if found is None or found.kind == CHECKPOINT:
            raise PosixError(errno.ESTALE)
        return found

    def forget(self, node: int, count: int) -> None:
        """The kernel gives references back."""
        number = node >> VIEW_SHIFT
        if number == NAMES:
            self._names.forget(node, count)
        elif number < TOPS:
            try:
                self._visits.leave(self._visits.numbered(number), count)
            except PosixError:
                pass

    async def readlink(self, node: int, ctx: pyfuse3.RequestContext) -> bytes:
        if node >> VIEW_SHIFT == NAMES:
            return self._name(node).target
        return self._inode(node)[2].target

    # -- attributes -------------------------------------------------------------------------

    async def getattr(self, node: int, ctx: pyfuse3.RequestContext) -> Any:
        if node >> VIEW_SHIFT == NAMES:
            return self._name_attributes(node, self._name(node))
        return self._attributes(*self._inode(node))

    def _xattrs(self, node: int) -> dict[bytes, bytes]:
        if node >> VIEW_SHIFT == NAMES:
            return {}
        _, view, inode = self._inode(node)
        return attributes.xattrs(view, inode)

    async def getxattr(self, node: int, name: bytes, ctx: pyfuse3.RequestContext) -> bytes:
        if not name.startswith(XATTR_CLASSES):
            raise PosixError(errno.ENOTSUP)
        value = self._xattrs(node).get(name)
        if value is None:
            raise PosixError(errno.ENODATA)
        return value

    async def listxattr(self, node: int, ctx: pyfuse3.RequestContext) -> list[bytes]:
        return [name for name in self._xattrs(node) if name.startswith(XATTR_CLASSES)]

    # -- files ------------------------------------------------------------------------------

    def _add_handle(self, handle: _File | _Directory | _NamesDirectory) -> int:
        if not isinstance(handle, _NamesDirectory):
            self._visits.use(handle.visit)
        fh = self._next_handle
        self._next_handle = fh + 1
        self._handles[fh] = handle
        return fh

    async def open(self, node: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        if flags & os.O_ACCMODE != os.O_RDONLY or flags & os.O_TRUNC:
            raise PosixError(errno.EROFS)
        visit, _, inode = self._inode(node)
        return pyfuse3.FileInfo(fh=self._add_handle(_File(visit, inode)))

    async def read(self, fh: int, offset: int, size: int) -> bytes:
        file = self._handles.get(fh)
        if not isinstance(file, _File):
            raise PosixError(errno.EBADF)
        return data.read(self._visits.view(file.visit), file.inode, offset, size)

    async def release(self, fh: int) -> None:
        handle = self._handles.pop(fh, None)
        if isinstance(handle, (_File, _Directory)):
            self._visits.leave(handle.visit)

    releasedir = release

    async def flush(self, fh: int) -> None:
        raise PosixError(errno.ENOSYS)  # as for the main view: the kernel asks only once

    # -- directories ------------------------------------------------------------------------

    async def opendir(self, node: int, ctx: pyfuse3.RequestContext) -> int:
        if node >> VIEW_SHIFT == NAMES:
            return self._add_handle(_NamesDirectory(node))
        visit, _, inode = self._inode(node)
        return self._add_handle(_Directory(visit, inode.ino))

    async def readdir(self, fh: int, start: int, token: pyfuse3.ReaddirToken) -> None:
        directory = self._handles.get(fh)
        if isinstance(directory, _NamesDirectory):
            self._read_names(directory, start, token)
        elif isinstance(directory, _Directory):
            if directory.listing is None or not start:
                directory.listing = await self._listing(directory)
            self._read_directory(directory, directory.listing, start, token)
        else:
            raise PosixError(errno.EBADF)

    async def _listing(self, directory: _Directory) -> list[tuple[bytes, int]]:
        """(name, node << 4 | kind) of the dots, (name, ino << 4 | kind) of all else."""
        visit, ino = directory.visit, directory.ino
        view = self._visits.view(visit)
        try:
            entries = view.listing(ino)
        except NotStoredError:
            await self._bring(visit, view, ino)
            view = self._visits.view(visit)
            entries = view.listing(ino, brought=True)
        above = CHECKPOINTS_INO
        if ino != ROOT_INO:
            above = self._node(visit, view.parent_of(view.inode(ino)))
        return [(b".", self._node(visit, ino) << 4), (b"..", above << 4), *entries]

    def _read_directory(
        self,
        directory: _Directory,
        listing: list[tuple[bytes, int]],
        start: int,
        token: pyfuse3.ReaddirToken,
    ) -> None:
        visit = directory.visit
        view = self._visits.view(visit)
        reply, inodes = pyfuse3.readdir_reply, view.inodes
        for at in range(start, len(listing)):
            name, packed = listing[at]
            if at < _DOTS:
                if not reply(token, name, replies.dot(packed >> 4), at + 1):
                    return
                continue
            child = inodes.get(packed >> 4) or view.named(packed)
            if child.damaged:
                entry = replies.unreadable(self._node(visit, child.ino), child.kind)
            else:
                entry = self._attributes(visit, view, child)
            if not reply(token, name, entry, at + 1):
                return
            self._visits.use(visit)

    def _read_names(
        self, directory: _NamesDirectory, start: int, token: pyfuse3.ReaddirToken
    ) -> None:
        """The kernel looks each name up before it uses it: nothing is said of what lies there, and
        no checkpoint is read."""
        node = directory.node
        path = b"" if node == BROWSE_INO else self._names.path(node)
        if not start:
            self._volume.reap()
            names = self._visits.names(path)
            directory.listing = [(_CHECKPOINTS, DIRECTORY)] if node == BROWSE_INO else list(names)
        dots = [(b".", node), (b"..", ROOT_INO if node == BROWSE_INO else BROWSE_INO)]
        for at in range(start, _DOTS):
            if not pyfuse3.readdir_reply(token, dots[at][0], replies.dot(dots[at][1]), at + 1):
                return
        entry = replies.directory(node)
        for at in range(max(start, _DOTS), len(directory.listing) + _DOTS):
            name, kind = directory.listing[at - _DOTS]
            entry.st_mode = stat.S_IFLNK | 0o777 if kind == LINK else stat.S_IFDIR | 0o555
            known = 0
            if kind == CHECKPOINT:
                entry.st_ino = _top(name)
            elif node == BROWSE_INO:
                entry.st_ino = known = self._names.use(b"")
            else:
                entry.st_ino = known = self._names.use(path + b"/" + name if path else name)
            if not pyfuse3.readdir_reply(token, name, entry, at + 1):
                if known:
                    self._names.forget(known, 1)
                return

    # -- what would change something ----------------------------------------------------------

    async def _refuse(self, *args: Any) -> Any:
        raise PosixError(errno.EROFS)

    mknod = mkdir = symlink = unlink = rmdir = rename = setxattr = removexattr = _refuse

    async def link(self, node: int, new_parent: int, *args: Any) -> Any:
        raise PosixError(errno.EROFS if new_parent > INO_MASK else errno.EXDEV)

    async def access(self, node: int, mode: int, ctx: pyfuse3.RequestContext) -> bool:
        raise PosixError(errno.ENOSYS)  # default_permissions: the kernel decides

    async def poll(self, node: int, fh: int, handle: Any, ctx: pyfuse3.RequestContext) -> int:
        raise PosixError(errno.ENOSYS)


def _top(checkpoint: bytes) -> int:
    """The node of a checkpoint's root directory."""
    return TOPS << VIEW_SHIFT | int(checkpoint, 16)
