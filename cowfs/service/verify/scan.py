"""What all passes of `verify` share: the reader, the report, and what is known so far.

Threading: owned by the thread that verifies.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import islice

from cowfs.errors import DamagedRecordError
from cowfs.format import keys, records
from cowfs.service.verify.history import History
from cowfs.service.verify.report import ERROR, Progress, Report
from cowfs.store.env import Cursor
from cowfs.store.lineage import Lineage
from cowfs.store.snapshot import Reader, Snapshot
from cowfs.store.sums import Sums
from cowfs.volume.base import Base

LOST = b"lost\0"
"""Keys of `meta` that begin so mark what a repair found to be lost: table, NUL, key follow."""
_OF_INODES = frozenset({"inode", "dirent", "link", "xattr"})
"""Tables whose keys begin with an inode number."""
_EVERY = 4096
_PATH_STATES = 32
"""States in which the paths of one thing are looked up; more would show the same names."""
_PATHS = 64


class Scan:
    """One run over a store.

    owners: content to inode, for contents that are not the number of their inode. suspects: inodes
    with a problem of their own; what only follows from it is not reported again. derived: problems
    of inodes that may only follow: (check, ino, detail, epoch, newer epochs). largest: the
    largest inode number or content id in use. unreadable: tables whose pages are damaged. lost:
    marks of what is known to be lost, as (table, NUL, key). falsified: (table, key) of records
    whose checksum is wrong; for everybody else they do not decode. sums: of the records of each
    table that was read to its end.
    """

    def __init__(
        self, reader: Reader, base: Base | None, report: Report, progress: Progress
    ) -> None:
        self.reader = Reader(reader.store, reader.txn.examining())
        self.base = base
        self.report = report
        self.progress = progress
        self.history = History()
        self.owners: dict[int, int] = {}
        self.suspects: set[int] = set()
        self.largest = 0
        self.unreadable: set[str] = set()
        self.lost: set[bytes] = set()
        self.falsified: list[tuple[str, bytes]] = []
        self.sums: dict[str, Sums] = {}
        self.derived: list[tuple[str, int, str, int, tuple[int, ...]]] = []
        self._cursors: dict[str, Cursor] = {}

    # -- reading ------------------------------------------------------------------------------

    def readable(self, table: str) -> bool:
        """Whether the pages of a table are sound."""
        return table not in self.unreadable

    def entries(self, table: str) -> int:
        """How many records a table has."""
        return self.reader.txn.stat(self.reader.store.tables[table])["entries"]

    def each(self, table: str, *, shown: bool = True) -> Iterator[tuple[bytes, bytes]]:
        """All records of a table in key order, counted; with progress, when `shown`. Those whose
        checksum is wrong are noted and left out."""
        total, done = self.entries(table), 0
        opened = self.reader.store.tables[table].checksum.open
        summed, sums = self.reader.store.tables[table].summed, Sums()
        with self.reader.txn.cursor(db=self.reader.store.tables[table]) as cursor:
            found = cursor.set_range(b"")
            for key, stored in cursor.following() if found else ():
                if shown and not done % _EVERY:
                    self.progress(table, done, total)
                done += 1
                if summed:
                    sums.replace(table, key, None, stored)
                try:
                    value = opened(key, stored)
                except DamagedRecordError:
                    self._falsified(table, key)
                    continue
                yield key, value
        if shown:
            self.progress(table, total, total)
        if summed:
            self.sums[table] = sums
        self.report.checked[table] += done

    def _falsified(self, table: str, key: bytes) -> None:
        self.falsified.append((table, key))
        if table in _OF_INODES:
            self.suspects.add(keys.unpack_id(key))

    def stored(self, table: str, key: bytes) -> bytes:
        """A value with its checksum; b"" when there is none."""
        cursor = self.cursor(table)
        return cursor.stored() if cursor.set_range(key) and cursor.key() == key else b""

    def cursor(self, table: str) -> Cursor:
        """A cursor that the checks share: position it before each use."""
        cursor = self._cursors.get(table)
        if cursor is None:
            db = self.reader.store.tables[table]
            cursor = self._cursors[table] = self.reader.txn.cursor(db=db)
        return cursor

    def has(self, table: str, key: bytes) -> bool:
        """Whether a record exists; its value is not read."""
        cursor = self.cursor(table)
        return cursor.set_range(key) and cursor.key() == key

    def has_prefix(self, table: str, prefix: bytes) -> bool:
        """Whether any record's key starts with `prefix`."""
        cursor = self.cursor(table)
        return cursor.set_range(prefix) and cursor.key().startswith(prefix)

    def close(self) -> None:
        for cursor in self._cursors.values():
            cursor.close()
        self._cursors.clear()
        self.reader.close()

    # -- problems -----------------------------------------------------------------------------

    def use(self, number: int) -> None:
        """Note an inode number or content id that is in use."""
        if number > self.largest:
            self.largest = number

    def problem(
        self,
        check: str,
        table: str,
        thing: str,
        detail: str,
        *,
        states: Iterable[tuple[str, Lineage]] = (),
        inode: int = 0,
        checkpoints: Iterable[str] = (),
        paths: Iterable[bytes] = (),
        severity: str = ERROR,
    ) -> None:
        """Report something.

        states: those that show it; or `checkpoints`, by their ids. inode: the one whose paths in
        these states (or in all, when none is given) are named; or `paths` themselves.
        """
        if severity == ERROR and not self.report.room(check):
            return
        hit = list(states)
        found = list(paths)
        if inode and not found:
            found = self.paths(inode, hit or self.history.states)
        self.report.add(
            check,
            table,
            thing,
            detail,
            checkpoints=checkpoints or [name for name, _ in hit],
            paths=found,
            severity=severity,
        )

    def report_derived(self) -> None:
        """Report what does not merely follow from another problem."""
        for check, ino, detail, epoch, newer in self.derived:
            if ino not in self.suspects:
                states = self.history.seeing(epoch, newer)
                self.problem(check, "inode", f"{ino}", detail, states=states, inode=ino)
        self.derived.clear()

    def paths(self, ino: int, states: Iterable[tuple[str, Lineage]]) -> list[bytes]:
        """Every path that an inode has in the given states, newest state first."""
        found: dict[bytes, None] = {}
        for _, lineage in list(states)[: -_PATH_STATES - 1 : -1]:
            try:
                found.update(dict.fromkeys(self.names(ino, lineage)))
            except DamagedRecordError:
                continue
            if len(found) >= _PATHS:
                break
        return list(found)[:_PATHS]

    def names(self, ino: int, lineage: Lineage) -> list[bytes]:
        """The paths of an inode in one state."""
        if ino == 1:
            return [b"."]
        return Snapshot(self.reader, lineage).names_of(ino)

    def path_in(
        self, parent: int, name: bytes, states: Iterable[tuple[str, Lineage]]
    ) -> list[bytes]:
        """Paths of a directory entry in the given states."""
        found: dict[bytes, None] = {}
        for _, lineage in list(states)[: -_PATH_STATES - 1 : -1]:
            above = Snapshot(self.reader, lineage).directory_path(parent)
            if above is not None:
                found[above + b"/" + name if above else name] = None
        return list(found)[:_PATHS]

    # -- versions -----------------------------------------------------------------------------

    def versions(self, table: str, prefix: bytes) -> list[tuple[int, bytes]]:
        """(epoch, value) of all versions of one thing, newest first."""
        size = len(prefix) + 8
        return [
            (keys.epoch_of(key), value)
            for key, value in self.reader.scan(table, prefix)
            if len(key) == size
        ]

    def origin(self, thing: int) -> records.OriginRecord | None:
        """Where a directory or content lies in the base, None when nowhere (or damaged)."""
        value = self.reader.get("origin", keys.pack_id(thing))
        if value is None:
            return None
        try:
            return records.unpack_origin(value)
        except DamagedRecordError:
            return None


def newest(versions: list[tuple[int, bytes]], lineage: Lineage) -> tuple[int, bytes] | None:
    """The version that a lineage sees; `versions` newest first."""
    start = bisect_left(versions, -lineage.head, key=lambda version: -version[0])
    for version in islice(versions, start, None):
        if lineage.visible(version[0]):
            return version
    return None
