"""What the tables say of one inode number, as the checks of the tree look at it.

Threading: owned by the thread that verifies.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from cowfs.format import keys, records
from cowfs.service.verify.scan import Scan, newest
from cowfs.store.lineage import Lineage

Versions = list[tuple[int, bytes]]
"""(epoch, value), newest first."""


class Stream:
    """One table, taken in portions that belong to one inode number."""

    def __init__(self, scan: Scan, table: str) -> None:
        self._records = scan.each(table, shown=table == "inode")
        self._next: tuple[bytes, bytes] | None = next(self._records, None)

    @property
    def ino(self) -> int | None:
        """The number that the next record belongs to, None at the end."""
        return keys.unpack_id(self._next[0]) if self._next is not None else None

    def take(self, ino: int) -> Iterator[tuple[bytes, bytes]]:
        """The records of one number."""
        while self._next is not None and keys.unpack_id(self._next[0]) == ino:
            yield self._next
            self._next = next(self._records, None)


@dataclass(slots=True)
class Tally:
    """How many of something there are after each epoch that changed it.

    changes: by epoch, against the newest of its ancestors that is in here.
    """

    changes: dict[int, int] = field(default_factory=dict)
    _order: list[int] = field(default_factory=list)
    _totals: dict[int, int] = field(default_factory=dict)

    def add(self, scan: Scan, versions: list[tuple[int, int]]) -> None:
        """One thing's versions, newest first: (epoch, how much it counts)."""
        for at, (epoch, weight) in enumerate(versions):
            lineage = scan.history.lineage(epoch)
            if lineage is None:
                continue
            before = next((w for e, w in versions[at + 1 :] if lineage.visible(e)), 0)
            self.changes[epoch] = self.changes.get(epoch, 0) + weight - before

    def at(self, lineage: Lineage) -> int:
        """How many a lineage sees; to be asked after the last `add`, older epochs first."""
        if not self._order and self.changes:
            self._order = sorted(self.changes)
        total, newest_epoch = 0, None
        for at in range(bisect_right(self._order, lineage.head) - 1, -1, -1):
            epoch = self._order[at]
            if not lineage.visible(epoch):
                continue
            known = self._totals.get(epoch)
            total += self.changes[epoch] if known is None else known
            newest_epoch = epoch if newest_epoch is None else newest_epoch
            if known is not None:
                break
        if newest_epoch is not None:
            self._totals[newest_epoch] = total
        return total


@dataclass(slots=True)
class Node:
    """What the tables say of one inode number. Versions are (epoch, value), newest first.

    links: by (parent, name). named: epochs that gave it a name. count: of its names.
    entries, children: of a directory, how many entries and sub-directories it has.
    """

    ino: int
    versions: Versions = field(default_factory=list)
    links: dict[tuple[int, bytes], Versions] = field(default_factory=dict)
    named: set[int] = field(default_factory=set)
    count: Tally = field(default_factory=Tally)
    entries: Tally = field(default_factory=Tally)
    children: Tally = field(default_factory=Tally)

    def touched(self, scan: Scan) -> dict[int, Lineage]:
        """The states that first show any change of it, by their epochs."""
        epochs = {
            *(epoch for epoch, _ in self.versions),
            *self.count.changes,
            *self.entries.changes,
        }
        return {at: line for epoch in epochs for at, line in scan.history.showing(epoch)}

    def record(self, lineage: Lineage) -> records.InodeRecord | None:
        """The inode that a lineage sees."""
        found = newest(self.versions, lineage)
        return records.unpack_inode(found[1]) if found and found[1] else None
