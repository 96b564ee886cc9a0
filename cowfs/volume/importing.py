"""Lazy import of the base directory, and changes made to it from outside.

A base directory is listed when it is first looked into; its entries become records of epoch 0,
which every lineage sees. Content is not read: a file's blocks come from the base until they are
written or sealed. The table `base` keeps what lay under each name with a fingerprint; the table
`origin` keeps where a directory or a content lies.

In a later life of the volume each directory is compared once with these fingerprints, when it is
first looked into. What somebody changed meanwhile is adopted into the open epoch (contract 6),
unless the workspace changed the same file: then the workspace's version stays, and the other one
is saved by `apply` before it is overwritten. Where the workspace changed only the attributes of a
file, the content is adopted and those attributes stay.

Threading: owned by the volume's thread.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
from typing import TYPE_CHECKING

from cowfs.format import keys, records
from cowfs.store.lineage import Lineage
from cowfs.store.snapshot import Snapshot
from cowfs.volume.base import BaseEntry, Fingerprint, fingerprint, same_file
from cowfs.volume.inode import Inode
from cowfs.volume.posix import PosixError, now, storable

if TYPE_CHECKING:
    from cowfs.volume.view import View
    from cowfs.volume.volume import Volume


_DIRECTORY = stat.S_IFDIR >> 12
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

    def base_path(self, origin: records.OriginRecord) -> bytes:
        """Path of a thing relative to the base directory; where a directory above it has been
        removed by `apply`, the part of it that is known (a fingerprint tells what lies there)."""
        parts = []
        while origin.parent:
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
            inode.entries = {n: i << 4 | k for n, i, k in view.snapshot.entries(ino)}
        self.compare(view, inode, self.base_path(origin), listing)

    def take_listing(
        self, view: View, inode: Inode, origin: records.OriginRecord, listing: list[BaseEntry]
    ) -> None:
        """Make the entries of a first listing records of epoch 0."""
        inode.entries = {}
        subdirectories = 0
        for entry in listing:
            child = self._import_entry(view, inode, entry, epoch=0)
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

    def _import_entry(self, view: View, parent: Inode, entry: BaseEntry, epoch: int) -> Inode:
        """Enter one base entry at an epoch: inode, dirent, link, base, origin, xattrs."""
        volume, extra, name = self._volume, self._volume.extra, entry.name
        shared = is_shared(entry.st)
        child = self._hardlinked(view, entry) if shared else None
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
                self._remember_hardlink(entry, ino)
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

    def _hardlinked(self, view: View, entry: BaseEntry) -> Inode | None:
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
        known = (self.base_entry(*link) for link in self._base_links(ino))
        return any(
            r.ino == ino and same_file(entry.st, recorded_fingerprint(r)) for r in known if r
        )

    def _base_links(self, ino: int) -> set[tuple[int, bytes]]:
        """The places (parent, name) where the base had an inode, as far as it is known."""
        reader, head = self._volume.reader, self._volume.main.snapshot
        return {*Snapshot(reader, _START).links(ino), *head.links(ino)}

    def _remember_hardlink(self, entry: BaseEntry, ino: int) -> None:
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

    # -- changes from outside -------------------------------------------------------------------

    def check_directory(self, view: View, inode: Inode) -> None:
        """Compare a directory that was listed in an earlier life with the base, once."""
        if inode.ino in self._checked or self._volume.base is None:
            return
        self._checked.add(inode.ino)
        origin = self.origin(inode.ino)
        if origin is None:
            return
        path = self.base_path(origin)
        try:
            listing = self._volume.base.scan(path)
        except (FileNotFoundError, NotADirectoryError):
            return  # its parent's check adopts the removal
        except OSError as error:
            self._volume.problem("unreadable", path, f"cannot list the base: {error.strerror}")
            return
        self.compare(view, inode, path, listing)

    def compare(self, view: View, inode: Inode, path: bytes, listing: list[BaseEntry]) -> None:
        """Adopt what differs between `listing` and the recorded fingerprints."""
        known = {
            key[8:]: records.unpack_base(value)
            for key, value in self._volume.reader.scan("base", keys.pack_id(inode.ino))
        }
        # What was there first: a new name may be another link of it.
        new = [entry for entry in listing if entry.name not in known]
        for entry in listing:
            record = known.pop(entry.name, None)
            if record is None:
                continue
            if record.kind != records.kind_of(entry.st.st_mode):
                self._adopt_removal(view, inode, path, entry.name, record)
                self._adopt_new(view, inode, path, entry)
            elif record.kind == _DIRECTORY:
                self._adopt_mode(view, inode, entry, record)
            elif recorded_fingerprint(record) != fingerprint(entry.st):
                self._adopt_change(view, inode, path, entry, record)
        for entry in new:
            self._adopt_new(view, inode, path, entry)
        for name, record in known.items():
            self.forget_base(inode.ino, name)
            self._adopt_removal(view, inode, path, name, record)

    def _report(self, what: str, path: bytes, name: bytes, detail: str) -> None:
        self._volume.problem(what, path + b"/" + name if path else name, detail)

    def _adopt_new(self, view: View, inode: Inode, path: bytes, entry: BaseEntry) -> None:
        assert inode.entries is not None
        if entry.name in inode.entries:
            self._shadow(inode, entry)
            self._report(
                "conflict", path, entry.name, "made outside too; the workspace's one stays"
            )
            return
        child = self._import_entry(view, inode, entry, epoch=view.head)
        view.add_name(inode, entry.name, child)
        if child.is_dir:
            inode.nlink += 1
        view.mark(inode)
        self._report("external", path, entry.name, "made outside, adopted")

    def _shadow(self, inode: Inode, entry: BaseEntry) -> None:
        """Remember a base entry that the workspace does not show, so it is reported once."""
        self.set_base(inode.ino, entry.name, base_record(entry, 0, 0))

    def _adopt_removal(
        self, view: View, inode: Inode, path: bytes, name: bytes, record: records.BaseRecord
    ) -> None:
        """The thing of `record` is not under its name any more."""
        assert inode.entries is not None
        self.gone(record, (inode.ino, name))
        packed = inode.entries.get(name)
        if packed is None or packed >> 4 != record.ino:
            return
        child = view.inode(record.ino)
        if child.is_dir:
            if not self._remove_tree(view, child):
                detail = "removed outside; what the workspace changed in it stays"
                self._report("conflict", path, name, detail)
                return
            inode.nlink -= 1
        elif not self._unchanged(view, child, record):
            self._report("conflict", path, name, "removed outside; the workspace's version stays")
            return
        view.drop_name(inode, name, child)
        if child.is_dir or child.nlink <= 1:
            view.remove_inode(child)
        else:
            child.nlink -= 1
            view.mark(child)
        view.mark(inode)
        self._report("external", path, name, "removed outside, adopted")

    def _remove_tree(self, view: View, directory: Inode) -> bool:
        """Take a directory's content out of the view, its base is gone; False when something that
        the workspace changed had to stay."""
        whole = True
        if directory.entries is None:
            origin = self.origin(directory.ino)
            if origin is not None and origin.state == records.ORIGIN_UNLISTED:
                self.set_origin(directory.ino, records.ORIGIN_LOST, origin.parent, origin.name)
                detail = "removed outside before it was read; older checkpoints cannot show it"
                self._volume.problem("lost", self.base_path(origin), detail)
                directory.entries = {}
            else:
                directory.entries = {
                    n: i << 4 | k for n, i, k in view.snapshot.entries(directory.ino)
                }
        for name, packed in list(directory.entries.items()):
            child = view.inode(packed >> 4)
            record = self.base_entry(directory.ino, name)
            if child.is_dir:
                if not self._remove_tree(view, child) or self.origin(child.ino) is None:
                    whole = False
                    continue
                directory.nlink -= 1
            elif record is None or record.ino != child.ino:
                whole = False  # made by the workspace
                continue
            else:
                self.gone(record, (directory.ino, name))
                if not self._unchanged(view, child, record):
                    whole = False
                    continue
            view.drop_name(directory, name, child)
            view.mark(directory)
            if child.is_dir or child.nlink <= 1:
                view.remove_inode(child)
            else:
                child.nlink -= 1
                view.mark(child)
        return whole

    def gone(self, record: records.BaseRecord, place: tuple[int, bytes]) -> None:
        """A content is not at its place in the base any more: it is found under another name of
        the same file, or lost."""
        content = record.content
        origin = self.origin(content) if content else None
        if origin is None or (origin.parent, origin.name) != place:
            return
        fresh = {
            (keys.unpack_id(key), key[8:])
            for key, value in self._fresh_base.items()
            if records.unpack_base(value).ino == record.ino
        }
        for parent, name in sorted((self._base_links(record.ino) | fresh) - {place}):
            other, above = self.base_entry(parent, name), self.origin(parent)
            if other is None or other.content != content or above is None:
                continue
            assert self._volume.base is not None
            path = self.base_path(records.OriginRecord(0, parent, name))
            found = self._volume.base.lookup(path)
            if found is not None and same_file(found.st, recorded_fingerprint(other)):
                self.set_origin(content, origin.state, parent, name)
                self.set_base(parent, name, base_record(found, record.ino, content))
                return
        self.lose(content)

    def _unchanged(self, view: View, child: Inode, record: records.BaseRecord) -> bool:
        """Whether the workspace shows an inode as the base had it: as it was imported or adopted
        (every change sets ctime), or as it was applied."""
        if self._as_applied(view, child):
            return True
        others = (self.base_entry(*link) for link in self._base_links(child.ino))
        return any(
            known is not None
            and (known.ino, known.ctime) == (child.ino, child.ctime)
            and not self.written(view, child, known)
            for known in itertools.chain([record], others)
        )

    def _as_applied(self, view: View, child: Inode) -> bool:
        if child.dirty or child.pending:
            return False
        reader = self._volume.reader
        applied = Snapshot(reader, reader.lineage(self._volume.branch.applied))
        key = keys.pack_id(child.ino)
        return applied.newest("inode", key) == view.snapshot.newest("inode", key)

    def written(self, view: View, child: Inode, record: records.BaseRecord) -> bool:
        """Whether the workspace changed bytes or size of a file that came from the base."""
        if not child.is_file:
            return False
        if child.content != record.content or child.blocks or child.inflight:
            return True
        if child.size != record.size or child.base_size != record.size:
            return True
        content, newest = child.content, view.snapshot.newest
        numbers = [number for number, _ in view.snapshot.extents(content)]
        versions = (newest("extent", keys.extent_prefix(content, number)) for number in numbers)
        return any(version and version[0] for version in versions)

    def _adopt_change(
        self, view: View, inode: Inode, path: bytes, entry: BaseEntry, record: records.BaseRecord
    ) -> None:
        """A name has the same type of thing as before, but another fingerprint."""
        assert inode.entries is not None
        name, seen = entry.name, recorded_fingerprint(record)
        same, packed = same_file(entry.st, seen), inode.entries.get(entry.name)
        if packed is None or packed >> 4 != record.ino:
            # The workspace removed it or shows something else there.
            if same:
                self.set_base(inode.ino, name, base_record(entry, record.ino, record.content))
            else:
                self.gone(record, (inode.ino, name))
                self._shadow(inode, entry)
            return
        child = view.inode(record.ino)
        if (entry.st.st_dev, entry.st.st_ino) != seen[:2] and child.nlink > 1:
            # Another file now, while other names may still have the old one.
            self._adopt_removal(view, inode, path, name, record)
            self._adopt_new(view, inode, path, entry)
            return
        unchanged = self._unchanged(view, child, record)
        if is_shared(entry.st):
            self._remember_hardlink(entry, child.ino)
        if same:
            self._adopt_attributes(view, inode, path, entry, record, unchanged=unchanged)
        elif self._adopted_already(child, entry):
            content = child.content if child.is_file else 0
            self.set_base(inode.ino, name, base_record(entry, child.ino, content))
        elif not self._as_applied(view, child) and self.written(view, child, record):
            self.gone(record, (inode.ino, name))
            self._shadow(inode, entry)
            self._report("conflict", path, name, "changed outside; the workspace's one stays")
        else:
            self.adopt_file(view, child, inode.ino, entry, attributes=unchanged)
            self._report("external", path, name, "changed outside, adopted")

    def _adopted_already(self, child: Inode, entry: BaseEntry) -> bool:
        """Whether this change of a file was found under another one of its names."""
        if not child.is_file:
            return child.ctime == entry.st.st_ctime_ns
        origin = self.origin(child.content)
        shown = self.base_entry(origin.parent, origin.name) if origin is not None else None
        return shown is not None and recorded_fingerprint(shown) == fingerprint(entry.st)

    def _adopt_attributes(
        self,
        view: View,
        inode: Inode,
        path: bytes,
        entry: BaseEntry,
        record: records.BaseRecord,
        *,
        unchanged: bool,
    ) -> None:
        """The content is the same, so its history stays; ctime also changes with a rename or a
        link, of which nothing is to be seen."""
        child, st = view.inode(record.ino), entry.st
        self.set_base(inode.ino, entry.name, base_record(entry, child.ino, record.content))
        if child.ctime == st.st_ctime_ns:
            return  # found under another one of its names
        xattrs = child.xattrs if child.xattrs is not None else view.snapshot.xattrs(child.ino)
        shown = child.mode, child.uid, child.gid, xattrs
        if shown == (st.st_mode, st.st_uid, st.st_gid, entry.xattrs) and unchanged:
            child.ctime = st.st_ctime_ns
            view.mark(child)
        elif unchanged:
            self._take_attributes(view, child, entry)
            self._report("external", path, entry.name, "attributes changed outside, adopted")
        elif (st.st_mode, entry.xattrs) != (record.mode, xattrs):
            self._report(
                "conflict", path, entry.name, "attributes changed outside; the workspace's stay"
            )

    def _adopt_mode(
        self, view: View, inode: Inode, entry: BaseEntry, record: records.BaseRecord
    ) -> None:
        """A directory's permissions changed outside (its times change with its entries)."""
        if record.mode == entry.st.st_mode:
            return
        assert inode.entries is not None
        self.set_base(inode.ino, entry.name, base_record(entry, record.ino, 0))
        if inode.entries.get(entry.name, 0) >> 4 != record.ino:
            return
        child = view.inode(record.ino)
        if child.mode == record.mode:
            child.mode = entry.st.st_mode
            view.mark(child)

    def adopt_file(
        self, view: View, child: Inode, parent: int, entry: BaseEntry, *, attributes: bool = True
    ) -> None:
        """Give an inode the content that its base file has now, and with `attributes` all else."""
        volume = self._volume
        content = child.content
        if child.is_file:
            self.lose(content)
            content = volume.take_id()
            self.set_origin(content, records.ORIGIN_UNLISTED, parent, entry.name)
        self.set_base(
            parent, entry.name, base_record(entry, child.ino, content if child.is_file else 0)
        )
        new, xattrs, above = inode_record(entry, content), child.xattrs, child.parent
        new = new._replace(nlink=child.nlink)
        if not attributes:
            new = new._replace(mode=child.mode, uid=child.uid, gid=child.gid, ctime=now())
        view.discard_blocks(child)
        child.load(new)
        child.xattrs, child.parent = xattrs, above
        view.mark(child)
        if attributes:
            self._take_attributes(view, child, entry)

    def _take_attributes(self, view: View, child: Inode, entry: BaseEntry) -> None:
        """Give an inode the attributes that its base file has now."""
        st = entry.st
        child.mode, child.uid, child.gid = st.st_mode, st.st_uid, st.st_gid
        child.ctime = st.st_ctime_ns
        xattrs = child.xattrs if child.xattrs is not None else view.snapshot.xattrs(child.ino)
        child.xattrs = dict(entry.xattrs)
        for name in xattrs.keys() - entry.xattrs.keys():
            view.xattrs[(child.ino, name)] = None
        for name, value in entry.xattrs.items():
            if xattrs.get(name) != value:
                view.xattrs[(child.ino, name)] = value
        view.mark(child)

    def lose(self, content: int) -> None:
        """The base file of a content changed: what was not sealed of the old one is lost."""
        origin = self.origin(content)
        if origin is None or origin.state != records.ORIGIN_UNLISTED:
            return
        if self._volume.base is not None:
            self._volume.base.forget(content)
        self.set_origin(content, records.ORIGIN_LOST, origin.parent, origin.name)
        self._volume.problem(
            "lost",
            self.base_path(origin),
            "changed outside before its old content was saved; older checkpoints cannot show it",
        )
