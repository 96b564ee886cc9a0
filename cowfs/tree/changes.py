"""What differs between two lineages, from the change records alone.

Only the epochs that one of the two sees and the other does not are looked at, so the cost is that
of the changes, whatever the size of the tree or of the history.

Threading: pure functions on readers of the calling thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from cowfs.errors import DamagedRecordError
from cowfs.format import keys
from cowfs.store.lineage import Lineage
from cowfs.store.snapshot import Reader, Snapshot


@dataclass(frozen=True, slots=True)
class Touched:
    """Things that may differ: inode numbers and (directory, name) pairs."""

    inodes: set[int]
    names: set[tuple[int, bytes]]


def touched_between(reader: Reader, one: Lineage, two: Lineage) -> Touched:
    """Everything that the epochs seen by only one of the lineages touched."""
    inodes: set[int] = set()
    names: set[tuple[int, bytes]] = set()
    for start, end in one.minus(two) + two.minus(one):
        if end == 0:
            continue
        with reader.txn.cursor(db=reader.store.tables["change"]) as cursor:
            if not cursor.set_range(keys.pack_id(start)):
                continue
            for key, _ in cursor:
                if keys.unpack_id(key) > end:
                    break
                kind, ino, name = keys.change_parts(key)
                if kind == keys.KIND_INODE:
                    inodes.add(ino)
                else:
                    names.add((ino, name))
    return Touched(inodes, names)


def same_content(one: Snapshot, two: Snapshot, ino: int) -> bool:
    """Whether a file's bytes are the same in both, judged by its record and its block hashes."""
    a, b = one.inode(ino), two.inode(ino)
    if a is None or b is None:
        return a is b
    if (a.size, a.target) != (b.size, b.target):
        return False
    if a.content == b.content:
        if a.base_size != b.base_size:
            return False
        return _blocks(one, a.content) == _blocks(two, b.content)
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
