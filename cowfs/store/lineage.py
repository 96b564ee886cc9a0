"""Lineage: which epochs a view sees.

A view at an epoch sees the versions written by that epoch and its ancestors. Ancestors are kept
as ascending ranges of epoch numbers: checkpoints extend the last range, a restore starts a new
one. `visible` is a comparison for the newest range and a bisect for the rest.

Threading: immutable; safe anywhere.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

Range = tuple[int, int]


class Lineage:
    """Ascending, disjoint, inclusive epoch ranges; the last one ends in `head`."""

    __slots__ = ("_ends", "_newest", "_starts", "head", "ranges")

    def __init__(self, ranges: tuple[Range, ...]) -> None:
        if not ranges or any(a > b for a, b in ranges):
            raise ValueError(f"bad lineage {ranges}")
        self.ranges = ranges
        self.head = ranges[-1][1]
        self._newest = ranges[-1][0]
        self._starts = [a for a, _ in ranges]
        self._ends = [b for _, b in ranges]

    def visible(self, epoch: int) -> bool:
        """Whether versions of that epoch belong to this view."""
        if epoch >= self._newest:
            return epoch <= self.head
        at = bisect_right(self._starts, epoch) - 1
        return at >= 0 and epoch <= self._ends[at]

    def child(self, epoch: int) -> Lineage:
        """The lineage of a new epoch whose parent is this head."""
        if epoch <= self.head:
            raise ValueError("epochs only grow")
        if epoch == self.head + 1:
            return Lineage((*self.ranges[:-1], (self._newest, epoch)))
        return Lineage((*self.ranges, (epoch, epoch)))

    def at(self, epoch: int) -> Lineage:
        """The same line cut at one of its epochs."""
        if not self.visible(epoch):
            raise ValueError(f"epoch {epoch} is not in {self.ranges}")
        kept = [r for r in self.ranges if r[0] <= epoch]
        kept[-1] = (kept[-1][0], epoch)
        return Lineage(tuple(kept))

    def before(self, epoch: int) -> Lineage:
        """The same line without what is not older than an epoch (not 0), which may be another's."""
        return Lineage(tuple((a, min(b, epoch - 1)) for a, b in self.ranges if a < epoch))

    def epochs(self) -> Iterator[int]:
        """All epochs, newest first."""
        for start, end in reversed(self.ranges):
            yield from range(end, start - 1, -1)

    def minus(self, other: Lineage) -> list[Range]:
        """The ranges of this lineage that `other` does not see, ascending."""
        out: list[Range] = []
        for start, end in self.ranges:
            pieces = [(start, end)]
            for a, b in other.ranges:
                rest: list[Range] = []
                for s, e in pieces:
                    if b < s or a > e:
                        rest.append((s, e))
                        continue
                    if s < a:
                        rest.append((s, a - 1))
                    if b < e:
                        rest.append((b + 1, e))
                pieces = rest
            out.extend(pieces)
        return out

    def __repr__(self) -> str:
        return f"Lineage({self.ranges})"
