"""Which versions of a thing a set of kept states needs.

The epochs are a tree. Of one thing a state sees the newest version that one of its ancestors wrote.
The kept states are numbered so that those below any epoch are neighbours: so the states that see a
version are the bits of one integer, and a few operations on integers decide about a version
whatever the number of states.

Threading: pure; a `Kept` is immutable.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

ALL = -1
"""As a set of states: every one."""


class Kept:
    """The kept states of a store. epochs: theirs."""

    def __init__(self, parents: Mapping[int, int], epochs: Collection[int]) -> None:
        """parents: of every epoch but 0; a parent is smaller. epochs: those whose state is kept."""
        self.epochs = frozenset(epochs)
        order = [0, *sorted(parents.keys() - {0})]
        size = {epoch: int(epoch in self.epochs) for epoch in order}
        for epoch in reversed(order[1:]):
            size[parents[epoch]] += size[epoch]
        first, free = {0: 0}, {0: int(0 in self.epochs)}
        for epoch in order[1:]:
            parent = parents[epoch]
            first[epoch] = free[parent]
            free[parent] += size[epoch]
            free[epoch] = first[epoch] + (epoch in self.epochs)
        self._first, self._size = first, size

    def knows(self, epoch: int) -> bool:
        """Whether there was such an epoch."""
        return epoch in self._size

    def below(self, epoch: int) -> int:
        """The kept states that see what an epoch wrote, but for what newer epochs changed again."""
        size = self._size.get(epoch, 0)
        return ((1 << size) - 1) << self._first[epoch] if size else 0

    def state(self, epoch: int) -> int:
        """The one state of a kept epoch; none for another."""
        return 1 << self._first[epoch] if epoch in self.epochs else 0

    def states(self, epochs: Iterable[int]) -> int:
        """Those of several epochs that are kept."""
        found = 0
        for epoch in epochs:
            found |= self.state(epoch)
        return found

    def members(self, states: int) -> Iterator[int]:
        """The epochs of a set of states."""
        return (epoch for epoch in self.epochs if states >> self._first[epoch] & 1)

    def seen(self, versions: Iterable[int]) -> list[int]:
        """For each version of one thing, given by their epochs, newest first: who sees it."""
        covered, out = 0, []
        for epoch in versions:
            below = self.below(epoch)
            out.append(below & ~covered)
            covered |= below
        return out

    def superfluous(
        self,
        versions: list[tuple[int, bool]],
        open_from: int,
        *,
        needed_by: int = ALL,
        absence_shows: bool = False,
    ) -> list[int]:
        """The epochs of the versions of one thing that no kept state needs, oldest first: the order
        in which they may be taken out one by one.

        versions: (epoch, whether it says that the thing is there), newest first. Those of epoch 0,
        of `open_from` and later, and of unknown epochs stay. needed_by: the states that need the
        thing at all. absence_shows: a version that says that there is nothing is as good as others;
        else it is needed only where an older one would show.
        """
        out: list[int] = []
        shows = 0
        seen = self.seen(epoch for epoch, _ in versions)
        for (epoch, there), by in zip(reversed(versions), reversed(seen), strict=True):
            stays = epoch == 0 or epoch >= open_from or not self.knows(epoch)
            by &= needed_by
            if stays or (by and (there or absence_shows or by & shows)):
                if there:
                    shows |= self.below(epoch)
            else:
                out.append(epoch)
        return out
