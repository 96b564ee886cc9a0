"""What lies in the base, compared with what was recorded of it and with what shall be there.

Threading: for the thread of the apply.
"""

from __future__ import annotations

import os
import stat

from cowfs.format import keys, records
from cowfs.service.applying.contents import same_bytes
from cowfs.service.applying.plan import Name, Plan
from cowfs.service.applying.reach import Reach
from cowfs.service.applying.staging import is_reserved, staging_place
from cowfs.store.snapshot import Snapshot
from cowfs.volume.base import fingerprint, same_file
from cowfs.volume.importing import recorded_fingerprint

_DEEPEST = 4096
"""Directories above each other, as in `Snapshot.directory_path`."""


class Known:
    """Recognises things in the base."""

    def __init__(self, reach: Reach, before: Snapshot, after: Snapshot, plan: Plan) -> None:
        self._reach = reach
        self._before = before
        self._after = after
        self._plan = plan
        self._ours: dict[int, set[tuple[int, int]]] = {}

    def under(self, name: Name) -> records.BaseRecord | None:
        """What the base had under a name when it was last looked at."""
        value = self._before.reader.get("base", keys.base_key(*name))
        return records.unpack_base(value) if value else None

    def becomes_directory(self, ino: int) -> bool:
        """Whether an inode is a directory in the new state."""
        record = self._after.inode(ino)
        return record is not None and stat.S_ISDIR(record.mode)

    def fingerprints(self, ino: int) -> set[tuple[int, ...]]:
        """The base file of an inode as it was last seen, without ctime: what may be replaced."""
        names = {*self._before.links(ino), *self._after.links(ino), staging_place(ino)} | {
            n for n, i in self._plan.gone_names.items() if i == ino
        }
        known = (self.under(name) for name in names)
        return {recorded_fingerprint(k)[:4] for k in known if k is not None and k.ino == ino}

    def note(self, ino: int, st: os.stat_result) -> None:
        """This thing in the base is the inode: it was just made, or found to be right."""
        self._ours.setdefault(ino, set()).add((st.st_dev, st.st_ino))

    def is_it(self, ino: int, st: os.stat_result) -> bool:
        """Whether a thing that is no directory is the inode, by what was noted or recorded."""
        seen = (st.st_dev, st.st_ino)
        return seen in self._ours.get(ino, ()) or any(
            seen == known[:2] for known in self.fingerprints(ino)
        )

    def is_right(
        self, path: bytes, name: Name, st: os.stat_result, ino: int, record: records.InodeRecord
    ) -> bool:
        """Whether what has to lie there does: it always did, or an interrupted run put it there."""
        if not self._is_right(path, name, st, ino, record):
            return False
        self.note(ino, st)
        return True

    def _is_right(
        self, path: bytes, name: Name, st: os.stat_result, ino: int, record: records.InodeRecord
    ) -> bool:
        if stat.S_IFMT(st.st_mode) != stat.S_IFMT(record.mode):
            return False
        known = self.under(name)
        if known is not None and known.ino not in (ino, 0) and same_place(st, known):
            return False  # what lay there before and goes, however much it looks the same
        if stat.S_ISDIR(st.st_mode):
            return True
        if stat.S_ISLNK(st.st_mode):
            with self._reach.parent(path) as (fd, last):
                return os.readlink(last, dir_fd=fd) == record.target
        if stat.S_ISREG(st.st_mode):
            if fingerprint(st)[:4] in self.fingerprints(ino):
                # The old file, which is still to be rewritten; or which an interrupted run moved
                # here, and then did not come to record it.
                return True
            if known is not None and known.ino == ino and ino not in self._plan.rewritten:
                return False  # it was written or replaced outside
            return self._is_its_base(name, st, record) or self.has_bytes(path, st, record)
        return st.st_rdev == record.rdev

    def _is_its_base(self, name: Name, st: os.stat_result, record: records.InodeRecord) -> bool:
        """Whether the file there is the very one that the content comes from: it was changed
        outside, adopted, and not written since."""
        known = self.under(name)
        return (
            known is not None
            and known.content == record.content
            and record.base_size == record.size == known.size
            and same_file(st, recorded_fingerprint(known))
            and not any(True for _ in self._after.extents(record.content))
        )

    def has_bytes(self, path: bytes, st: os.stat_result, record: records.InodeRecord) -> bool:
        """Whether a file has the content that it shall have."""
        return same_bytes(self._reach, path, st, self._after, record)

    def is_one_right_file(
        self,
        ino: int,
        stats: list[tuple[bytes, Name, os.stat_result | None]],
        record: records.InodeRecord,
    ) -> bool:
        """Whether all names are there, are one file, and that has the right bytes."""
        if not stats or len({(st.st_dev, st.st_ino) if st else None for _, _, st in stats}) != 1:
            return False
        path, _, st = stats[0]
        if st is None or not stat.S_ISREG(st.st_mode):
            return False
        its_base = any(self._is_its_base(name, st, record) for _, name, _ in stats)
        if not its_base and not self.has_bytes(path, st, record):
            return False
        self.note(ino, st)
        return True

    def places(self, ino: int) -> list[tuple[bytes, Name]]:
        """(path, name) of every name of an inode in the new state, but where only the staging
        directory may lie."""
        return _places(self._after, ino)

    def names_in_base(self, ino: int, st: os.stat_result) -> int:
        """How many names a file has in the base by both states, those in directories that wait for
        their new place (of an apply that was interrupted) too."""
        found = set()
        for path in self.paths(ino) | self._paths_in_staged(ino):
            try:
                with self._reach.parent(path) as (fd, name):
                    other = os.stat(name, dir_fd=fd, follow_symlinks=False)
                    above = os.fstat(fd)
            except (FileNotFoundError, NotADirectoryError):
                continue
            if os.path.samestat(other, st):
                found.add((above.st_dev, above.st_ino, name))
        return len(found)

    def _paths_in_staged(self, ino: int) -> set[bytes]:
        """Where an inode lies if a directory above it waits in the staging directory."""
        found = set()
        for snapshot in (self._before, self._after):
            for parent, path in snapshot.links(ino):
                for _ in range(_DEEPEST):
                    if parent in self._plan.moved:
                        found.add(staging_place(parent)[1] + b"/" + path)
                    links = snapshot.links(parent)
                    if not links:
                        break
                    parent, name = links[0]
                    path = name + b"/" + path
        return found

    def paths(self, ino: int) -> set[bytes]:
        """Where both states have an inode."""
        return {path for path, _ in _places(self._before, ino) + _places(self._after, ino)}


def _places(snapshot: Snapshot, ino: int) -> list[tuple[bytes, Name]]:
    found = []
    for name in snapshot.links(ino):
        above = snapshot.directory_path(name[0])
        if above is not None:
            path = above + b"/" + name[1] if above else name[1]
            if not is_reserved(path):
                found.append((path, name))
    return found


def same_place(st: os.stat_result, known: records.BaseRecord) -> bool:
    """Whether a thing is the one that a base record was made of (by inode number)."""
    return (st.st_dev, st.st_ino) == (known.dev, known.st_ino)
