"""What was changed outside of files themselves: bytes and attributes; and what is lost of a content
that is not at its place in the base any more.

Threading: owned by the volume's thread.
"""

from __future__ import annotations

import errno
import stat
from typing import TYPE_CHECKING

from cowfs.format import records
from cowfs.format.audit import ATTRIBUTES, WROTE
from cowfs.volume.base import BaseEntry, fingerprint, same_file
from cowfs.volume.external.adoption import Adoption, joined
from cowfs.volume.external.directories import Directories
from cowfs.volume.external.untouched import written
from cowfs.volume.importing import base_record, inode_record, recorded_fingerprint
from cowfs.volume.inode import Inode
from cowfs.volume.posix import PosixError, now

if TYPE_CHECKING:
    from cowfs.volume.view import View
    from cowfs.volume.volume import Volume


class Files:
    """The part of `External` for them."""

    def __init__(self, volume: Volume, adoption: Adoption, directories: Directories) -> None:
        self._volume = volume
        self._importer = volume.importer
        self._adoption = adoption
        self._directories = directories

    def adopted_already(self, child: Inode, entry: BaseEntry) -> bool:
        """Whether this change of a file was found under another one of its names."""
        if not child.is_file:
            return child.ctime == entry.st.st_ctime_ns
        origin = self._importer.origin(child.content)
        shown = (
            self._importer.base_entry(origin.parent, origin.name) if origin is not None else None
        )
        return shown is not None and recorded_fingerprint(shown) == fingerprint(entry.st)

    def adopt_attributes(
        self,
        view: View,
        inode: Inode,
        path: bytes,
        entry: BaseEntry,
        record: records.BaseRecord,
        *,
        untouched: bool,
    ) -> None:
        """The content is the same, so its history stays; ctime also changes with a rename or a
        link, of which nothing is to be seen."""
        child, st = view.inode(record.ino), entry.st
        self._importer.set_base(
            inode.ino, entry.name, base_record(entry, child.ino, record.content)
        )
        if child.ctime == st.st_ctime_ns:
            return  # found under another one of its names
        xattrs = child.xattrs if child.xattrs is not None else view.snapshot.xattrs(child.ino)
        shown = child.mode, child.uid, child.gid, xattrs
        if shown == (st.st_mode, st.st_uid, st.st_gid, entry.xattrs) and untouched:
            self._adoption.begin(view)
            child.ctime = st.st_ctime_ns
            view.mark(child)
        elif untouched:
            self._adoption.begin(view)
            self._adoption.take_attributes(view, child, entry)
            detail = "attributes changed outside, adopted"
            self._adoption.adopted(ATTRIBUTES, joined(path, entry.name), child, detail)
        elif (st.st_mode, entry.xattrs) != (record.mode, xattrs):
            self._adoption.report(
                "conflict", path, entry.name, "attributes changed outside; the workspace's stay"
            )

    def adopt(
        self, view: View, child: Inode, parent: int, entry: BaseEntry, *, attributes: bool = True
    ) -> None:
        """Give an inode the content that its base file has now, and with `attributes` all else."""
        volume = self._volume
        self._adoption.begin(view)
        content = child.content
        if child.is_file:
            self.lose(content)
            content = volume.take_id()
            self._importer.set_origin(content, records.ORIGIN_UNLISTED, parent, entry.name)
        self._importer.set_base(
            parent, entry.name, base_record(entry, child.ino, content if child.is_file else 0)
        )
        new, xattrs, above = inode_record(entry, content), child.xattrs, child.parent
        new = new._replace(nlink=child.nlink)
        if not attributes:
            new = new._replace(mode=child.mode, uid=child.uid, gid=child.gid, ctime=now())
        view.discard_blocks(child)
        child.load(new)
        child.xattrs, child.parent = xattrs, above
        self._adoption.stale.add(child.ino)
        view.mark(child)
        if attributes:
            self._adoption.take_attributes(view, child, entry)

    def look_at_file(self, view: View, inode: Inode) -> bool:
        """See whether somebody changed the base file of an inode since it was recorded; whether
        that was adopted. Raises PosixError (the base cannot be read)."""
        volume, importer = self._volume, self._importer
        origin = importer.origin(inode.content)
        if origin is None or origin.state == records.ORIGIN_DONE or volume.base is None:
            return False
        entry = importer.base_entry(origin.parent, origin.name)
        if entry is None or entry.content != inode.content:
            return False
        path = importer.base_path(origin)
        try:
            st = volume.base.stat(path)
            if st is not None and same_file(st, recorded_fingerprint(entry)):
                return False
            found = volume.base.lookup(path)
        except OSError as error:
            volume.problem("unreadable", path, f"cannot open the base: {error.strerror}")
            raise PosixError(error.errno or errno.EIO) from None
        replaced = found is not None and found.st.st_ino != entry.st_ino and inode.nlink > 1
        if (
            found is None
            or replaced  # other names may still lead to the old file
            or not stat.S_ISREG(found.st.st_mode)
            or written(view, inode, entry)
        ):
            self.gone(entry, (origin.parent, origin.name))
            return False
        self.adopt(view, inode, origin.parent, found)
        if found.st.st_ino != entry.st_ino:
            self._directories.adopt_place(view, origin.parent)
        self._adoption.tell()
        self._adoption.adopted(WROTE, path, inode, "changed outside while mounted, adopted")
        return True

    def changed(self, view: View, content: int) -> None:
        """The base file of a content is another one now, or gone: adopt it where the workspace
        shows it, and say what is lost."""
        origin = self._importer.origin(content)
        if origin is None or origin.state != records.ORIGIN_UNLISTED:
            return
        entry = self._importer.base_entry(origin.parent, origin.name)
        if entry is None or entry.content != content:
            self.lose(content)
            return
        try:
            inode = view.inode(entry.ino)
        except PosixError:
            self.gone(entry, (origin.parent, origin.name))
            return
        if inode.content != content or not self.look_at_file(view, inode):
            self.gone(entry, (origin.parent, origin.name))

    def gone(self, record: records.BaseRecord, place: tuple[int, bytes]) -> None:
        """A content is not at its place in the base any more: it is found under another name of
        the same file, or lost."""
        content = record.content
        origin = self._importer.origin(content) if content else None
        if origin is None or (origin.parent, origin.name) != place:
            return
        for parent, name in sorted(self._importer.places_of(record.ino) - {place}):
            other, above = self._importer.base_entry(parent, name), self._importer.origin(parent)
            if other is None or other.content != content or above is None:
                continue
            assert self._volume.base is not None
            path = self._importer.base_path(records.OriginRecord(0, parent, name))
            found = self._volume.base.lookup(path)
            if found is not None and same_file(found.st, recorded_fingerprint(other)):
                self._importer.set_origin(content, origin.state, parent, name)
                self._importer.set_base(parent, name, base_record(found, record.ino, content))
                return
        self.lose(content)

    def lose(self, content: int) -> None:
        """The base file of a content changed: what was not sealed of the old one is lost."""
        origin = self._importer.origin(content)
        if origin is None or origin.state != records.ORIGIN_UNLISTED:
            return
        if self._volume.base is not None:
            self._volume.base.forget(content)
        self._importer.set_origin(content, records.ORIGIN_LOST, origin.parent, origin.name)
        self._volume.problem(
            "lost",
            self._importer.base_path(origin),
            "changed outside before its old content was saved; older checkpoints cannot show it",
        )
