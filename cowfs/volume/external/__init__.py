"""Changes that were made to the base directory from outside (contract 6).

In each life of the volume every directory that was listed before is compared once with the
fingerprints in the table `base`, when it is first looked into. What somebody changed meanwhile is
adopted, unless the workspace changed the same file: then the workspace's
version stays, and the other one is saved by `apply` before it is overwritten. Where the workspace
changed only the attributes of a file, the content is adopted and those attributes stay.

What is adopted gets an epoch of its own (adoption.py).

Threading: owned by the volume's thread.
"""

from __future__ import annotations

import errno
import stat
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cowfs.errors import DamagedRecordError
from cowfs.format import keys, records
from cowfs.format.audit import MADE, REMOVED, WROTE
from cowfs.store.env import LmdbError
from cowfs.types import ROOT_INO
from cowfs.volume.base import BaseEntry, fingerprint, same_file
from cowfs.volume.external.adoption import Adoption, joined
from cowfs.volume.external.directories import Directories
from cowfs.volume.external.files import Files
from cowfs.volume.external.untouched import as_applied, unchanged, written
from cowfs.volume.importing import base_record, is_shared, recorded_fingerprint
from cowfs.volume.inode import Inode
from cowfs.volume.posix import PosixError

if TYPE_CHECKING:
    from cowfs.volume.view import View
    from cowfs.volume.volume import Volume

_DIRECTORY = records.kind_of(stat.S_IFDIR)


class External:
    """Compares directories of the base with what was seen in them, and adopts names that came or
    went. adoption, files: for what is found elsewhere.
    """

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self._importer = volume.importer
        self.adoption = Adoption(volume)
        self._directories = Directories(volume, self.adoption)
        self.files = Files(volume, self.adoption, self._directories)
        self._by_file: dict[tuple[int, int], tuple[int, bytes]] | None = None

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
        self.adoption.tell()

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
                self.adoption.report("damaged", path, key[8:], str(error))
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
            self.adoption.report("damaged", path, name, str(error))
        except PosixError as error:
            if error.errno != errno.EIO:
                raise

    def _adopt_other(
        self, view: View, inode: Inode, path: bytes, entry: BaseEntry, record: records.BaseRecord
    ) -> None:
        """A name has another type of thing than before."""
        self._adopt_removal(view, inode, path, entry.name, record)
        self._adopt_new(view, inode, path, entry)

    def _adopt_new(self, view: View, inode: Inode, path: bytes, entry: BaseEntry) -> None:
        assert inode.entries is not None
        if entry.name in inode.entries:
            self._shadow(inode, entry)
            self.adoption.report(
                "conflict", path, entry.name, "made outside too; the workspace's one stays"
            )
            return
        self.adoption.begin(view)
        other = self.other_name(view, entry) if is_shared(entry.st) else None
        follow = other is not None and unchanged(view, other)
        child = self._importer.import_entry(view, inode, entry, epoch=view.head)
        if child is other:
            if follow:
                child.ctime = entry.st.st_ctime_ns
            self.adoption.stale.add(child.ino)
        view.add_name(inode, entry.name, child)
        if child.is_dir:
            inode.nlink += 1
        view.mark(inode)
        self.adoption.adopted(MADE, joined(path, entry.name), child, "made outside, adopted")

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
        self.files.gone(record, (inode.ino, name))
        packed = inode.entries.get(name)
        if packed is None or packed >> 4 != record.ino:
            return
        child = view.inode(record.ino)
        if child.is_dir:
            if not self._remove_tree(view, child):
                detail = "removed outside; what the workspace changed in it stays"
                self.adoption.report("conflict", path, name, detail)
                return
            inode.nlink -= 1
        elif not unchanged(view, child, record):
            self.adoption.report(
                "conflict", path, name, "removed outside; the workspace's version stays"
            )
            return
        self.adoption.begin(view)
        view.drop_name(inode, name, child)
        if child.is_dir or child.nlink <= 1:
            view.remove_inode(child)
        else:
            child.nlink -= 1
            self.adoption.stale.add(child.ino)
            view.mark(child)
        view.mark(inode)
        self.adoption.adopted(REMOVED, joined(path, name), child, "removed outside, adopted")

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
                self.files.gone(record, (directory.ino, name))
                if not unchanged(view, child, record):
                    whole = False
                    continue
            self.adoption.begin(view)
            view.drop_name(directory, name, child)
            view.mark(directory)
            if child.is_dir or child.nlink <= 1:
                view.remove_inode(child)
            else:
                child.nlink -= 1
                view.mark(child)
        return whole

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
                self.files.gone(record, (inode.ino, name))
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
            self.files.adopt_attributes(view, inode, path, entry, record, untouched=untouched)
        elif self.files.adopted_already(child, entry):
            content = child.content if child.is_file else 0
            self._importer.set_base(inode.ino, name, base_record(entry, child.ino, content))
        elif not as_applied(view, child) and written(view, child, record):
            self.files.gone(record, (inode.ino, name))
            self._shadow(inode, entry)
            self.adoption.report(
                "conflict", path, name, "changed outside; the workspace's one stays"
            )
        else:
            self.files.adopt(view, child, inode.ino, entry, attributes=untouched)
            self.adoption.adopted(WROTE, joined(path, name), child, "changed outside, adopted")
