"""Whether the workspace changed what came from the base: decides between adopting and a conflict.

Threading: owned by the volume's thread.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from cowfs.format import keys, records
from cowfs.store.snapshot import Snapshot
from cowfs.tree.changes import same_content
from cowfs.volume.inode import Inode

if TYPE_CHECKING:
    from cowfs.volume.view import View


def unchanged(view: View, child: Inode, record: records.BaseRecord | None = None) -> bool:
    """Whether the workspace shows an inode as the base had it: as it was imported or adopted
    (every change sets ctime), or as it was applied."""
    if as_applied(view, child):
        return True
    others = (
        view.volume.importer.base_entry(*link)
        for link in view.volume.importer.base_links(child.ino)
    )
    return any(
        known is not None
        and (known.ino, known.ctime) == (child.ino, child.ctime)
        and not written(view, child, known)
        for known in itertools.chain((record,), others)
    )


def as_applied(view: View, child: Inode) -> bool:
    """Whether an inode is as the last apply wrote it, or as epoch 0 had it before there was one."""
    if child.dirty or child.pending:
        return False
    reader = view.volume.reader
    applied = Snapshot(reader, reader.lineage(view.volume.branch.applied))
    key = keys.pack_id(child.ino)
    return applied.newest("inode", key) == view.snapshot.newest("inode", key)


def _bytes_as_applied(view: View, child: Inode) -> bool:
    if child.blocks or child.inflight:
        return False
    reader = view.volume.reader
    applied = Snapshot(reader, reader.lineage(view.volume.branch.applied))
    record = applied.inode(child.ino)
    return (
        record is not None
        and (record.content, record.size, record.base_size)
        == (child.content, child.size, child.base_size)
        and same_content(applied, view.snapshot, child.ino)
    )


def written(view: View, child: Inode, record: records.BaseRecord) -> bool:
    """Whether the workspace changed bytes or size of a file that came from the base."""
    if not child.is_file or _bytes_as_applied(view, child):
        return False
    if child.content != record.content or child.blocks or child.inflight:
        return True
    if child.size != record.size or child.base_size != record.size:
        return True
    content, newest = child.content, view.snapshot.newest
    numbers = [number for number, _ in view.snapshot.extents(content)]
    versions = (newest("extent", keys.extent_prefix(content, number)) for number in numbers)
    return any(version and version[0] for version in versions)
