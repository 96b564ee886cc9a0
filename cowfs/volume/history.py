"""Epochs of the head: checkpoint and restore, and what the kernel must forget after a restore.

Threading: owned by the volume's thread.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cowfs.errors import CowfsError, DamagedRecordError
from cowfs.format import keys, records
from cowfs.store.group import TransactionGroup
from cowfs.store.lineage import Lineage
from cowfs.store.snapshot import Snapshot
from cowfs.store.steps import reached
from cowfs.store.writer import now
from cowfs.tree.announcing import Announcement, announcement
from cowfs.tree.changes import Touched, differing
from cowfs.types import MAX_EPOCH
from cowfs.volume.git_state import git_state
from cowfs.volume.thinned import refuse_thinned

if TYPE_CHECKING:
    from cowfs.volume.inode import Inode
    from cowfs.volume.view import View
    from cowfs.volume.volume import Volume


@dataclass(frozen=True, slots=True)
class Author:
    """Who asks: uid and name of the user, pid and command line of the process."""

    uid: int = 0
    user: str = ""
    pid: int = 0
    command: str = ""


@dataclass(frozen=True, slots=True)
class Audience:
    """Who wants to hear of changes: inodes that are watched; at most so many names are told."""

    watched: frozenset[int] = frozenset()
    limit: int = 2000

    def announcement(
        self, before: Snapshot, after: Snapshot, touched: Touched
    ) -> Announcement | None:
        """What to tell, None when nobody watches."""
        if not self.watched:
            return None
        try:
            return announcement(before, after, touched, set(self.watched), self.limit)
        except DamagedRecordError:
            return None  # no reason for a restore to fail that is done


NOBODY = Audience()


class Companion:
    """What goes with a restore, so that either both happen or neither; here: nothing.

    check: called before anything is changed, when all that was done before is committed; what it
    raises ends the restore. add: puts records into the restore's transaction group. withdrawn: that
    group could not be committed, and never will be. All in the owner's thread.
    """

    def check(self) -> None:
        return

    def add(self, group: TransactionGroup) -> None:
        return

    def withdrawn(self) -> None:
        return


ALONE = Companion()


@dataclass(slots=True)
class Invalidation:
    """What the kernel may have cached and must look at again.

    names: (directory, name) whose meaning changed. inodes: attributes and pages changed.
    files: inodes of regular files, of which the kernel itself keeps size and times while something
    holds the inode (writeback cache). announcement: what watchers should hear.
    """

    names: list[tuple[int, bytes]] = field(default_factory=list)
    inodes: list[int] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    announcement: Announcement | None = None


@dataclass(frozen=True, slots=True)
class Sealed:
    """A checkpoint and the group that must be committed before it counts."""

    checkpoint: records.CheckpointRecord
    group: TransactionGroup


@dataclass(frozen=True, slots=True)
class Swapped:
    """A restore: the rescue checkpoint of the state before, and what changed. left: the patterns by
    which something that differs was left as it is."""

    rescue: records.CheckpointRecord
    touched: Touched
    invalidation: Invalidation
    left: frozenset[bytes] = frozenset()


def new_checkpoint_id(volume: Volume) -> str:
    """12 hexadecimal digits, of which the first 8 are unique, so that 8 always suffice."""
    while True:
        candidate = secrets.token_hex(6)
        if next(volume.reader.scan("checkpoint", candidate[:8].encode()), None) is None:
            return candidate


def seal(
    volume: Volume,
    author: Author,
    *,
    kind: str = "manual",
    message: str = "",
    label: str = "",
    session: str = "",
    context: bytes = b"",
) -> Sealed:
    """End the open epoch with a checkpoint and open its child: constant time.

    Everything that returned before is in it. It is durable when its group is committed. context:
    the value of its record in the table `context`, b"" for none.
    """
    volume.external.adoption.settle()
    checkpoint, group, lineage = _advance(
        volume,
        author,
        volume.main.lineage,
        volume.branch,
        "checkpoint",
        kind,
        message,
        label,
        "",
        session,
        context,
    )
    _enter(volume.main, lineage)
    return Sealed(checkpoint, group)


def rescue(
    volume: Volume,
    author: Author,
    target: records.CheckpointRecord,
    branch: records.BranchRecord,
    operation: str,
) -> records.CheckpointRecord:
    """Seal the open epoch as a rescue checkpoint and go on in its child; `branch` as in `swap`."""
    volume.external.adoption.settle()
    view = volume.main
    checkpoint, _, lineage = _advance(
        volume, author, view.lineage, branch, operation, "rescue", "", "", target.id
    )
    _enter(view, lineage)
    return checkpoint


def swap(
    volume: Volume,
    author: Author,
    target: records.CheckpointRecord,
    branch: records.BranchRecord,
    *,
    operation: str,
    audience: Audience = NOBODY,
    companion: Companion = ALONE,
) -> Swapped:
    """Make the head show a checkpoint: a new epoch whose parent is the checkpoint's.

    `branch` has the undo and redo stacks as they shall be, with "" where the id of the rescue
    checkpoint belongs. Blocks the owner until the change is on stable storage, so that what the
    volume shows and what it would show after a crash are never different histories.
    Raises StoreFullError, ThinnedError, and what the companion raises; nothing was changed then.
    """
    volume.external.adoption.settle()
    volume.sync()
    companion.check()
    refuse_thinned(volume, target)
    reached("restore.begin")
    view = volume.main
    before = view.lineage
    parent = volume.reader.lineage(target.epoch)
    volume.audit.restored(author, operation, target.id, [b""], volume.next_epoch)
    companion.add(volume.extra)
    rescue, group, lineage = _advance(
        volume, author, parent, branch, operation, "rescue", "", "", target.id
    )
    reached("restore.submitted")
    try:
        volume.writer.wait(group)
    except CowfsError:
        if volume.withdraw(group):
            companion.withdrawn()
            raise
    reached("restore.durable")
    volume.reap()
    _enter(view, lineage)
    volume.audit.forget_places()
    reached("restore.entered")
    old = Snapshot(volume.reader, before)
    touched = differing(old, view.snapshot)
    view.recall(touched.inodes | {parent for parent, _ in touched.names}, old)
    invalidation = _reload(view, touched, before)
    reached("restore.reloaded")
    invalidation.announcement = audience.announcement(old, view.snapshot, touched)
    return Swapped(rescue, touched, invalidation)


def _advance(
    volume: Volume,
    author: Author,
    parent: Lineage,
    branch: records.BranchRecord,
    operation: str,
    kind: str,
    message: str,
    label: str,
    target: str,
    session: str = "",
    context: bytes = b"",
) -> tuple[records.CheckpointRecord, TransactionGroup, Lineage]:
    """One group that seals the open epoch with a checkpoint and opens a child of `parent`."""
    view, extra = volume.main, volume.extra
    epoch, moment, counts = view.head, now(), view.counts()
    number, opened = volume.take_operation(moment), volume.open_epoch
    following = volume.next_epoch
    checkpoint = records.CheckpointRecord(
        new_checkpoint_id(volume),
        epoch,
        view.branch,
        kind,
        moment,
        message or (f"before {operation} to {target[:8]}" if target else ""),
        label,
        author.uid,
        author.user,
        author.pid,
        author.command,
        target,
        counts,
        git_state(volume),
        session=session,
    )
    lineage = parent.child(following)
    fresh = records.EpochRecord(parent.head, lineage.ranges[-1][0], view.branch, moment)
    volume.next_epoch = following + 1
    extra.put(
        "epoch",
        keys.pack_id(epoch),
        records.encode(
            records.EpochRecord(
                opened.parent,
                opened.run_start,
                opened.branch,
                opened.opened,
                moment,
                counts,
                checkpoint.id,
            )
        ),
    )
    extra.put("epoch", keys.pack_id(following), records.encode(fresh))
    extra.put("checkpoint", checkpoint.id.encode(), records.encode(checkpoint))
    if label:
        extra.put("label", label.encode(), checkpoint.id.encode())
    if context:
        extra.put("context", checkpoint.id.encode(), context)
    extra.put(
        "operation",
        keys.pack_id(number),
        records.encode(
            records.OperationRecord(
                number,
                moment,
                operation,
                epoch,
                following,
                checkpoint.id,
                author.uid,
                author.user,
                author.pid,
                author.command,
                target,
            )
        ),
    )
    volume.branch = records.BranchRecord(
        branch.name,
        following,
        tuple(item or checkpoint.id for item in branch.undo),
        tuple(item or checkpoint.id for item in branch.redo),
        branch.applied,
    )
    volume.put_branch()
    group = volume.quiesce()
    assert group is not None
    volume.open_epoch = fresh
    return checkpoint, group, lineage


def _enter(view: View, lineage: Lineage) -> None:
    """The view continues in a new epoch."""
    view.lineage = lineage
    view.damaged = {}
    view.created, view.touched, view.deleted, view.began = set(), set(), set(), {}
    view.entered = view.frozen
    view.refresh()


def _reload(view: View, touched: Touched, before: Lineage) -> Invalidation:
    """Bring the objects in memory to the restored state; open handles keep their objects.

    A handle on an inode that the restored state has shows the restored content. One on an inode
    that it has not goes on as on an unlinked file: its old blocks are seen through the old lineage
    and what is written to it never enters the tree (contract 3).
    """
    stray = Lineage((*before.ranges, (view.head, MAX_EPOCH)))
    view.unnamed.clear()
    for inode in view.orphans.values():
        if inode.lineage is None:
            inode.lineage = stray
    known = view.inodes
    for parent, name in touched.names:
        try:
            found = view.snapshot.lookup(parent, name)
        except DamagedRecordError:
            continue  # who looks at its directory hears of it
        if found is not None and found[0] in known:
            known[found[0]].parent = parent
    inodes = touched.inodes | {parent for parent, _ in touched.names}
    for ino in inodes:
        if ino in known:
            try:
                record = view.snapshot.inode(ino)
            except DamagedRecordError as error:
                view.volume.damaged(ino, str(error))
                _break(view, known[ino])
                continue
            if record is None:
                _strand(view, known[ino], stray)
            else:
                _revive(view, known[ino], record)
    invalidation = invalidation_of(view, touched)
    for ino in inodes:
        if ino in known:
            view.release(known[ino])
    return invalidation


def invalidation_of(view: View, touched: Touched) -> Invalidation:
    """What of `touched` the kernel may have in its caches. The view shows the new state already."""
    invalidation = Invalidation()
    for ino in touched.inodes | {parent for parent, _ in touched.names}:
        inode = view.inodes.get(ino)
        if inode is None or not inode.nlookup:
            continue
        invalidation.inodes.append(ino)
        if inode.is_file and not inode.orphan_epoch and ino in touched.inodes:
            # Without a name the kernel drops the inode, and all that it cached of it, as soon as
            # nobody holds it.
            links = view.snapshot.links(ino)
            invalidation.files.append(ino)
            invalidation.names += [key for key in links if view.in_kernel(key[0])]
    invalidation.names += [key for key in touched.names if view.in_kernel(key[0])]
    return invalidation


def _strand(view: View, inode: Inode, stray: Lineage) -> None:
    """The restored state does not have this inode: it lives on for its handles only."""
    inode.attr = None
    if inode.orphan_epoch:
        return
    inode.orphan_epoch = view.head
    view.orphans[inode.ino] = inode
    inode.lineage = stray
    inode.nlink = 0
    if inode.is_dir:
        inode.entries = {}


def _break(view: View, inode: Inode) -> None:
    """The restored state has this inode, and its record is damaged: so is what handles show."""
    if inode.orphan_epoch:
        view.revive(inode)
    view.discard_blocks(inode)
    inode.attr, inode.entries, inode.xattrs = None, None, None
    inode.damaged = True


def _revive(view: View, inode: Inode, record: records.InodeRecord) -> None:
    """The restored state has this inode: the object shows it from now on."""
    if inode.orphan_epoch:
        view.revive(inode)
    inode.load(record)
