"""Lazy import of the base directory.

A base directory is listed when it is first looked into; its entries become records of epoch 0,
which every lineage sees. Content is not read: a file's blocks come from the base until they are
written or sealed. The table `base` keeps what lay under each name with a fingerprint; the table
`origin` keeps where a directory or a content lies.

What was changed there from outside since is the subject of external/.

Threading: owned by the volume's thread.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from cowfs.format import keys, records
from cowfs.store.lineage import Lineage
from cowfs.store.snapshot import Snapshot
from cowfs.volume.base import BaseEntry, Fingerprint, fingerprint, same_file
from cowfs.volume.inode import Inode
from cowfs.volume.posix import PosixError, storable

if TYPE_CHECKING:
    from cowfs.volume.view import View
    from cowfs.volume.volume import Volume


_DIRECTORY = records.kind_of(stat.S_IFDIR)
_DEEPEST = 65536
"""Directories above one another in the base; more are a cycle, in a damaged store."""
ROOT_KEY = b"base_root"
"""In the table `meta`: what the top of the base was when it was last looked at, as a base record
(which the others have in the table `base`, by the directory that they lie in)."""
_START = Lineage(((0, 0),))


def is_shared(st: os.stat_result) -> bool:
    """Whether a base file has several names, of any type that can have them."""
    return st.st_nlink > 1 and not stat.S_ISDIR(st.st_mode)


def inode_record(entry: BaseEntry, content: int) -> records.InodeRecord:
    """The inode of a base entry as of epoch 0."""
    st = entry.st
    regular = stat.S_ISREG(st.st_mode)
    shared = is_shared(st)
    size = st.st_size if regular else len(entry.target) if entry.target else 0
    return records.InodeRecord(
        records.INODE_EXTERNAL_LINKS if shared else 0,
        st.st_mode,
        max(st.st_nlink, 2) if stat.S_ISDIR(st.st_mode) else st.st_nlink,
        st.st_uid,
        st.st_gid,
        st.st_rdev if stat.S_ISCHR(st.st_mode) or stat.S_ISBLK(st.st_mode) else 0,
        size,
        storable(st.st_atime_ns),
        storable(st.st_mtime_ns),
        storable(st.st_ctime_ns),
        content,
        size if regular else 0,
        entry.target,
    )


def base_record(entry: BaseEntry, ino: int, content: int) -> records.BaseRecord:
    """What is remembered of a base entry."""
    st = entry.st
    return records.BaseRecord(
        ino,
        content,
        records.kind_of(st.st_mode),
        st.st_mode,
        *fingerprint(st),
    )


def recorded_fingerprint(record: records.BaseRecord) -> Fingerprint:
    """The fingerprint in a base record, comparable with `base.fingerprint`."""
    return record.dev, record.st_ino, record.size, record.mtime, record.ctime


def root_records(root: BaseEntry, *, has_base: bool) -> list[tuple[str, bytes, bytes]]:
    """Records of epoch 0 for the root directory: (table, key, value)."""
    record = inode_record(root, 1)
    if not has_base:
        record = record._replace(nlink=2)
    rows = [("inode", keys.inode_key(1, 0), records.pack_inode(*record))]
    rows += [("xattr", keys.xattr_key(1, n, 0), b"\1" + v) for n, v in root.xattrs.items()]
    if has_base:
        rows.append(("meta", ROOT_KEY, records.pack_base(base_record(root, 1, 0))))
        rows.append(
            ("origin", keys.pack_id(1), records.pack_origin(records.ORIGIN_UNLISTED, 0, b""))
        )
    return rows


class Importer:
    """Brings base directories into the store.

    directories, files: how many were imported in this life. complete: the background walk of the
    whole base is done. pending: imported directories whose children the walk has not seen.
    """

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self._checked: set[int] = set()
        self._fresh: dict[int, records.OriginRecord] = {}
        self._fresh_base: dict[bytes, bytes] = {}
        self._hardlinks: dict[bytes, int] = {}
        self._at_zero: dict[int, int] = {}
        self._forgotten: set[int] = set()
        self._fresh_links: dict[int, Fingerprint] = {}
        self._entered: dict[int, set[tuple[int, bytes]]] = {}
        self.directories = 0
        self.files = 0
        self.complete = False

    # -- where things lie -----------------------------------------------------------------------

    def forget_origin(self, directory: int) -> None:
        """A directory is not in the base any more."""
        origin = self.origin(directory)
        if origin is not None and origin.state == records.ORIGIN_DONE:
            self._fresh.pop(directory, None)
            self._forgotten.add(directory)
            self._volume.extra.delete("origin", keys.pack_id(directory))

    def origin(self, thing: int) -> records.OriginRecord | None:
        """Where a directory (by ino) or a content lies in the base; None when it does not."""
        if thing in self._forgotten:
            return None
        fresh = self._fresh.get(thing)
        if fresh is not None:
            return fresh
        value = self._volume.reader.get("origin", keys.pack_id(thing))
        return records.unpack_origin(value) if value is not None else None

    def is_fresh(self, thing: int) -> bool:
        """Whether the store may not have yet what `origin` says."""
        return thing in self._fresh

    def base_path(self, origin: records.OriginRecord) -> bytes:
        """Path of a thing relative to the base directory; where a directory above it has been
        removed by `apply`, the part of it that is known (a fingerprint tells what lies there)."""
        parts: list[bytes] = []
        while origin.parent and len(parts) < _DEEPEST:
            parts.append(origin.name)
            above = self.origin(origin.parent)
            if above is None:
                break
            origin = above
        return b"/".join(reversed(parts))

    def base_entry(self, parent: int, name: bytes) -> records.BaseRecord | None:
        """What was last seen under a name of the base."""
        key = keys.base_key(parent, name)
        value = self._fresh_base.get(key) or self._volume.reader.get("base", key)
        return records.unpack_base(value) if value else None

    def set_base(self, parent: int, name: bytes, record: records.BaseRecord) -> None:
        """Remember what lies under a name of the base; readers see it at once."""
        key, value = keys.base_key(parent, name), records.pack_base(record)
        self._fresh_base[key] = value
        self._volume.extra.put("base", key, value)

    def forget_base(self, parent: int, name: bytes) -> None:
        """A name of the base is gone."""
        key = keys.base_key(parent, name)
        self._fresh_base.pop(key, None)
        self._volume.extra.delete("base", key)

    def set_origin(self, thing: int, state: int, parent: int, name: bytes) -> None:
        """Write an origin record with the next group; readers see it at once."""
        record = records.OriginRecord(state, parent, name)
        self._fresh[thing] = record
        self._forgotten.discard(thing)
        self._volume.extra.put("origin", keys.pack_id(thing), records.pack_origin(*record))

    # -- listing --------------------------------------------------------------------------------

    def list_directory(self, view: View, inode: Inode) -> bool:
        """Import the base directory behind `inode` if that was not done; True when it was now."""
        origin = self.origin(inode.ino)
        if origin is None or origin.state != records.ORIGIN_UNLISTED:
            return False
        if self._volume.base is None:
            raise PosixError(errno.EIO)
        path = self.base_path(origin)
        try:
            listing = self._volume.base.scan(path)
        except OSError as error:
            self._volume.problem("unreadable", path, f"cannot list the base: {error.strerror}")
            raise PosixError(error.errno or errno.EIO) from None
        self.take_listing(view, inode, origin, listing)
        return True

    def needs_listing(self, view: View, ino: int) -> bytes | None:
        """Path of the base directory that should be listed or compared for an inode, or None."""
        if ino in self._checked:
            return None
        try:
            inode = view.inode(ino)
        except PosixError:
            return None
        origin = self.origin(ino)
        if origin is None or inode.orphan_epoch or origin.state == records.ORIGIN_LOST:
            return None
        return self.base_path(origin)

    def begin_check(self, directory: int) -> bool:
        """Whether a directory is still to be compared in this life; the caller does it now."""
        if directory in self._checked:
            return False
        self._checked.add(directory)
        return True

    def offer_listing(self, view: View, ino: int, listing: list[BaseEntry]) -> None:
        """Take a listing that was read elsewhere, if it is still wanted."""
        if ino in self._checked:
            return
        inode, origin = view.inode(ino), self.origin(ino)
        if origin is None or inode.orphan_epoch:
            return
        if origin.state == records.ORIGIN_UNLISTED:
            self.take_listing(view, inode, origin, listing)
            return
        self._checked.add(ino)
        if inode.entries is None:
            inode.entries = view.stored_entries(ino)
        self._volume.external.compare(view, inode, self.base_path(origin), listing)

    def take_listing(
        self, view: View, inode: Inode, origin: records.OriginRecord, listing: list[BaseEntry]
    ) -> None:
        """Make the entries of a first listing records of epoch 0, which all epochs see that have
        the directory; those of one that the open epoch adopted belong to that."""
        inode.entries = {}
        subdirectories = 0
        epoch = view.head if inode.ino in view.created else 0
        for entry in listing:
            if epoch and is_shared(entry.st):
                self._volume.external.other_name(view, entry)
            child = self.import_entry(view, inode, entry, epoch=epoch)
            if epoch:
                view.add_name(inode, entry.name, child)
            inode.entries[entry.name] = child.ino << 4 | child.kind
            subdirectories += child.is_dir
        if inode.nlink != 2 + subdirectories:
            # btrfs and others count 1; find(1) relies on 2 + subdirectories.
            inode.nlink = 2 + subdirectories
            inode.attr = None
            self._correct_nlink(view, inode)
        self.set_origin(inode.ino, records.ORIGIN_DONE, origin.parent, origin.name)
        self._checked.add(inode.ino)
        self._volume.pin(inode)
        self.directories += 1

    def _correct_nlink(self, view: View, inode: Inode) -> None:
        """Every version of a directory had these entries until it is listed."""
        versions = list(self._volume.reader.scan("inode", keys.pack_id(inode.ino)))
        for key, value in versions:
            if value:
                record = records.unpack_inode(value)._replace(nlink=inode.nlink)
                self._volume.extra.put("inode", key, records.pack_inode(*record))
        if inode.dirty or inode.pending or not versions:
            view.mark(inode)

    def import_entry(self, view: View, parent: Inode, entry: BaseEntry, epoch: int) -> Inode:
        """Enter one base entry at an epoch: inode, dirent, link, base, origin, xattrs."""
        volume, extra, name = self._volume, self._volume.extra, entry.name
        shared = is_shared(entry.st)
        child = self.hardlinked(view, entry) if shared else None
        if child is not None and not epoch and not self._expects_name(child.ino):
            child = None  # a link made since: of epoch 0 it cannot be
        if child is not None:
            if epoch:
                child.nlink += 1
                view.mark(child)
        else:
            ino = volume.take_id()
            child = Inode(ino, inode_record(entry, ino))
            child.xattrs = dict(entry.xattrs)
            view.inodes[ino] = child
            if epoch:
                view.created.add(ino)
                view.mark(child)
            else:
                self._at_zero[ino] = child.nlink
            extra.put("inode", keys.inode_key(ino, epoch), child.pack())
            for xattr, value in entry.xattrs.items():
                extra.put("xattr", keys.xattr_key(ino, xattr, epoch), b"\1" + value)
            if child.is_dir:
                self.set_origin(ino, records.ORIGIN_UNLISTED, parent.ino, name)
                child.parent = parent.ino
            elif child.is_file and child.size:
                self.set_origin(ino, records.ORIGIN_UNLISTED, parent.ino, name)
            if shared:
                self.remember_hardlink(entry, ino)
            volume.pin(child)
            if not child.is_dir:
                self.files += 1
        ino, kind = child.ino, child.kind
        content = child.content if child.is_file else 0
        self.set_base(parent.ino, name, base_record(entry, ino, content))
        if shared:
            self._entered.setdefault(ino, set()).add((parent.ino, name))
        extra.put(
            "dirent", keys.dirent_key(parent.ino, name, epoch), records.pack_dirent(ino, kind)
        )
        extra.put("link", keys.link_key(ino, parent.ino, name, epoch), bytes((kind,)))
        return child

    def hardlinked(self, view: View, entry: BaseEntry) -> Inode | None:
        """The inode that another name of the same base file became, if it is still alive."""
        key = keys.hardlink_key(entry.st.st_dev, entry.st.st_ino)
        ino = self._hardlinks.get(key)
        if ino is None:
            value = self._volume.reader.get("hardlink", key)
            ino = keys.unpack_id(value) if value is not None else 0
        if not ino or not self._is_now(ino, entry):
            return None
        try:
            return view.inode(ino)
        except PosixError:
            return None  # its other names were deleted from the workspace

    def _expects_name(self, ino: int) -> bool:
        """Whether the link count that an inode had in epoch 0 includes names not seen yet."""
        start = Snapshot(self._volume.reader, _START)
        names = {*start.links(ino), *self._entered.get(ino, ())}
        record = start.inode(ino)
        count = record.nlink if record is not None else self._at_zero.get(ino, 0)
        return len(names) < count

    def _is_now(self, ino: int, entry: BaseEntry) -> bool:
        """Whether an inode was made of this very file: inode numbers of the base are used again.
        ctime is left out, since renaming or linking one name changes it for the others."""
        if ino in self._fresh_links:
            return same_file(entry.st, self._fresh_links[ino])
        known = (self.base_entry(*link) for link in self.base_links(ino))
        return any(
            r.ino == ino and same_file(entry.st, recorded_fingerprint(r)) for r in known if r
        )

    def base_links(self, ino: int) -> set[tuple[int, bytes]]:
        """The places (parent, name) where the base had an inode, as far as it is known."""
        reader, head = self._volume.reader, self._volume.main.snapshot
        return {*Snapshot(reader, _START).links(ino), *head.links(ino)}

    def places_of(self, ino: int) -> set[tuple[int, bytes]]:
        """As `base_links`, with what was found since the last commit."""
        fresh = {
            (keys.unpack_id(key), key[8:])
            for key, value in self._fresh_base.items()
            if records.unpack_base(value).ino == ino
        }
        return self.base_links(ino) | fresh

    def remember_hardlink(self, entry: BaseEntry, ino: int) -> None:
        key = keys.hardlink_key(entry.st.st_dev, entry.st.st_ino)
        self._hardlinks[key] = ino
        self._fresh_links[ino] = fingerprint(entry.st)
        self._volume.extra.put("hardlink", key, keys.pack_id(ino))

    def committed(self) -> None:
        """The store has everything that was fresh: forget the copies."""
        self._fresh.clear()
        self._fresh_base.clear()
        self._hardlinks.clear()
        self._at_zero.clear()
        self._forgotten.clear()
        self._fresh_links.clear()
        self._entered.clear()

    def moved(
        self, record: records.BaseRecord, parent: int, name: bytes, st: os.stat_result
    ) -> None:
        """`apply` moved something within the base: its content is found at the new place."""
        thing = record.ino if record.kind == _DIRECTORY else record.content
        origin = self.origin(thing) if thing else None
        if origin is None:
            return
        self.set_origin(thing, origin.state, parent, name)
        entry = BaseEntry(name, st, b"", {})
        self.set_base(parent, name, base_record(entry, record.ino, record.content))
