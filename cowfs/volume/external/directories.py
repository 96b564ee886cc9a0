"""What was changed outside of directories themselves: owner, mode, extended attributes, times.

Threading: owned by the volume's thread.
"""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from cowfs.format import records
from cowfs.format.audit import ATTRIBUTES
from cowfs.store.snapshot import Snapshot
from cowfs.types import ROOT_INO
from cowfs.volume.base import BaseEntry
from cowfs.volume.external.adoption import Adoption, joined
from cowfs.volume.importing import ROOT_KEY, base_record
from cowfs.volume.inode import Inode
from cowfs.volume.posix import PosixError, storable

if TYPE_CHECKING:
    from cowfs.volume.view import View
    from cowfs.volume.volume import Volume


class Directories:
    """The part of `External` for them."""

    def __init__(self, volume: Volume, adoption: Adoption) -> None:
        self._volume = volume
        self._importer = volume.importer
        self._adoption = adoption

    def adopt(
        self,
        view: View,
        inode: Inode,
        path: bytes,
        entry: BaseEntry,
        record: records.BaseRecord,
    ) -> None:
        """Something about a directory changed; what its entries are is its own comparison."""
        assert inode.entries is not None
        self._importer.set_base(inode.ino, entry.name, base_record(entry, record.ino, 0))
        if inode.entries.get(entry.name, 0) >> 4 == record.ino:
            child = view.inode(record.ino)
            as_seen = child.ctime == record.ctime
            self._follow(view, child, entry, joined(path, entry.name), as_seen)

    def adopt_top(self, view: View, root: Inode) -> None:
        """As `adopt`, of the base itself."""
        volume = self._volume
        assert volume.base is not None
        entry = volume.base.root()
        now, before = base_record(entry, ROOT_INO, 0), volume.reader.get("meta", ROOT_KEY)
        seen = records.unpack_base(before) if before else None
        if now != seen:
            volume.extra.put("meta", ROOT_KEY, records.pack_base(now))
            self._follow(view, root, entry, b"", seen is not None and seen.ctime == root.ctime)

    def adopt_place(self, view: View, ino: int) -> None:
        """A directory in which a name was replaced outside: its times follow."""
        importer, base = self._importer, self._volume.base
        origin, seen = importer.origin(ino), False
        if origin is None or base is None:
            return
        path = importer.base_path(origin)
        entry = base.lookup(path) if origin.parent else base.root()
        if entry is None or not stat.S_ISDIR(entry.st.st_mode):
            return
        try:
            child = view.inode(ino)
        except PosixError:
            return
        if origin.parent:
            record = importer.base_entry(origin.parent, origin.name)
            seen = record is not None and record.ctime == child.ctime
            importer.set_base(origin.parent, origin.name, base_record(entry, ino, 0))
        else:
            record = base_record(entry, ROOT_INO, 0)
            self._volume.extra.put("meta", ROOT_KEY, records.pack_base(record))
        self._follow(view, child, entry, path, seen)

    def _follow(
        self, view: View, child: Inode, entry: BaseEntry, path: bytes, as_seen: bool
    ) -> None:
        """Adopt attributes and times of a directory. as_seen: the workspace shows what was adopted
        before. Else the last apply tells what the workspace changed."""
        reader, st = self._volume.reader, entry.st
        applied = Snapshot(reader, reader.lineage(self._volume.branch.applied))
        old = applied.inode(child.ino)
        xattrs = child.xattrs if child.xattrs is not None else view.snapshot.xattrs(child.ino)
        shown = (child.mode, child.uid, child.gid, xattrs)
        found = (st.st_mode, st.st_uid, st.st_gid, entry.xattrs)
        was = (old.mode, old.uid, old.gid, applied.xattrs(child.ino)) if old else None
        if shown != found and (as_seen or shown == was):
            self._adoption.begin(view)
            self._adoption.take_attributes(view, child, entry)
            self._adoption.adopted(ATTRIBUTES, path, child, "attributes changed outside, adopted")
        elif shown != found != was:
            detail = "attributes changed outside; the workspace's stay"
            self._volume.problem("conflict", path, detail)
        mtime = storable(st.st_mtime_ns)
        if child.mtime != mtime and (as_seen or (old is not None and old.mtime == child.mtime)):
            self._adoption.begin(view)
            child.mtime, child.ctime = mtime, storable(st.st_ctime_ns)
            self._adoption.stale.add(child.ino)
            view.mark(child)
