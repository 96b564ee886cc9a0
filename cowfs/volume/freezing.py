"""Moving what a view has not committed yet into a transaction group.

Records are packed here. Blocks of files go over as they are: from then on they are the writer's,
and a write to one of them copies it (data.py).

Threading: owned by the volume's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cowfs.format import keys, records
from cowfs.store.group import TransactionGroup
from cowfs.volume.inode import NO_BLOCKS, Buffer, Inode

if TYPE_CHECKING:
    from cowfs.volume.view import View


def freeze(
    view: View, group: TransactionGroup, pinned: list[Inode]
) -> dict[Inode, dict[int, Buffer | None]]:
    """Move everything uncommitted into `group`; returns the frozen blocks by inode.

    The inodes that must stay in memory until the commit are added to `pinned`.
    """
    epoch = view.head
    frozen: dict[Inode, dict[int, Buffer | None]] = {}
    inode_rows, change_rows = [], []
    for inode in view.changed:
        inode.dirty = False
        if inode.orphan_epoch:
            if inode.blocks and inode.ino in view.inodes:
                _record_orphan(view, group, inode)
                frozen[inode] = _freeze_blocks(inode, group, epoch)
                inode.pending += 1
                pinned.append(inode)
            continue
        ino = inode.ino
        inode_rows.append((keys.inode_key(ino, epoch), inode.pack()))
        change_rows.append((keys.change_inode_key(epoch, ino), b""))
        if ino not in view.created and not inode.is_dir:
            view.touched.add(ino)
        if inode.blocks:
            frozen[inode] = _freeze_blocks(inode, group, epoch)
        inode.pending += 1
        pinned.append(inode)
    view.frozen += len(view.changed) + len(view.names)
    view.changed = []
    view.dirty_bytes = 0
    if inode_rows:
        group.puts.setdefault("inode", []).extend(inode_rows)
    _freeze_names(view, group, change_rows, epoch)
    for (ino, name), value in view.xattrs.items():
        if value is None:
            group.removals.append(("xattr", keys.xattr_prefix(ino, name), None))
        else:
            group.put("xattr", keys.xattr_key(ino, name, epoch), b"\1" + value)
    view.xattrs = {}
    for ino, inode in view.removed.items():
        group.removals.append(("inode", keys.pack_id(ino), keys.change_inode_key(epoch, ino)))
        if inode.is_file and ino in view.inodes:
            _record_orphan(view, group, inode)
    view.removed = {}
    if recorded := {key for key, _ in group.puts.get("orphan", ())}:
        # Those had got a name back since the last group, and lost it again.
        deletes = group.deletes
        group.deletes = [d for d in deletes if d[0] != "orphan" or d[1] not in recorded]
    group.dropped.extend(view.dropped)
    view.dropped = []
    if change_rows:
        group.puts.setdefault("change", []).extend(change_rows)
    return frozen


def _record_orphan(view: View, group: TransactionGroup, inode: Inode) -> None:
    """After a crash the next start drops what this inode wrote without a name."""
    view.volume.orphans.add(inode.ino)
    place = keys.extent_prefix(inode.content, inode.orphan_epoch)
    group.put("orphan", keys.pack_id(inode.ino), place)


def _freeze_names(
    view: View, group: TransactionGroup, change_rows: list[tuple[bytes, bytes]], epoch: int
) -> None:
    rows = []
    for (parent, name), packed in view.names.items():
        change = keys.change_dirent_key(epoch, parent, name)
        if packed:
            value = records.pack_dirent(packed >> 4, packed & 15)
            rows.append((keys.dirent_key(parent, name, epoch), value))
            change_rows.append((change, b""))
        else:
            group.removals.append(("dirent", keys.dirent_prefix(parent, name), change))
    if rows:
        group.puts.setdefault("dirent", []).extend(rows)
    rows = []
    for (ino, parent, name), kind in view.links.items():
        if kind:
            rows.append((keys.link_key(ino, parent, name, epoch), bytes((kind,))))
        else:
            group.removals.append(("link", keys.link_prefix(ino, parent, name), None))
    if rows:
        group.puts.setdefault("link", []).extend(rows)
    view.names, view.links = {}, {}


def _freeze_blocks(inode: Inode, group: TransactionGroup, epoch: int) -> dict[int, Buffer | None]:
    """Hand the changed blocks to the group; they are not modified in place any more."""
    blocks, content, reference = inode.blocks, inode.content, inode.reference
    for number, data in blocks.items():
        group.blocks.append((content, number, data, reference, epoch))
        if data is not None:
            group.size += len(data)
    inode.inflight = {**inode.inflight, **blocks} if inode.inflight else blocks
    inode.blocks = NO_BLOCKS
    inode.reference = 0
    return blocks
