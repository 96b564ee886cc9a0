"""What differs between two lineages, from the change records alone (unless one is damaged).

Only the epochs that one of the two sees and the other does not are looked at, so the cost is that
of the changes, whatever the size of the tree or of the history.

Threading: pure functions on readers of the calling thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from cowfs.errors import DamagedRecordError
from cowfs.format import keys
from cowfs.format.records import EXTENT_THINNED
from cowfs.store.lineage import Lineage
from cowfs.store.snapshot import Reader, Snapshot


@dataclass(frozen=True, slots=True)
class Touched:
    """Things that may differ: inode numbers and (directory, name) pairs."""

    inodes: set[int]
    names: set[tuple[int, bytes]]


def touched_between(reader: Reader, one: Lineage, two: Lineage) -> Touched:
    """Everything that the epochs seen by only one of the lineages touched."""
    found = Touched(set(), set())
    for start, end in one.minus(two) + two.minus(one):
        if end:
            try:
                _add_changes(found, reader, start, end)
            except DamagedRecordError:
                _add_versions(found, reader, max(start, 1), end)
    return found


def _add_changes(found: Touched, reader: Reader, start: int, end: int) -> None:
    """What the change records of a range of epochs name. Raises DamagedRecordError."""
    with reader.txn.cursor(db=reader.store.tables["change"]) as cursor:
        if not cursor.set_range(keys.pack_id(start)):
            return
        for key, stored in cursor.following():
            if keys.unpack_id(key) > end:
                return
            cursor.open(key, stored)
            kind, ino, name = keys.change_parts(key)
            if kind == keys.KIND_INODE:
                found.inodes.add(ino)
            else:
                found.names.add((ino, name))


def _add_versions(found: Touched, reader: Reader, start: int, end: int) -> None:
    """The same from the versions themselves: all of them are looked at, so this takes long. For
    change records of which one is damaged, which may have named anything."""
    for key in reader.keys("inode"):
        if start <= keys.epoch_of(key) <= end:
            found.inodes.add(keys.unpack_id(key))
    for key in reader.keys("dirent"):
        if start <= keys.epoch_of(key) <= end:
            found.names.add((keys.unpack_id(key), keys.dirent_name(key)))


def same_content(one: Snapshot, two: Snapshot, ino: int) -> bool:
    """Whether a file's bytes are the same in both, judged by its record and its block hashes. What
    is thinned is not known to be the same."""
    a, b = one.inode(ino), two.inode(ino)
    if a is None or b is None:
        return a is b
    if (a.size, a.target) != (b.size, b.target):
        return False
    if a.content == b.content:
        if a.base_size != b.base_size:
            return False
        blocks = _blocks(one, a.content)
        thinned = any(value == EXTENT_THINNED for _, value in blocks)
        return not thinned and blocks == _blocks(two, b.content)
    return False


def _blocks(snapshot: Snapshot, content: int) -> list[tuple[int, bytes]]:
    return list(snapshot.extents(content))


def differing(one: Snapshot, two: Snapshot) -> Touched:
    """The things that really differ between two snapshots of one reader. What is damaged in one
    of them does."""
    touched = touched_between(one.reader, one.lineage, two.lineage)
    names = {key for key in touched.names if not _same_name(one, two, key)}
    inodes = {ino for ino in touched.inodes if not same_inode(one, two, ino)}
    return Touched(inodes, names)


def same_inode(one: Snapshot, two: Snapshot, ino: int) -> bool:
    """Whether record, extended attributes and content of an inode are known to be equal."""
    try:
        if one.inode(ino) != two.inode(ino):
            return False
        return same_content(one, two, ino) and one.xattrs(ino) == two.xattrs(ino)
    except DamagedRecordError:
        return False


def _same_name(one: Snapshot, two: Snapshot, key: tuple[int, bytes]) -> bool:
    """Whether a name leads to the same inode, for all that is known."""
    try:
        return one.lookup(*key) == two.lookup(*key)
    except DamagedRecordError:
        return False
