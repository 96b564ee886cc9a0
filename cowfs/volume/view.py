"""A view: the tree that one lineage shows, with its caches and what it has not committed yet.

The main view is the head of a branch and takes writes. All operations on a view (namespace.py,
data.py, attributes.py, history.py) are functions on it.

Threading: owned by the volume's thread.
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterable
from itertools import islice
from typing import TYPE_CHECKING

from cowfs.errors import DamagedRecordError
from cowfs.format import keys, records
from cowfs.store.env import LmdbError
from cowfs.store.lineage import Lineage
from cowfs.store.snapshot import Snapshot
from cowfs.types import ROOT_INO
from cowfs.volume.inode import NO_BLOCKS, Inode
from cowfs.volume.posix import PosixError

if TYPE_CHECKING:
    from cowfs.volume.volume import Volume

_REGULAR = 8
_FORMER = 1 << 15
"""Names that are remembered after they went (some 5 MB); the oldest are forgotten first."""


class View:
    """One tree. `id` is the upper part of its FUSE node ids.

    inodes: the cache; an inode that is dirty, in flight or referenced stays in it, but for
        those that `shrink` took out.
    held: references that the kernel has to inodes that are not in the cache, by number.
    changed: dirty inodes since the last quiesce, in the order they became dirty.
    names: (parent, name) to `ino << 4 | kind`, 0 for a removal, since the last quiesce.
    links: (ino, parent, name) to whether it exists, since the last quiesce.
    removed: inodes whose last name went since the last quiesce.
    gone: those of which the store may still show a version, since the commit is not there yet.
    dropped: (content, epoch) to drop with the next group.
    orphans: inodes without a name that something still holds.
    unnamed: those of them that never had one and may get one (volume/unnamed.py).
    began: those that got their first name in the open epoch, to the epoch before it since which
        there is content of them.
    damaged: inodes that names lead to and whose records cannot be read.
    editing: a long operation holds inode objects; none may leave the cache.
    former: (directory, name) to the content, or the directory, that lost this name last, and
        (0, name) to the content that did in any directory. What gets the name next resembles it:
        git and many editors replace a file that way, and move one.
    created, touched, deleted: what the open epoch did, for the counts of its checkpoint.
    thinned: some contents of volatile paths are not kept any more; never of the head.
    frozen: how many changes of inodes and names groups have taken; entered: those before the open
        epoch.
    """

    def __init__(self, volume: Volume, view_id: int, branch: str, lineage: Lineage) -> None:
        self.volume = volume
        self.id = view_id
        self.branch = branch
        self.lineage = lineage
        self.inodes: dict[int, Inode] = {}
        self.held: dict[int, int] = {}
        self.changed: list[Inode] = []
        self.names: dict[tuple[int, bytes], int] = {}
        self.links: dict[tuple[int, int, bytes], int] = {}
        self.xattrs: dict[tuple[int, bytes], bytes | None] = {}
        self.removed: dict[int, Inode] = {}
        self.gone: set[int] = set()
        self.dropped: list[tuple[int, int]] = []
        self.orphans: dict[int, Inode] = {}
        self.unnamed: set[int] = set()
        self.began: dict[int, int] = {}
        self.damaged: dict[int, Inode] = {}
        self.created: set[int] = set()
        self.touched: set[int] = set()
        self.deleted: set[int] = set()
        self.frozen = self.entered = 0
        self.dirty_bytes = 0
        self.editing = False
        self.thinned = False
        self.former: dict[tuple[int, bytes], int] = {}
        self._snapshot: Snapshot | None = None

    @property
    def head(self) -> int:
        """The open epoch."""
        return self.lineage.head

    @property
    def snapshot(self) -> Snapshot:
        """The committed state of this view. Valid until the next commit is reaped."""
        if self._snapshot is None:
            self._snapshot = Snapshot(self.volume.reader, self.lineage)
        return self._snapshot

    def refresh(self) -> None:
        """The volume has a newer read transaction."""
        self._snapshot = None

    def is_thinned(self, inode: Inode) -> bool:
        """Whether some of a file is not kept any more: then none of it is shown, since half a file
        is worse than none."""
        return self.snapshot.is_thinned(inode.content)

    # -- finding inodes ---------------------------------------------------------------------

    def inode(self, ino: int) -> Inode:
        """The inode. Raises PosixError: ESTALE, upon which the kernel looks the path up again, or
        EIO when it is damaged."""
        inode = self.inodes.get(ino)
        if inode is None:
            return self._load(ino)
        if inode.damaged:
            raise PosixError(errno.EIO)
        return inode

    def _load(self, ino: int) -> Inode:
        try:
            record = self.snapshot.inode(ino)
        except DamagedRecordError as error:
            self.volume.damaged(ino, str(error))
            raise PosixError(errno.EIO) from None
        if record is None or ino in self.gone:
            raise PosixError(errno.EIO if ino in self.damaged else errno.ESTALE)
        inode = self.inodes[ino] = Inode(ino, record)
        inode.nlookup = self.held.pop(ino, 0)
        if ino == ROOT_INO:
            inode.nlookup = 1  # the kernel has it without ever looking it up
        return inode

    def named(self, packed: int) -> Inode:
        """The inode of a directory entry (`ino << 4 | kind`), one that is `damaged` when its record
        cannot be read or is not there."""
        ino = packed >> 4
        inode = self.inodes.get(ino) or self.damaged.get(ino)
        if inode is not None:
            return inode
        try:
            return self._load(ino)
        except PosixError as error:
            if error.errno == errno.ESTALE:
                self.volume.damaged(ino, f"inode {ino} does not exist")
        return self.take_for_damaged(ino, packed & 15)

    def take_for_damaged(self, ino: int, kind: int) -> Inode:
        """Remember that an inode cannot be read."""
        try:
            names = len(self.snapshot.links(ino))
        except DamagedRecordError:
            names = 1
        inode = self.damaged[ino] = Inode.unreadable(ino, kind, max(names, 1))
        return inode

    def in_kernel(self, ino: int) -> bool:
        """Whether the kernel has a reference to it: only then it can have anything of it cached."""
        inode = self.inodes.get(ino)
        return ino == ROOT_INO or ino in self.held or (inode is not None and inode.nlookup > 0)

    def recall(self, inodes: Iterable[int], seen: Snapshot | None = None) -> None:
        """Have those in the cache again that the kernel refers to, as they are `seen`."""
        seen = seen or self.snapshot
        for ino in inodes:
            if ino in self.held and (record := seen.inode(ino)) is not None:
                inode = self.inodes[ino] = Inode(ino, record)
                inode.nlookup = self.held.pop(ino)

    def forget(self, ino: int, count: int) -> None:
        """The kernel gives references back."""
        inode = self.inodes.get(ino)
        if inode is not None:
            inode.nlookup = max(inode.nlookup - count, 0)
            if not inode.nlookup:
                self.release(inode)
        elif ino in self.held:
            self.held[ino] -= count
            if self.held[ino] <= 0:
                del self.held[ino]

    def shrink(self, most: int, at_once: int) -> bool:
        """Take inodes out of the cache, those first that were loaded first, until it has at most
        `most`; looks at `at_once` of them. Returns whether there are still more."""
        excess = len(self.inodes) - most
        if excess <= 0 or self.editing:
            return False
        looked = list(islice(self.inodes.values(), at_once))
        for inode in looked:
            ino = inode.ino
            del self.inodes[ino]
            if excess > 0 and inode.replaceable and ino != ROOT_INO:
                excess -= 1
                if inode.nlookup:
                    self.held[ino] = inode.nlookup
            else:
                self.inodes[ino] = inode  # its turn comes again after all others
        return excess > 0

    def directory(self, ino: int) -> Inode:
        """A directory with its entries loaded. Raises PosixError (ENOTDIR, ESTALE, EIO)."""
        inode = self.inodes.get(ino) or self._load(ino)
        if inode.damaged:
            raise PosixError(errno.EIO)
        if inode.entries is None:
            if not inode.is_dir:
                raise PosixError(errno.ENOTDIR)
            self.load_entries(inode)
        return inode

    def load_entries(self, inode: Inode) -> None:
        """Fill `entries`, importing the base directory behind it when that was not done yet."""
        if inode.orphan_epoch:
            inode.entries = {}
            return
        if not self.volume.importer.list_directory(self, inode):
            inode.entries = self.stored_entries(inode.ino)
            self.volume.external.check_directory(self, inode)

    def stored_entries(self, directory: int) -> dict[bytes, int]:
        """The entries of a directory as they are stored. Where one cannot be read, its inode tells
        of the name, too (links); if that is not found, the name leads to something damaged."""
        unread: dict[bytes, str] = {}
        found = self.snapshot.entries(directory, unread.__setitem__)
        entries = {name: ino << 4 | kind for name, ino, kind in found}
        if unread:
            above = self.snapshot.directory_path(directory)
            for name, detail in unread.items():
                self.volume.problem("damaged", above + b"/" + name if above else name, detail)
            entries |= self._entries_from_links(directory, unread.keys())
            for name in unread.keys() - entries.keys():
                inode = self.take_for_damaged(self.volume.take_id(), _REGULAR)
                entries[name] = inode.ino << 4 | inode.kind
        return entries

    def _entries_from_links(self, directory: int, names: Collection[bytes]) -> dict[bytes, int]:
        """What links say of names in a directory. Looks at all links there are."""
        found = {}
        for key, value in self.volume.reader.scan("link"):
            parent, name = keys.link_parts(key)
            if parent == directory and name in names and value:
                ino, snapshot = keys.unpack_id(key), self.snapshot
                seen = snapshot.newest("link", keys.link_prefix(ino, parent, name))
                if seen is not None and seen[1]:
                    found[name] = ino << 4 | seen[1][0]
        return found

    def parent_of(self, directory: Inode) -> int:
        """Inode number of `..`."""
        if not directory.parent and directory.ino != 1:
            links = self.snapshot.links(directory.ino)
            directory.parent = links[0][0] if links else 1
        return directory.parent or 1

    # -- recording changes ------------------------------------------------------------------

    def begin(self) -> None:
        """The workspace is about to change something: not in an epoch of changes from outside."""
        adoption = self.volume.external.adoption
        if adoption.adopting:
            adoption.settle()

    def mark(self, inode: Inode) -> None:
        """The inode's record changed: write it with the next group."""
        inode.attr = None
        if not inode.dirty:
            inode.dirty = True
            self.changed.append(inode)

    def add_inode(self, record: records.InodeRecord) -> Inode:
        """A new inode, without a name yet."""
        ino = self.volume.take_id()
        inode = Inode(ino, record)
        inode.content = ino
        inode.xattrs = {}
        if inode.is_dir:
            inode.entries = {}
        self.inodes[ino] = inode
        self.created.add(ino)
        self.mark(inode)
        return inode

    def add_name(self, directory: Inode, name: bytes, inode: Inode) -> None:
        """Enter a name; the caller has made room for it."""
        packed = inode.ino << 4 | inode.kind
        assert directory.entries is not None
        directory.entries[name] = packed
        key = (directory.ino, name)
        self.names[key] = packed
        self.links[(inode.ino, *key)] = inode.kind
        if inode.is_dir:
            inode.parent = directory.ino
        if self.former and not inode.reference:
            inode.reference = self._former(directory, name)

    def drop_name(self, directory: Inode, name: bytes, inode: Inode) -> None:
        """Take a name out."""
        assert directory.entries is not None
        del directory.entries[name]
        key = (directory.ino, name)
        self.names[key] = 0
        self.links[(inode.ino, *key)] = 0
        former = self.former
        former[key] = inode.ino if inode.is_dir else inode.content
        if inode.is_file:
            former[(0, name)] = inode.content
        while len(former) > _FORMER:
            del former[next(iter(former))]

    def _former(self, directory: Inode, name: bytes) -> int:
        """What lost this name here, or in the directory whose name this one got, or anywhere."""
        former = self.former
        found = former.pop((directory.ino, name), 0)
        if not found and directory.reference:
            found = former.pop((directory.reference, name), 0)
        return found or former.get((0, name), 0)

    def remove_inode(self, inode: Inode) -> None:
        """The last name is gone. The object stays for the kernel's references and handles."""
        inode.nlink = 0
        inode.orphan_epoch = self.began.get(inode.ino, self.head)
        self.orphans[inode.ino] = inode
        if inode.ino in self.created:
            self.created.discard(inode.ino)
        else:
            self.deleted.add(inode.ino)
        self.touched.discard(inode.ino)
        self.removed[inode.ino] = inode
        self.gone.add(inode.ino)
        self.mark(inode)
        self.damaged.pop(inode.ino, None)
        if inode.xattrs is None:
            inode.xattrs = self._readable_xattrs(inode.ino)
        for name in inode.xattrs:
            self.xattrs[(inode.ino, name)] = None
        if not inode.handles and not inode.nlookup:
            self.drop_orphan(inode)

    def _readable_xattrs(self, ino: int) -> dict[bytes, bytes]:
        """Those of an inode that goes; what is damaged stays, and takes a little space."""
        try:
            return self.snapshot.xattrs(ino)
        except DamagedRecordError as error:
            self.volume.damaged(ino, str(error))
        except LmdbError as error:
            self.volume.met_damaged_page(error)
        return {}

    def drop_orphan(self, inode: Inode) -> None:
        """Nobody can reach an orphan any more: its blocks are garbage."""
        self.discard_blocks(inode)
        self.forget_orphan(inode)
        self.orphans.pop(inode.ino, None)
        self.unnamed.discard(inode.ino)
        self.inodes.pop(inode.ino, None)

    def revive(self, inode: Inode) -> None:
        """An orphan gets a name again: what it wrote without one is garbage."""
        self.discard_blocks(inode)
        self.forget_orphan(inode)
        self.orphans.pop(inode.ino, None)  # not there when nothing held it
        inode.orphan_epoch = 0
        inode.lineage = None
        self.gone.discard(inode.ino)
        if inode.removed:
            inode.removed = False
            inode.generation += 1

    def forget_orphan(self, inode: Inode) -> None:
        """What an orphan wrote since it lost its last name is garbage."""
        if inode.is_file:
            self.dropped.append((inode.content, inode.orphan_epoch))
        if inode.ino in self.volume.orphans:
            self.volume.orphans.discard(inode.ino)
            self.volume.extra.delete("orphan", keys.pack_id(inode.ino))

    def discard_blocks(self, inode: Inode) -> None:
        """Forget changed blocks that need not be written any more."""
        for block in inode.blocks.values():
            if block is not None:
                self.dirty_bytes -= len(block)
        inode.blocks = NO_BLOCKS

    def release(self, inode: Inode) -> None:
        """A reference of the kernel or a handle went: let go of what nobody needs."""
        if inode.handles or inode.nlookup:
            return
        if inode.orphan_epoch:
            self.drop_orphan(inode)
        elif inode.idle:
            self.inodes.pop(inode.ino, None)

    # -- what there is to commit (freezing.py) ----------------------------------------------

    @property
    def dirty(self) -> bool:
        return bool(self.changed or self.names or self.removed or self.dropped or self.xattrs)

    @property
    def changes(self) -> int:
        """Another number whenever the open epoch was changed. For any thread."""
        return self.frozen - self.entered + len(self.changed) + len(self.names)

    def count_replacement(self, inode: Inode, old: Inode) -> None:
        """A new file renamed over an old one, as editors save, is one that was modified."""
        if inode.ino in self.created and old.ino in self.deleted:
            self.created.discard(inode.ino)
            self.deleted.discard(old.ino)
            self.touched.add(inode.ino)

    def counts(self) -> records.Counts:
        """What the open epoch changed so far, in inodes; directories count when made or removed."""
        touched = self.touched
        pending = {
            i.ino for i in self.changed if not (i.orphan_epoch or i.is_dir or i.ino in self.created)
        }
        modified = len(touched | pending) if pending else len(touched)
        return records.Counts(len(self.created), modified, len(self.deleted))
