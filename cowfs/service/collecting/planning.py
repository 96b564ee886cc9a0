"""What a collection must leave alone, and where it has to look.

Threading: pure functions on a reader of the calling thread.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass

from cowfs.errors import DamagedRecordError
from cowfs.format import keys, records
from cowfs.store.snapshot import Reader
from cowfs.tree.keeping import Kept
from cowfs.volume.removing import GARBAGE
from cowfs.volume.volume import MAIN


@dataclass(frozen=True, slots=True)
class Plan:
    """head: the open epoch; its versions and later ones are not touched. parent: the epoch that it
    was opened from. present: epochs that are needed whole whatever checkpoints there are. done:
    epochs of the list of garbage that this plan settles. affected: epochs whose change records name
    everything of which a version may go, ascending."""

    head: int
    parent: int
    present: frozenset[int]
    kept: Kept
    done: list[int]
    affected: list[int]


def waiting(reader: Reader) -> list[int]:
    """The epochs whose checkpoints were removed since their versions were last looked at."""
    return [keys.unpack_id(key[len(GARBAGE) :]) for key in reader.keys("meta", GARBAGE)]


def make_plan(
    reader: Reader,
    *,
    also: Collection[int] = (),
    without: Collection[int] = (),
) -> Plan:
    """Kept are the states of all checkpoints, the one that the open epoch came from, the one that
    the base shows or is being made to show, epoch 0, and those of `also`.

    without: epochs as if their checkpoints were removed. Raises DamagedRecordError: who does not
    know all that is kept must not take anything out.
    """
    branch = reader.branch(MAIN)
    epochs = {
        keys.unpack_id(key): records.decode(value, records.EpochRecord)
        for key, value in reader.scan("epoch")
    }
    parents = {number: record.parent for number, record in epochs.items() if number}
    for number, parent in parents.items():
        if parent >= number or parent not in epochs:
            raise DamagedRecordError(what=f"epoch {number}", detail="its parent does not exist")
    if 0 not in epochs or branch.head not in epochs:
        raise DamagedRecordError(what="the history", detail="it has no beginning or no end")
    shown = {number for number, record in epochs.items() if record.checkpoint}
    for _, value in reader.scan("checkpoint"):
        shown.add(records.decode(value, records.CheckpointRecord).epoch)
    shown -= set(without)
    present = {0, parents[branch.head], branch.applied}
    if (applying := reader.get("meta", b"applying")) is not None:
        present.add(keys.unpack_id(applying))
    shown |= {*present, *also}
    shown &= epochs.keys() - {branch.head}
    garbage = [n for n in {*waiting(reader), *without} if n in epochs and n not in shown]
    return Plan(
        branch.head,
        parents[branch.head],
        frozenset(present),
        Kept(parents, shown),
        sorted(garbage),
        _affected(parents, shown | {branch.head}, garbage),
    )


def _affected(parents: dict[int, int], shown: set[int], garbage: list[int]) -> list[int]:
    """The epochs that are connected to garbage by epochs that are no states either, and the states
    that come after them, in which a whiteout may not be needed any more."""
    children = defaultdict(list)
    for number, parent in parents.items():
        children[parent].append(number)
    found: set[int] = set()
    pending = list(garbage)
    while pending:
        number = pending.pop()
        if number in found:
            continue
        found.add(number)
        if number not in shown:
            pending += children[number]
            if number and parents[number] not in shown:
                pending.append(parents[number])
    return sorted(found)
