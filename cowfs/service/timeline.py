"""The timeline: every checkpoint, what it came from and what it changed.

Threading: as the workspace.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cowfs.errors import DamagedRecordError
from cowfs.format import keys, records
from cowfs.service.selectors import all_checkpoints
from cowfs.service.workspace import ReadOnly
from cowfs.store.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Row:
    """One state of the timeline.

    id: the checkpoint's, "@" for the open head. parent: id of the checkpoint that this state was
    made from, None for the first. time: ns since 1970; of the head, when its epoch was opened.
    kind: as of `CheckpointRecord`, "head" for the head. target: of a rescue checkpoint, the one
    whose restore it preceded. counts: what changed since `parent`, in inodes.
    current: the head descends directly from it. on_line: the head descends from it at all.
    """

    id: str
    epoch: int
    parent: str | None
    time: int
    message: str
    label: str
    kind: str
    user: str
    uid: int
    pid: int
    command: str
    target: str
    counts: records.Counts
    current: bool
    on_line: bool

    def to_json(self) -> dict[str, Any]:
        row = {name: getattr(self, name) for name in self.__slots__}
        row["counts"] = records.to_dict(self.counts)
        return row


def timeline(
    workspace: ReadOnly,
    limit: int | None = None,
    damaged: Callable[[str], None] | None = None,
) -> list[Row]:
    """The open head, then the checkpoints, newest first, at most `limit` of them (None: all).

    damaged: told the ids of those that cannot be read, which are left out then. Without it they
    raise DamagedRecordError.
    """
    reader = workspace.reader
    checkpoints = all_checkpoints(reader, damaged)
    by_epoch = {record.epoch: record for record in checkpoints}
    head = workspace.head()
    lineage = reader.lineage(workspace.branch.head)

    known: dict[int, records.CheckpointRecord | None] = {0: None}

    def ancestor(epoch: int) -> records.CheckpointRecord | None:
        """The checkpoint of the nearest ancestor: the parent epoch's, if it was not removed."""
        trail = []
        while epoch not in known:
            trail.append(epoch)
            epoch = reader.epoch(epoch).parent
            if epoch in by_epoch:
                break
        found = by_epoch[epoch] if trail and epoch in by_epoch else known[epoch]
        for passed in trail:
            known[passed] = found
        return found

    origin = ancestor(workspace.branch.head)
    rows = [
        Row(
            id="@",
            epoch=workspace.branch.head,
            parent=origin.id if origin else None,
            time=head.opened,
            message="",
            label="",
            kind="head",
            user="",
            uid=0,
            pid=0,
            command="",
            target="",
            counts=head_counts(workspace),
            current=False,
            on_line=True,
        )
    ]
    newest = (
        reversed(checkpoints) if limit is None else reversed(checkpoints[-limit:] if limit else [])
    )
    for record in newest:
        parent = ancestor(record.epoch)
        rows.append(
            Row(
                id=record.id,
                epoch=record.epoch,
                parent=parent.id if parent else None,
                time=record.time,
                message=record.message,
                label=record.label,
                kind=record.kind,
                user=record.user,
                uid=record.uid,
                pid=record.pid,
                command=record.command,
                target=record.target,
                counts=record.counts,
                current=origin is not None and record.epoch == origin.epoch,
                on_line=lineage.visible(record.epoch),
            )
        )
    return rows


def head_counts(workspace: ReadOnly) -> records.Counts:
    """What the open epoch changed so far, as committed; directories count when made or removed."""
    reader, head = workspace.reader, workspace.branch.head
    lineage = reader.lineage(head)
    new = Snapshot(reader, lineage)
    old = Snapshot(reader, lineage.at(workspace.head().parent))
    created = modified = deleted = 0
    for key in reader.keys("change", keys.pack_id(head) + bytes((keys.KIND_INODE,))):
        ino = keys.change_parts(key)[1]
        try:
            after, before = new.inode(ino), old.inode(ino)
        except DamagedRecordError:
            modified += 1
            continue
        if after is None:
            deleted += before is not None
        elif before is None:
            created += 1
        elif records.kind_of(after.mode) != 4:
            modified += 1
    return records.Counts(created, modified, deleted)
