"""What a restore must not bring back: files of which some content is not kept any more.

Only checkpoints show such files, never the present state. So a restore is refused, before anything
is changed, if it would make one of them part of that.

Threading: owned by the volume's thread.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from cowfs.errors import DamagedRecordError, ThinnedError
from cowfs.format import records
from cowfs.store.snapshot import Snapshot
from cowfs.tree.changes import touched_between

if TYPE_CHECKING:
    from cowfs.volume.volume import Volume

_ALL = 1 << 60


def refuse_thinned(
    volume: Volume,
    target: records.CheckpointRecord,
    paths: Iterable[bytes] = (b"",),
    is_excluded: Callable[[bytes], bool] = lambda _: False,
) -> None:
    """See that all of `paths` can be restored from a checkpoint, but for what is excluded: a path
    that is, and all below it. What was changed before must be committed.

    What does not differ from the present state is not thinned: that shows it, too. Raises
    ThinnedError.
    """
    reader = volume.reader
    value = reader.get("checkpoint", target.id.encode())
    if value is None or not records.decode(value, records.CheckpointRecord).thinned:
        return
    then = Snapshot(reader, reader.lineage(target.epoch))
    tops = list(paths)
    for ino in sorted(touched_between(reader, volume.main.lineage, then.lineage).inodes):
        for path in _thinned_as(then, ino):
            if any(_is_wanted(path, top, is_excluded) for top in tops):
                raise ThinnedError(path=os.fsdecode(path), where=target.id[:8])


def _thinned_as(then: Snapshot, ino: int) -> list[bytes]:
    """The paths of an inode if it is thinned. What is damaged is for others to find."""
    try:
        record = then.inode(ino)
        if record is None or not stat.S_ISREG(record.mode) or not then.is_thinned(record.content):
            return []
        return then.names_of(ino, _ALL)
    except DamagedRecordError:
        return []


def _is_wanted(path: bytes, top: bytes, is_excluded: Callable[[bytes], bool]) -> bool:
    """Whether a restore of `top` restores a path: nothing from `top` down to it is excluded."""
    if top and path != top and not path.startswith(top + b"/"):
        return False
    while path != top:
        if is_excluded(path):
            return False
        path = path.rpartition(b"/")[0]
    return not (top and is_excluded(top))
