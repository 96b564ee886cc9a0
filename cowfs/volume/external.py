"""Changes that were made to the base directory from outside (contract 6).

In each life of the volume every directory that was listed before is compared once with the
fingerprints in the table `base`, when it is first looked into. What somebody changed meanwhile is
adopted, unless the workspace changed the same file: then the workspace's
version stays, and the other one is saved by `apply` before it is overwritten. Where the workspace
changed only the attributes of a file, the content is adopted and those attributes stay.

What is adopted gets an epoch of its own: the open one is sealed before it if it has changes, and
after it as soon as the workspace changes something itself (`View.begin`) or asks for a checkpoint.
So `log` shows it, and it can be restored away. Only a restore of paths, which must be one epoch, is
not interrupted.

Threading: owned by the volume's thread.
"""

from __future__ import annotations

import errno
import stat
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cowfs.errors import DamagedRecordError
from cowfs.format import keys, records
from cowfs.format.audit import ATTRIBUTES, MADE, REMOVED, WROTE
from cowfs.store.env import LmdbError
from cowfs.types import ROOT_INO
from cowfs.volume import history
from cowfs.volume.base import BaseEntry, fingerprint, same_file
from cowfs.volume.external_directories import Directories
from cowfs.volume.importing import base_record, inode_record, is_shared, recorded_fingerprint
from cowfs.volume.inode import Inode
from cowfs.volume.posix import PosixError, now
from cowfs.volume.untouched import as_applied, unchanged, written

if TYPE_CHECKING:
    from cowfs.volume.view import View
    from cowfs.volume.volume import Volume

_DIRECTORY = records.kind_of(stat.S_IFDIR)


KIND = "external"
"""Of the checkpoints before and after what was adopted."""
EPOCH_KEY = b"external"
"""In the table `meta`: the open epoch, while all that it has was adopted from outside."""


class External:
    """Finds and adopts changes from outside.

    adopting: the open epoch has such changes and no others.
    stale: inodes that were changed, of which the kernel was not told yet.
    on_adopted: told the inodes that the kernel knows and that were changed.
    """

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self._importer = volume.importer
        self._directories = Directories(volume, self)
        self.stale: set[int] = set()
        self._by_file: dict[tuple[int, int], tuple[int, bytes]] | None = None
        self.adopting = volume.reader.get("meta", EPOCH_KEY) == keys.pack_id(volume.main.head)
        self.on_adopted: Callable[[set[int]], None] = lambda inodes: None

    # -- their epoch ----------------------------------------------------------------------------

    def begin(self, view: View) -> None:
        """Something is about to be adopted."""
        if self.adopting or view.editing:
            return
        if self._volume.epoch_changed:
            history.seal(
                self._volume, history.Author(), kind=KIND, message="before external changes"
            )
        self.adopting = True
        self._volume.extra.put("meta", EPOCH_KEY, keys.pack_id(view.head))

    def settle(self) -> None:
        """Seal the epoch of adopted changes, if the open one is that."""
        if not self.adopting:
            return
        self.adopting = False
        self._volume.extra.delete("meta", EPOCH_KEY)
        history.seal(self._volume, history.Author(), kind=KIND, message="external changes")

    # -- comparing ------------------------------------------------------------------------------

    def check_directory(self, view: View, inode: Inode) -> None:
        """Compare a directory that was listed in an earlier life with the base, once."""
        importer = self._importer
        if self._volume.base is None or not importer.begin_check(inode.ino):
            return
        origin = self._importer.origin(inode.ino)
        if origin is None:
            return
        path = self._importer.base_path(origin)
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
        known, damaged = self._recorded(inode.ino, path)
        if inode.ino == ROOT_INO:
            self._carefully(path, b"", self._directories.adopt_top, view, inode)
        # What was there first: a new name may be another link of it.
        new = [entry for entry in listing if entry.name not in known]
        for entry in listing:
            record = known.pop(entry.name, None)
            if record is None:
                continue
            if record.kind != records.kind_of(entry.st.st_mode):
                adopt = self._adopt_other
            elif recorded_fingerprint(record) == fingerprint(entry.st):
                continue
            elif record.kind == _DIRECTORY:
                adopt = self._directories.adopt
            else:
                adopt = self._adopt_change
            self._carefully(path, entry.name, adopt, view, inode, path, entry, record)
        for entry in new:
            if entry.name not in damaged:
                self._carefully(path, entry.name, self._adopt_new, view, inode, path, entry)
        for name, record in known.items():
            self._importer.forget_base(inode.ino, name)
            self._carefully(path, name, self._adopt_removal, view, inode, path, name, record)
        self._tell()

    def _recorded(
        self, directory: int, path: bytes
    ) -> tuple[dict[bytes, records.BaseRecord], set[bytes]]:
        """What was seen in a directory of the base, and the names of which that is damaged: nobody
        can say whether those were changed."""
        known, damaged = dict[bytes, records.BaseRecord](), set[bytes]()
        for key, value in self._volume.reader.scan("base", keys.pack_id(directory)):
            try:
                known[key[8:]] = records.unpack_base(value)
            except DamagedRecordError as error:
                damaged.add(key[8:])
                self._report("damaged", path, key[8:], str(error))
        return known, damaged

    def _carefully(
        self, path: bytes, name: bytes, adopt: Callable[..., None], *arguments: Any
    ) -> None:
        """Adopt one change; if something is damaged that is needed for it, the rest of the
        directory is shown all the same."""
        try:
            adopt(*arguments)
        except LmdbError as error:
            self._volume.met_damaged_page(error)
        except DamagedRecordError as error:
            self._report("damaged", path, name, str(error))
        except PosixError as error:
            if error.errno != errno.EIO:
                raise

    def _adopt_other(
        self, view: View, inode: Inode, path: bytes, entry: BaseEntry, record: records.BaseRecord
    ) -> None:
        """A name has another type of thing than before."""
        self._adopt_removal(view, inode, path, entry.name, record)
        self._adopt_new(view, inode, path, entry)

    def _tell(self) -> None:
        """The kernel may know what changed."""
        stale, self.stale = self.stale, set()
        view = self._volume.main
        known = {ino for ino in stale if view.in_kernel(ino)}
        if known:
            self.on_adopted(known)

    def _report(self, what: str, path: bytes, name: bytes, detail: str) -> None:
        self._volume.problem(what, path + b"/" + name if path else name, detail)

    def _adopted(self, code: int, path: bytes, name: bytes, child: Inode, detail: str) -> None:
        self.adopted(code, path + b"/" + name if path else name, child, detail)

    def adopted(self, code: int, path: bytes, child: Inode, detail: str) -> None:
        """Say what was taken over, here and in the audit log; `code` as there. The path is that in
        the base, which mostly is that in the workspace."""
        self._volume.problem("external", path, detail)
        self._volume.audit.adopted(code, path, child)

    def _adopt_new(self, view: View, inode: Inode, path: bytes, entry: BaseEntry) -> None:
        assert inode.entries is not None
        if entry.name in inode.entries:
            self._shadow(inode, entry)
            self._report(
                "conflict", path, entry.name, "made outside too; the workspace's one stays"
            )
            return
        self.begin(view)
        other = self.other_name(view, entry) if is_shared(entry.st) else None
        follow = other is not None and unchanged(view, other)
        child = self._importer.import_entry(view, inode, entry, epoch=view.head)
        if child is other:
            if follow:
                child.ctime = entry.st.st_ctime_ns
            self.stale.add(child.ino)
        view.add_name(inode, entry.name, child)
        if child.is_dir:
            inode.nlink += 1
        view.mark(inode)
        self._adopted(MADE, path, entry.name, child, "made outside, adopted")

    def other_name(self, view: View, entry: BaseEntry) -> Inode | None:
        """The inode of which a new name of the base is another link. Files that had one name when
        they were imported are not in the table `hardlink`: they are looked for once in each life.
        """
        if (found := self._importer.hardlinked(view, entry)) is not None:
            return found
        if self._by_file is None:
            self._by_file = {}
            for key, value in self._volume.reader.scan("base"):
                record = records.unpack_base(value)
                if record.ino and record.kind != _DIRECTORY:
                    self._by_file[record.dev, record.st_ino] = keys.unpack_id(key), key[8:]
        place = self._by_file.get((entry.st.st_dev, entry.st.st_ino))
        known = self._importer.base_entry(*place) if place is not None else None
        if known is None or not known.ino:
            return None
        if not same_file(entry.st, recorded_fingerprint(known)):
            return None
        self._importer.remember_hardlink(entry, known.ino)
        return self._importer.hardlinked(view, entry)

    def _shadow(self, inode: Inode, entry: BaseEntry) -> None:
        """Remember a base entry that the workspace does not show, so it is reported once."""
        self._importer.set_base(inode.ino, entry.name, base_record(entry, 0, 0))

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
        elif not unchanged(view, child, record):
            self._report("conflict", path, name, "removed outside; the workspace's version stays")
            return
        self.begin(view)
        view.drop_name(inode, name, child)
        if child.is_dir or child.nlink <= 1:
            view.remove_inode(child)
        else:
            child.nlink -= 1
            self.stale.add(child.ino)
            view.mark(child)
        view.mark(inode)
        self._adopted(REMOVED, path, name, child, "removed outside, adopted")

    def _remove_tree(self, view: View, directory: Inode) -> bool:
        """Take a directory's content out of the view, its base is gone; False when something that
        the workspace changed had to stay."""
        whole = True
        if directory.entries is None:
            origin = self._importer.origin(directory.ino)
            if origin is not None and origin.state == records.ORIGIN_UNLISTED:
                self._importer.set_origin(
                    directory.ino, records.ORIGIN_LOST, origin.parent, origin.name
                )
                detail = "removed outside before it was read; older checkpoints cannot show it"
                self._volume.problem("lost", self._importer.base_path(origin), detail)
                directory.entries = {}
            else:
                directory.entries = view.stored_entries(directory.ino)
        for name, packed in list(directory.entries.items()):
            child = view.named(packed)
            record = self._importer.base_entry(directory.ino, name)
            if child.damaged:
                whole = False
                continue
            if child.is_dir:
                if not self._remove_tree(view, child) or self._importer.origin(child.ino) is None:
                    whole = False
                    continue
                directory.nlink -= 1
            elif record is None or record.ino != child.ino:
                whole = False  # made by the workspace
                continue
            else:
                self.gone(record, (directory.ino, name))
                if not unchanged(view, child, record):
                    whole = False
                    continue
            self.begin(view)
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
                self._importer.set_base(
                    inode.ino, name, base_record(entry, record.ino, record.content)
                )
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
        untouched = unchanged(view, child, record)
        if is_shared(entry.st):
            self._importer.remember_hardlink(entry, child.ino)
        if same:
            self._adopt_attributes(view, inode, path, entry, record, untouched=untouched)
        elif self._adopted_already(child, entry):
            content = child.content if child.is_file else 0
            self._importer.set_base(inode.ino, name, base_record(entry, child.ino, content))
        elif not as_applied(view, child) and written(view, child, record):
            self.gone(record, (inode.ino, name))
            self._shadow(inode, entry)
            self._report("conflict", path, name, "changed outside; the workspace's one stays")
        else:
            self.adopt_file(view, child, inode.ino, entry, attributes=untouched)
            self._adopted(WROTE, path, name, child, "changed outside, adopted")

    def _adopted_already(self, child: Inode, entry: BaseEntry) -> bool:
        """Whether this change of a file was found under another one of its names."""
        if not child.is_file:
            return child.ctime == entry.st.st_ctime_ns
        origin = self._importer.origin(child.content)
        shown = (
            self._importer.base_entry(origin.parent, origin.name) if origin is not None else None
        )
        return shown is not None and recorded_fingerprint(shown) == fingerprint(entry.st)

    def _adopt_attributes(
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
            self.begin(view)
            child.ctime = st.st_ctime_ns
            view.mark(child)
        elif untouched:
            self.begin(view)
            self.take_attributes(view, child, entry)
            detail = "attributes changed outside, adopted"
            self._adopted(ATTRIBUTES, path, entry.name, child, detail)
        elif (st.st_mode, entry.xattrs) != (record.mode, xattrs):
            self._report(
                "conflict", path, entry.name, "attributes changed outside; the workspace's stay"
            )

    def adopt_file(
        self, view: View, child: Inode, parent: int, entry: BaseEntry, *, attributes: bool = True
    ) -> None:
        """Give an inode the content that its base file has now, and with `attributes` all else."""
        volume = self._volume
        self.begin(view)
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
        self.stale.add(child.ino)
        view.mark(child)
        if attributes:
            self.take_attributes(view, child, entry)

    def take_attributes(self, view: View, child: Inode, entry: BaseEntry) -> None:
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
        self.stale.add(child.ino)
        view.mark(child)

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
        self.adopt_file(view, inode, origin.parent, found)
        if found.st.st_ino != entry.st_ino:
            self._directories.adopt_place(view, origin.parent)
        self._tell()
        self.adopted(WROTE, path, inode, "changed outside while mounted, adopted")
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
