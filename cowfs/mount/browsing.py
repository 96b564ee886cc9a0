"""`.cowfs/checkpoints`: every checkpoint as a directory that can only be read.

The handlers have the names of those of the main view, where what concerns a node id or a handle of
another view is handed on (serving.py). All that would change something is EROFS.

What the kernel is told of a checkpoint's tree it may keep for ever, and `.cowfs` itself until a
restore brings one of the project's own. Not so the names of checkpoints and labels: those are
looked up each time, so that one that was removed is gone at once, with all below it.

Threading: the FUSE thread. A handler that has to wait for a commit, since what is shown here is in
the store, returns a coroutine.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Protocol

from cowfs.mount import replies, wire
from cowfs.mount.nodes import BROWSE_INO, CHECKPOINTS_INO, INO_MASK, NAMES, TOPS, VIEW_SHIFT
from cowfs.mount.requests import Answer, Caller
from cowfs.store.group import TransactionGroup
from cowfs.types import NAME_MAX, ROOT_INO
from cowfs.volume import attributes, data, sparse
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
    """An open directory of a checkpoint; the listing is taken when it is read from the start."""

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

    def _packed(self, visit: Visit, view: SealedView, inode: Inode) -> bytes:
        """The entry of an inode."""
        entry: bytes | None = inode.attr
        if entry is None:
            is_root = inode.ino == ROOT_INO
            # The link count of a directory may be another one when it is listed.
            keep = not inode.is_dir or view.is_listed(inode.ino)
            entry = replies.of_inode(
                inode,
                self._node(visit, inode.ino),
                inode.mode,
                generation=0 if is_root else visit.turn,
                entry_valid=0 if is_root else replies.FOREVER,
                attr_valid=replies.FOREVER if keep else 0,
            )
            if keep:
                inode.attr = entry
        return entry

    def _entry(self, visit: Visit, view: SealedView, inode: Inode) -> bytes:
        """A reply by which the kernel takes a reference."""
        if inode.ino != ROOT_INO:
            self._visits.use(visit)
        if inode.damaged:
            return replies.unreadable(self._node(visit, inode.ino), inode.kind)
        return self._packed(visit, view, inode)

    # -- names ------------------------------------------------------------------------------

    def root(self) -> bytes:
        """The reply to a look-up of `.cowfs`."""
        return self._names_entry(BROWSE_INO, Name(DIRECTORY))

    def _names_entry(self, node: int, name: Name) -> bytes:
        link = name.kind == LINK
        return replies.made_up(
            node,
            stat.S_IFLNK | 0o777 if link else stat.S_IFDIR | 0o555,
            uid=os.getuid(),
            size=len(name.target) if link else 0,
            moment=self._volume.open_epoch.opened,  # when the last checkpoint was made
            entry_valid=replies.FOREVER if node in (BROWSE_INO, CHECKPOINTS_INO) else 0,
            attr_valid=_TIME_SECONDS,
        )

    def lookup(self, parent: int, name: bytes, pid: int) -> Answer:
        if parent == BROWSE_INO:
            if name == _CHECKPOINTS:
                return self._names_entry(self._names.use(b""), Name(DIRECTORY))
            return self._absent
        if parent >> VIEW_SHIFT == NAMES:
            return self._look_up_name(parent, name)
        visit, ino = self._place(parent)
        view = self._visits.view(visit)
        try:
            inode = view.find(ino, name)
        except NotStoredError:
            return self._look_up_brought(visit, view, ino, name)
        return self._absent if inode is None else self._entry(visit, view, inode)

    async def _look_up_brought(
        self, visit: Visit, view: SealedView, directory: int, name: bytes
    ) -> bytes:
        await self._bring(visit, view, directory)
        view = self._visits.view(visit)
        inode = view.find(directory, name, brought=True)
        return self._absent if inode is None else self._entry(visit, view, inode)

    def reopen(self, node: int, name: bytes) -> Answer:
        return errno.ESTALE  # the number of its view may be another checkpoint's by now

    def _look_up_name(self, parent: int, name: bytes) -> Answer:
        if len(name) > NAME_MAX:
            return errno.ENAMETOOLONG
        above = self._names.path(parent)
        path = above + b"/" + name if above else name
        self._volume.reap()
        found = self._visits.find_name(path)
        return self._look_up_committed(path) if found is None else self._found(path, found)

    async def _look_up_committed(self, path: bytes) -> bytes:
        """One may be on its way."""
        await self._commit()
        found = self._visits.find_name(path)
        return self._absent_now if found is None else self._found(path, found)

    def _found(self, path: bytes, found: Name) -> bytes:
        if found.kind == CHECKPOINT:
            visit, view, root = self._inode(_top(path))
            return self._entry(visit, view, root)
        return self._names_entry(self._names.use(path), found)

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

    def readlink(self, node: int) -> Answer:
        if node >> VIEW_SHIFT == NAMES:
            return self._name(node).target
        return self._inode(node)[2].target

    # -- attributes -------------------------------------------------------------------------

    def getattr(self, node: int, pid: int) -> Answer:
        if node >> VIEW_SHIFT == NAMES:
            return wire.attr_out(self._names_entry(node, self._name(node)))
        return wire.attr_out(self._packed(*self._inode(node)))

    def _xattrs(self, node: int) -> dict[bytes, bytes]:
        if node >> VIEW_SHIFT == NAMES:
            return {}
        _, view, inode = self._inode(node)
        return attributes.xattrs(view, inode)

    def getxattr(self, node: int, name: bytes) -> bytes | int:
        if not name.startswith(XATTR_CLASSES):
            return errno.ENOTSUP
        value = self._xattrs(node).get(name)
        return errno.ENODATA if value is None else value

    def listxattr(self, node: int) -> list[bytes]:
        return [name for name in self._xattrs(node) if name.startswith(XATTR_CLASSES)]

    # -- files ------------------------------------------------------------------------------

    def _add_handle(self, handle: _File | _Directory | _NamesDirectory) -> int:
        if not isinstance(handle, _NamesDirectory):
            self._visits.use(handle.visit)
        fh = self._next_handle
        self._next_handle = fh + 1
        self._handles[fh] = handle
        return fh

    def open(self, node: int, flags: int, caller: Caller) -> Answer:
        if flags & os.O_ACCMODE != os.O_RDONLY or flags & os.O_TRUNC:
            return errno.EROFS
        visit, _, inode = self._inode(node)
        return wire.OPEN_OUT.pack(self._add_handle(_File(visit, inode)), wire.KEEP_CACHE, 0)

    def read(self, fh: int, offset: int, size: int) -> Answer:
        file = self._handles.get(fh)
        if not isinstance(file, _File):
            return errno.EBADF
        return data.read_pieces(self._visits.view(file.visit), file.inode, offset, size)

    def lseek(self, fh: int, offset: int, whence: int) -> Answer:
        file = self._handles.get(fh)
        if not isinstance(file, _File):
            return errno.EBADF
        if offset < 0:
            return errno.ENXIO
        hole = sparse.hole(self._visits.view(file.visit), file.inode, offset)
        return wire.LSEEK_OUT.pack(sparse.seek(file.inode, offset, whence, hole))

    def release(self, fh: int) -> Answer:
        handle = self._handles.pop(fh, None)
        if isinstance(handle, (_File, _Directory)):
            self._visits.leave(handle.visit)
        return None

    releasedir = release

    # -- directories ------------------------------------------------------------------------

    def opendir(self, node: int) -> Answer:
        """The kernel keeps listings of checkpoints, which never change; not that of their names."""
        if node >> VIEW_SHIFT == NAMES:
            return wire.OPEN_OUT.pack(self._add_handle(_NamesDirectory(node)), 0, 0)
        visit, _, inode = self._inode(node)
        handle = self._add_handle(_Directory(visit, inode.ino))
        return wire.OPEN_OUT.pack(handle, wire.KEEP_CACHE | wire.CACHE_DIR, 0)

    def readdir(self, fh: int, offset: int, size: int) -> Answer:
        directory = self._handles.get(fh)
        if isinstance(directory, _NamesDirectory):
            return self._read_names(directory, offset, size)
        if not isinstance(directory, _Directory):
            return errno.EBADF
        if directory.listing is None or not offset:
            view = self._visits.view(directory.visit)
            try:
                directory.listing = view.listing(directory.ino)
            except NotStoredError:
                return self._list_brought(directory, view, offset, size)
        return self._read_directory(directory, directory.listing, offset, size)

    async def _list_brought(
        self, directory: _Directory, view: SealedView, offset: int, size: int
    ) -> bytes:
        await self._bring(directory.visit, view, directory.ino)
        view = self._visits.view(directory.visit)
        directory.listing = view.listing(directory.ino, brought=True)
        return self._read_directory(directory, directory.listing, offset, size)

    def _read_directory(
        self, directory: _Directory, listing: list[tuple[bytes, int]], offset: int, size: int
    ) -> bytes:
        visit = directory.visit
        view = self._visits.view(visit)
        inodes, reply = view.inodes, replies.Listing(size)
        if offset == 0:
            reply.add_dot(b".", self._node(visit, directory.ino), 1)
        if offset <= 1:
            above = CHECKPOINTS_INO
            if directory.ino != ROOT_INO:
                above = self._node(visit, view.parent_of(view.inode(directory.ino)))
            reply.add_dot(b"..", above, 2)
        for at in range(max(offset - 2, 0), len(listing)):
            name, packed = listing[at]
            child = inodes.get(packed >> 4) or view.named(packed)
            node = self._node(visit, child.ino)
            if child.damaged:
                entry = replies.unreadable(node, child.kind)
            else:
                entry = self._packed(visit, view, child)
            if not reply.add(name, entry, node, packed & 15, at + 3):
                break
            self._visits.use(visit)
        return reply.reply()

    def _read_names(self, directory: _NamesDirectory, offset: int, size: int) -> bytes:
        """The kernel looks each name up before it uses it: nothing is said of what lies there, and
        no checkpoint is read."""
        node = directory.node
        path = b"" if node == BROWSE_INO else self._names.path(node)
        if not offset:
            self._volume.reap()
            names = self._visits.names(path)
            directory.listing = [(_CHECKPOINTS, DIRECTORY)] if node == BROWSE_INO else list(names)
        reply = replies.Listing(size)
        if offset == 0:
            reply.add_dot(b".", node, 1)
        if offset <= 1:
            reply.add_dot(b"..", ROOT_INO if node == BROWSE_INO else BROWSE_INO, 2)
        for at in range(max(offset - 2, 0), len(directory.listing)):
            name, kind = directory.listing[at]
            mode = stat.S_IFLNK | 0o777 if kind == LINK else stat.S_IFDIR | 0o555
            known = 0
            if kind == CHECKPOINT:
                child = _top(name)
            elif node == BROWSE_INO:
                child = known = self._names.use(b"")
            else:
                child = known = self._names.use(path + b"/" + name if path else name)
            entry = replies.made_up(child, mode, uid=os.getuid())
            if not reply.add(name, entry, child, mode >> 12, at + 3):
                if known:
                    self._names.forget(known, 1)
                break
        return reply.reply()

    # -- what would change something ----------------------------------------------------------

    def _refuse(self, *args: object) -> Answer:
        return errno.EROFS

    mknod = mkdir = symlink = unlink = rmdir = rename = link = _refuse
    create = tmpfile = setattr = setxattr = removexattr = write = fallocate = _refuse

    def fsync(self, fh: int) -> Answer:
        """Nothing here is ever dirty."""
        return None

    def fsyncdir(self) -> Answer:
        return None

    def statfs(self) -> Answer:
        return replies.space(self._volume)


def _top(checkpoint: bytes) -> int:
    """The node of a checkpoint's root directory."""
    return TOPS << VIEW_SHIFT | int(checkpoint, 16)
