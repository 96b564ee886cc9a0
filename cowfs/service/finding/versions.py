"""Which epochs said something of a file: its versions, whatever lineage they belong to.

All versions of a thing are neighbours in the store, so this takes a few seeks, whatever the size
of the tree and the length of the history. Values are hardly looked at: what a state shows is asked
of its snapshot.

Threading: as the reader.
"""

from __future__ import annotations

from collections.abc import Iterator

from cowfs.errors import DamagedRecordError
from cowfs.format import keys, records
from cowfs.store.snapshot import Reader, Snapshot
from cowfs.types import ROOT_INO

DIRECTORY = 4
"""The type of a directory in directory entries."""
FEW = 5000
"""Names below a directory of which the versions are looked at one by one."""


class Places:
    """What was ever at a path, under any directories that had the names of its components.

    epochs: which wrote a version of one of those names. inodes: what the last component led to:
    number to type; some may never have been at the whole path. directories: ino of each directory
    that may have had the last component.
    """

    def __init__(self, reader: Reader, path: bytes) -> None:
        self.epochs: set[int] = set()
        self.inodes: dict[int, int] = {ROOT_INO: DIRECTORY}
        for name in path.split(b"/") if path else ():
            above = self.inodes
            self.inodes = {}
            for directory, kind in above.items():
                if kind == DIRECTORY:
                    self._add(reader, directory, name)

    def _add(self, reader: Reader, directory: int, name: bytes) -> None:
        def damaged(key: bytes, _error: DamagedRecordError) -> None:
            self.epochs.add(keys.epoch_of(key))

        for key, value in reader.scan("dirent", keys.dirent_prefix(directory, name), damaged):
            self.epochs.add(keys.epoch_of(key))
            if value:
                ino, kind = records.unpack_dirent(value)
                self.inodes[ino] = kind


def at(snapshot: Snapshot, path: bytes) -> int | None:
    """The inode at a path, None when there is none. Only the store is asked: what lies in a base
    directory that nobody looked into has no history."""
    ino, kind = +ROOT_INO, DIRECTORY
    for name in path.split(b"/") if path else ():
        found = snapshot.lookup(ino, name) if kind == DIRECTORY else None
        if found is None:
            return None
        ino, kind = found
    return ino


def epochs_of(reader: Reader, ino: int) -> Iterator[int]:
    """The epochs that wrote a version of an inode: its content, its attributes, its links."""
    return map(keys.epoch_of, reader.keys("inode", keys.pack_id(ino)))


def naming_epochs(reader: Reader, ino: int) -> set[int]:
    """The epochs in which the path of an inode may have changed: by a name of its own, or by one of
    a directory that was ever above it."""
    found: set[int] = set()
    pending, seen = [ino], {ino}
    while pending:
        for key in reader.keys("link", keys.pack_id(pending.pop())):
            found.add(keys.epoch_of(key))
            above = keys.link_parts(key)[0]
            if above not in seen:
                seen.add(above)
                pending.append(above)
    return found


def _left_out(_key: bytes, _error: DamagedRecordError) -> None:
    """What it led to cannot be known; the state that shows it cannot be compared anyway."""


class Below:
    """Which inodes were ever below some directories, in any epoch."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._tops: set[int] = set()
        self._known: dict[int, bool] = {}

    def add(self, top: int) -> bool:
        """One more directory; whether it is new. What was found before is forgotten then."""
        if top in self._tops:
            return False
        self._tops.add(top)
        self._known.clear()
        return True

    def few(self, top: int) -> set[int] | None:
        """All inodes that were ever below a directory, None when they are more than a few."""
        found: set[int] = set()
        pending, names = [top], 0
        while pending:
            below = self._reader.scan("dirent", keys.pack_id(pending.pop()), _left_out)
            for _, value in below:
                names += 1
                if names > FEW:
                    return None
                if not value:
                    continue
                ino, kind = records.unpack_dirent(value)
                if kind == DIRECTORY and ino not in found:
                    pending.append(ino)
                found.add(ino)
        return found

    def has(self, ino: int) -> bool:
        """Whether an inode is one of the directories, or was ever below one of them."""
        found = self._known.get(ino)
        if found is None:
            found = self._known[ino] = ino in self._tops or self._search(ino)
        return found

    def _search(self, ino: int) -> bool:
        """By the names that it had and those of all directories that were ever above it."""
        cursor, known = self._reader.cursor("link"), self._known
        pending, seen = [ino], {ino}
        while pending:
            prefix = keys.pack_id(pending.pop())
            more = cursor.set_range(prefix)
            while more and (key := cursor.key()).startswith(prefix):
                above = keys.link_parts(key)[0]
                if above in self._tops or known.get(above):
                    return True
                if above not in seen and above not in known:
                    seen.add(above)
                    pending.append(above)
                more = cursor.next()
        for passed in seen:
            known[passed] = False
        return False
