"""Checkpoints that the daemon makes by itself: how they are told from others, what is worth one.

Threading: functions on a volume belong to the thread that owns it; the others are pure.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from cowfs.errors import DamagedRecordError
from cowfs.format import keys, records
from cowfs.service.checkpoint import checkpoint
from cowfs.service.engine import Engine, commit
from cowfs.service.selectors import AUTOMATIC, UNASKED, last_checkpoint
from cowfs.store.snapshot import Snapshot
from cowfs.volume.history import Author
from cowfs.volume.volume import Volume

BEFORE_DELETIONS = "before deletions"
_BEFORE_DELETION = "before a deletion of "
_CHANGE_INODE = 1
_MOST_DIRECTORIES = 1000


def plural(count: int) -> str:
    """ "1 file", "1,200 files"."""
    return f"{count:,} file{'' if count == 1 else 's'}"


def is_notable(kind: str, message: str) -> bool:
    """Whether a list of checkpoints should show it by itself: one that nobody asked for only when
    it is what there was before a big deletion."""
    return kind not in UNASKED or message.startswith(_BEFORE_DELETION)


Belonging = tuple[str, bytes, object]
"""Of a checkpoint: id of its session, value of its context, and what must live until it is
stored."""


def save(
    engine: Engine,
    author: Author,
    reason: str,
    context: Callable[[], Belonging] | None = None,
) -> records.CheckpointRecord | None:
    """Make an automatic checkpoint; None when nothing has changed. context: asked what else is kept
    with it. Raises CowfsError."""
    _bring_in(engine)

    def look() -> records.Counts | None:
        return engine.volume.main.counts() if has_changes(engine.volume) else None

    counts = engine.call(look)
    if counts is None:
        return None
    files = counts.created + counts.modified + counts.deleted
    belonging = context() if context is not None else ("", b"", None)
    return checkpoint(
        engine,
        author,
        message=f"{reason}: {plural(files)}",
        kind=AUTOMATIC,
        session=belonging[0],
        context=belonging[1],
    )


def unchanged(engine: Engine) -> records.CheckpointRecord | None:
    """The last checkpoint, if nothing has changed since; else None. Raises CowfsError."""
    _bring_in(engine)
    volume = engine.volume

    def look() -> records.CheckpointRecord | None:
        if has_changes(volume):
            return None
        return last_checkpoint(volume.reader, volume.main.lineage)

    return engine.call(look)


def _bring_in(engine: Engine) -> None:
    """Commit everything; what was changed outside gets its own checkpoint first."""
    engine.flush()
    engine.call(engine.volume.external.adoption.settle)
    commit(engine)


def has_changes(volume: Volume) -> bool:
    """Whether the open epoch has changed anything but times of directories, as far as it is
    committed: what was made and removed again leaves nothing else."""
    view = volume.main
    if view.created or view.touched or view.deleted:
        return True
    before = Snapshot(volume.reader, view.lineage.at(volume.open_epoch.parent))
    now = view.snapshot
    for number, key in enumerate(volume.reader.keys("change", keys.pack_id(view.head))):
        kind, ino, _ = keys.change_parts(key)
        if kind != _CHANGE_INODE or number > _MOST_DIRECTORIES:
            return True
        try:
            new, old = now.inode(ino), before.inode(ino)
            if new is None or old is None or _lasting(new) != _lasting(old):
                return True
            if now.xattrs(ino) != before.xattrs(ino):
                return True
        except DamagedRecordError:
            return True
    return False


def _lasting(record: records.InodeRecord) -> tuple[int, ...]:
    """What of a directory's attributes does not change with every name in it."""
    return record.mode, record.uid, record.gid


def tell_deletion(volume: Volume, checkpoint_id: str, files: int) -> bool:
    """Write into a checkpoint how much was deleted after it; False when it is not there (yet)."""
    key = checkpoint_id.encode()
    value = volume.reader.get("checkpoint", key)
    if value is None:
        return False
    record = records.decode(value, records.CheckpointRecord)
    record = msgspec.structs.replace(record, message=_BEFORE_DELETION + plural(files))
    volume.extra.put("checkpoint", key, records.encode(record))
    return True
