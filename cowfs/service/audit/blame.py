"""Who changed a file last, and each of its lines.

The versions of a file are those of its inode in the line of the present state, through renames;
where another file was renamed over it, as editors save, they go on with the one that was there
before.

Threading: as the workspace.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from dataclasses import dataclass

from cowfs.errors import CowfsError, DamagedRecordError, NotTextError
from cowfs.format import audit, keys, records
from cowfs.format.audit import AuditRecord
from cowfs.service.audit.log import Log, Process
from cowfs.service.content import Node, Tree, same_content
from cowfs.service.selectors import Point, get_checkpoint
from cowfs.service.textdiff import TEXT_LIMIT
from cowfs.service.workspace import ReadOnly
from cowfs.store.lineage import Lineage
from cowfs.store.snapshot import Reader
from cowfs.tree import patch as patching

_RESTORES = (audit.RESTORED, audit.UNDONE, audit.REDONE)
_CONTENT = (audit.MADE, audit.WROTE)


@dataclass(frozen=True, slots=True)
class Version:
    """One content of a file.

    epoch: that made it, 0 for what was there before the first mount. checkpoint: that sealed the
    epoch, None for the open one. path: then. time: of the last change in it, ns since 1970.
    process: who made that change, None when the log does not tell.
    """

    epoch: int
    checkpoint: records.CheckpointRecord | None
    path: bytes
    node: Node
    time: int
    process: Process | None


def versions(workspace: ReadOnly, path: bytes) -> Iterator[Version]:
    """The contents of a file, the newest first. Raises UnknownPathError."""
    reader = workspace.reader
    lineage, log = reader.lineage(workspace.branch.head), Log(reader)
    node = Tree(workspace, workspace.point("@")).lookup(path)
    while True:
        below = yield from _of_inode(workspace, log, lineage, node)
        if below is None:
            return
        node, lineage = below


def _of_inode(
    workspace: ReadOnly, log: Log, lineage: Lineage, node: Node
) -> Generator[Version, None, tuple[Node, Lineage] | None]:
    """Yields the versions of one inode; returns the file that was in its place before, and where
    that is seen."""
    reader = workspace.reader
    epochs = _epochs(reader, node.ino, lineage)
    for place, epoch in enumerate(epochs):
        seen = _seen(workspace, lineage.at(epoch), node)
        before, further = None, lineage
        if place + 1 < len(epochs):
            before = _seen(workspace, lineage.at(epochs[place + 1]), node)
        elif epoch and (parent := _parent(reader, lineage, epoch)) is not None:
            before, further = _replaced(workspace, log, parent, epoch, seen), parent
        if before is None or not _same(before, seen):
            yield _version(reader, log, epoch, seen)
        if place + 1 == len(epochs) and before is not None:
            return before, further
    return None


def _replaced(
    workspace: ReadOnly, log: Log, parent: Lineage, epoch: int, made: Node
) -> Node | None:
    """The file whose place one took that an epoch made: that of its path before or, when that was
    renamed to it in the same epoch, the one that the log tells of."""
    tree = Tree(workspace, _point(parent))
    found = tree.find(made.path)
    if found is not None:
        return found
    for record in reversed(list(log.of_epoch(epoch))):
        for operation in reversed(record.operations):
            if operation.code != audit.RENAMED or operation.ino == made.ino:
                continue
            if record.second_path(operation) == made.path:
                names = tree.names(operation.ino)
                if names:
                    return tree.node(operation.ino, names[0][2])
    return None


def _epochs(reader: Reader, ino: int, lineage: Lineage) -> list[int]:
    """The epochs that wrote an inode, the newest first."""
    if not ino:
        return [0]  # nobody looked into its directory yet
    return [
        keys.epoch_of(key)
        for key, value in reader.scan("inode", keys.pack_id(ino))
        if value and lineage.visible(keys.epoch_of(key))
    ]


def _point(lineage: Lineage) -> Point:
    return Point("", lineage, None)


def _seen(workspace: ReadOnly, lineage: Lineage, node: Node) -> Node:
    """A file as it was."""
    if not node.ino:
        return node
    tree = Tree(workspace, _point(lineage))
    names = tree.names(node.ino)
    return tree.node(node.ino, names[0][2] if names else node.path)


def _parent(reader: Reader, lineage: Lineage, epoch: int) -> Lineage | None:
    try:
        return lineage.at(reader.epoch(epoch).parent)
    except (DamagedRecordError, ValueError):
        return None


def _same(one: Node, other: Node) -> bool:
    try:
        return same_content(one, other)
    except CowfsError:
        return False


def _version(reader: Reader, log: Log, epoch: int, node: Node) -> Version:
    sealed = reader.epoch(epoch)
    checkpoint = get_checkpoint(reader, sealed.checkpoint) if sealed.checkpoint else None
    time, process = (sealed.sealed or sealed.opened), None
    for record in log.of_epoch(epoch) if epoch else ():
        moment = _last_in(record, node)
        if moment is not None:
            time, process = moment, log.process(record.process)
    return Version(epoch, checkpoint, node.path, node, time, process)


def _last_in(record: AuditRecord, node: Node) -> int | None:
    """When a record tells that the content of a file changed."""
    found = None
    for operation in record.operations:
        if operation.code in _CONTENT:
            hit = operation.ino == node.ino
        elif operation.code in _RESTORES:
            top = record.path(operation)
            hit = not top or node.path == top or node.path.startswith(top + b"/")
        else:
            continue
        if hit:
            found = record.time + operation.after
    return found


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a file, and the version that brought it."""

    version: Version
    text: bytes


def lines(workspace: ReadOnly, path: bytes) -> list[Line]:
    """Each line of a text file with its version. Raises UnknownPathError, NotTextError."""
    found = list(versions(workspace, path))
    if not found or not found[0].node.is_file:
        raise NotTextError(path=os.fsdecode(path), detail="it is no regular file")
    told: list[Line] = []
    for version in reversed(found):
        new = _lines_of(version)
        if new is None:
            if version is found[0]:
                detail = "it is not text, or larger than 8 MiB"
                raise NotTextError(path=os.fsdecode(path), detail=detail)
            told = []  # what it had then cannot be compared
            continue
        told = _carried(told, version, new)
    return told


def _carried(old: list[Line], version: Version, new: list[bytes]) -> list[Line]:
    out: list[Line] = []
    at = 0
    for a, b, c, d in patching.changed_blocks([line.text for line in old], new):
        out += old[at:a]
        out += [Line(version, text) for text in new[c:d]]
        at = b
    return out + old[at:]


def _lines_of(version: Version) -> list[bytes] | None:
    """The lines, None when it is no text, too large, or cannot be read."""
    node = version.node
    if not node.is_file or node.size > TEXT_LIMIT:
        return None
    try:
        data = node.read()
    except CowfsError:
        return None
    return None if patching.is_binary(data) else patching.split_lines(data)
