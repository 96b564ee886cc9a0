"""The end of an apply: attributes, modes that keep their owner out, and a last look.

Threading: for the thread of the apply.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable

from cowfs.format import records
from cowfs.service.applying import attributes
from cowfs.service.applying.known import Known
from cowfs.service.applying.plan import Name, Plan
from cowfs.service.applying.problems import Problems
from cowfs.service.applying.reach import Reach, keeps_owner_out
from cowfs.service.applying.staging import Staging
from cowfs.store.snapshot import Snapshot
from cowfs.types import ROOT_INO
from cowfs.volume.base import BaseEntry, place
from cowfs.volume.importing import base_record


def has_names_outside(known: Known, staging: Staging, ino: int, st: os.stat_result) -> bool:
    """Whether a file has more names than the base and the staging directory have of it."""
    if stat.S_ISDIR(st.st_mode) or st.st_nlink == 1:
        return False
    return st.st_nlink > known.names_in_base(ino, st) + staging.links_to(st)


class Finishing:
    """What is left when all names and contents are in place."""

    def __init__(
        self, reach: Reach, known: Known, after: Snapshot, plan: Plan, problems: Problems
    ) -> None:
        self._reach = reach
        self._known = known
        self._after = after
        self._plan = plan
        self._problems = problems

    def set_attributes(self, staging: Staging, step: Callable[[bytes], None]) -> None:
        """Of everything that was touched, of the directories whose entries changed, and of those
        above that had to be opened."""
        self._plan.directories |= self._closed_above()
        found = []
        for ino in sorted(self._plan.touched | self._plan.directories):
            record = self._after.inode(ino)
            paths = sorted(p for p, _ in self._known.places(ino)) if ino != ROOT_INO else [b"."]
            if record is not None and paths:
                found.append((paths[0], ino, record))
        for path, ino, record in attributes.in_order(found):
            step(path)
            # It could not be made, which was reported.
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                self._set_one(staging, path, ino, record)

    def _closed_above(self) -> set[int]:
        """Directories above something that changed whose mode keeps us out."""
        seen: set[int] = set()
        waiting = list(self._plan.touched | self._plan.directories)
        while waiting:
            for above, _ in self._after.links(waiting.pop()):
                if above not in seen:
                    seen.add(above)
                    waiting.append(above)
        return {ino for ino in seen if self._is_closed(self._after.inode(ino))}

    @staticmethod
    def _is_closed(record: records.InodeRecord | None) -> bool:
        return record is not None and keeps_owner_out(record.mode, record.uid)

    def _set_one(
        self, staging: Staging, path: bytes, ino: int, record: records.InodeRecord
    ) -> None:
        xattrs, mode = self._after.xattrs(ino), stat.S_IMODE(record.mode)
        with self._reach.thing(path) as (fd, st):
            if stat.S_ISDIR(st.st_mode) and stat.S_ISDIR(record.mode):
                if self._is_closed(record):
                    mode |= stat.S_IRWXU  # until everything in it is done: `shut`
            elif not self._is_it(path, ino, st, record):
                self._problems.once(path, "its attributes were not set: it was changed outside")
                return
            elif has_names_outside(self._known, staging, ino, st):
                # Those with other attributes were replaced, but for one that came just now.
                if not attributes.are_set(fd, st, record, xattrs):
                    self._problems.add(path, "its attributes were not set: it has a name outside")
                return
            attributes.set_one(fd, st, path, record, xattrs, self._problems.add, mode=mode)

    def _is_it(
        self, path: bytes, ino: int, st: os.stat_result, record: records.InodeRecord
    ) -> bool:
        if stat.S_IFMT(st.st_mode) != stat.S_IFMT(record.mode):
            return False
        if self._known.is_it(ino, st):
            return True
        for other, name in self._known.places(ino):
            if other == path:
                self._known.is_right(path, name, st, ino, record)  # put there by an earlier run
        return self._known.is_it(ino, st)

    def shut(self, base: int) -> dict[Name, records.BaseRecord]:
        """The last of all: directories get the modes that keep us out, and the top (`base`, a
        descriptor) its time. Returns what lies under every name of everything touched."""
        found, rows = self._look(), []
        for ino in self._plan.touched | self._plan.directories:
            record = self._after.inode(ino)
            if record is not None and stat.S_ISDIR(record.mode) and self._is_closed(record):
                rows += [(path, ino, record) for path, _ in self._known.places(ino)]
        for path, ino, record in attributes.in_order(rows):
            with (
                contextlib.suppress(FileNotFoundError, NotADirectoryError),
                self._reach.thing(path) as (fd, st),
            ):
                if stat.S_ISDIR(st.st_mode):
                    os.chmod(place(fd), stat.S_IMODE(record.mode))
                    name = self._after.links(ino)[0]
                    found[name] = base_record(BaseEntry(name[1], os.fstat(fd), b"", {}), ino, 0)
        top = self._after.inode(ROOT_INO)
        if top is not None:
            st = os.fstat(base)
            attributes.set_times(place(base), st, b".", top, self._problems.once)
            if stat.S_IMODE(st.st_mode) != stat.S_IMODE(top.mode):
                os.fchmod(base, stat.S_IMODE(top.mode))
        return found

    def _look(self) -> dict[Name, records.BaseRecord]:
        """What lies under every name of everything touched, for the base table."""
        found: dict[Name, records.BaseRecord] = {}
        inodes = self._plan.touched | self._plan.directories
        for ino in inodes:
            record = self._after.inode(ino)
            if record is None:
                continue
            for path, (parent, name) in self._known.places(ino):
                st = self._reach.lstat(path)
                if st is None or stat.S_IFMT(st.st_mode) != stat.S_IFMT(record.mode):
                    continue
                content = record.content if stat.S_ISREG(record.mode) else 0
                entry = BaseEntry(name, st, b"", {})
                found[(parent, name)] = base_record(entry, ino, content)
        return found
