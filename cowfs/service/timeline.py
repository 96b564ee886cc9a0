"""The timeline: every checkpoint, what it came from and what it changed.

Threading: as the workspace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from cowfs.errors import DamagedRecordError
from cowfs.format import keys, records
from cowfs.service.states import States
from cowfs.service.workspace import ReadOnly
from cowfs.store.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Row:
    """One state of the timeline.

    id: the checkpoint's, "@" for the open head. parent: id of the checkpoint that this state was
    made from, None for the first. time: ns since 1970; of the head, when its epoch was opened.
    kind: as of `CheckpointRecord`, "head" for the head. target: of a rescue checkpoint, the one
    whose restore it preceded. counts: what changed since `parent`, in inodes.
    git: the commit and branch that git was on. current: the head descends directly from it.
    on_line: the head descends from it at all. pinned, note, session, thinned: as of
    `CheckpointRecord`.
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
    git: records.GitState
    current: bool
    on_line: bool
    pinned: bool = False
    note: str = ""
    session: str = ""
    thinned: tuple[str, ...] = ()

    def with_parent(self, parent: str | None) -> Row:
        """The same row in a list that does not have its parent."""
        return replace(self, parent=parent)

    def to_json(self) -> dict[str, Any]:
        row = {name: getattr(self, name) for name in self.__slots__}
        row["counts"] = records.to_dict(self.counts)
        row["git"] = records.to_dict(self.git)
        return row


class Timeline:
    """The rows of a workspace's history. They are read as they are asked for.

    damaged: told the ids of checkpoints that cannot be read, which are left out then. Without it
    they raise DamagedRecordError. counts: what the open epoch changed, if it is known: to find it
    out takes as long as there are changes.
    """

    def __init__(
        self,
        workspace: ReadOnly,
        damaged: Callable[[str], None] | None = None,
        counts: records.Counts | None = None,
    ) -> None:
        self.workspace = workspace
        self._counts = counts
        self.states = States(workspace.reader, workspace.branch.head, damaged)
        self._origin = self.states.parent(self.states.head)
        self._line = self.states.lineage(self.states.head)

    def checkpoints(self) -> Iterator[Row]:
        """All but the head, newest first."""
        return map(self._row, self.states.newest_first())

    def row(self, epoch: int) -> Row | None:
        """The row of a state; None for epoch 0 if its checkpoint is not there any more."""
        if epoch == self.states.head:
            return self.head()
        record = self.states.checkpoint(epoch)
        return self._row(record) if record else None

    def head(self) -> Row:
        """The present state."""
        return Row(
            id="@",
            epoch=self.states.head,
            parent=self._parent(self.states.head),
            time=self.workspace.head().opened,
            message="",
            label="",
            kind="head",
            user="",
            uid=0,
            pid=0,
            command="",
            target="",
            counts=self._counts or head_counts(self.workspace),
            git=records.GitState(),
            current=False,
            on_line=True,
        )

    def _row(self, record: records.CheckpointRecord) -> Row:
        return Row(
            id=record.id,
            epoch=record.epoch,
            parent=self._parent(record.epoch),
            time=record.time,
            message=record.message,
            label=record.label,
            kind=record.kind,
            user=record.user,
            uid=record.uid,
            pid=record.pid,
            command=record.command,
            target=record.target,
            pinned=record.pinned,
            note=record.note,
            session=record.session,
            thinned=record.thinned,
            counts=record.counts,
            git=record.git,
            current=record.epoch == self._origin,
            on_line=self._line.visible(record.epoch),
        )

    def _parent(self, epoch: int) -> str | None:
        found = self.states.checkpoint(self.states.parent(epoch)) if epoch else None
        return found.id if found else None


def timeline(
    workspace: ReadOnly,
    limit: int | None = None,
    damaged: Callable[[str], None] | None = None,
) -> list[Row]:
    """The open head, then the checkpoints, newest first, at most `limit` of them (None: all).

    damaged: as of `Timeline`.
    """
    line = Timeline(workspace, damaged)
    return [line.head(), *islice(line.checkpoints(), limit)]


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
