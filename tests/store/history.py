"""Trees of epochs made at random, and the plain way to ask what an epoch sees."""

from __future__ import annotations

from hypothesis import strategies as st

from cowfs.format import keys, records
from cowfs.store.lineage import Lineage


@st.composite
def trees(draw: st.DrawFn, most: int = 40) -> list[int]:
    """The parent of every epoch; epoch 0 is its own. Long runs and restores in any order."""
    count = draw(st.integers(1, most))
    parents = [0]
    for epoch in range(1, count):
        goes_on = draw(st.integers(0, 3))
        parents.append(epoch - 1 if goes_on else draw(st.integers(0, epoch - 1)))
    return parents


def ancestors(parents: list[int] | dict[int, int], epoch: int) -> set[int]:
    """An epoch and all that it descends from, one by one."""
    found = {epoch}
    while epoch:
        epoch = parents[epoch]
        found.add(epoch)
    return found


def lineages(parents: list[int]) -> list[Lineage]:
    """The lineage of every epoch, each the child of its parent's."""
    made = [Lineage(((0, 0),))]
    for epoch, parent in enumerate(parents[1:], start=1):
        made.append(made[parent].child(epoch))
    return made


def epoch_rows(parents: list[int]) -> list[tuple[str, bytes, bytes]]:
    """The epoch table of a tree."""
    return [
        (
            "epoch",
            keys.pack_id(epoch),
            records.encode(
                records.EpochRecord(parents[epoch], lineage.ranges[-1][0], "main", 1, 1)
            ),
        )
        for epoch, lineage in enumerate(lineages(parents))
    ]
