"""Removing checkpoints, and pinning them.

A checkpoint that is removed is no state any more: its record, its context and its label go, and so
do its places on the stacks of undo and redo. Its epoch stays, as a part of the lineages of others;
what only it showed is taken out later, by service/collecting, which finds the epoch's number in
`meta`.

Threading: owned by the volume's thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from cowfs.format import keys, records
from cowfs.store.group import TransactionGroup

if TYPE_CHECKING:
    from cowfs.volume.volume import Volume

GARBAGE = b"garbage\0"
"""Keys of `meta` that begin so name, by its number, an epoch whose checkpoint was removed and whose
versions were not looked at since (docs/format.md, "Garbage")."""


def remove(
    volume: Volume, checkpoints: Iterable[records.CheckpointRecord]
) -> TransactionGroup | None:
    """Take checkpoints out of the history, all or none; None when there are none.

    They are gone when the group is committed. What was changed before must be committed.
    """
    gone = set()
    extra = volume.extra
    for record in checkpoints:
        gone.add(record.id)
        epoch = msgspec.structs.replace(volume.reader.epoch(record.epoch), checkpoint="")
        extra.delete("checkpoint", record.id.encode())
        extra.delete("context", record.id.encode())
        if record.label:
            extra.delete("label", record.label.encode())
        extra.put("epoch", keys.pack_id(record.epoch), records.encode(epoch))
        extra.put("meta", GARBAGE + keys.pack_id(record.epoch), b"")
    if not gone:
        return None
    branch = volume.branch
    undo = tuple(item for item in branch.undo if item not in gone)
    redo = tuple(item for item in branch.redo if item not in gone)
    if (undo, redo) != (branch.undo, branch.redo):
        volume.branch = msgspec.structs.replace(branch, undo=undo, redo=redo)
        volume.put_branch()
    return volume.quiesce()


def pin(
    volume: Volume, checkpoint: records.CheckpointRecord, *, pinned: bool, note: str
) -> tuple[records.CheckpointRecord, TransactionGroup | None]:
    """Set or clear the pin of a checkpoint; it counts when the group is committed."""
    changed = msgspec.structs.replace(checkpoint, pinned=pinned, note=note)
    volume.extra.put("checkpoint", checkpoint.id.encode(), records.encode(changed))
    return changed, volume.quiesce()
