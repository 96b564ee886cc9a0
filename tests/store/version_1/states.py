"""Everything that the states of a store show, as a digest of each; by a reader of any version.

It uses only what the reading side of version 1 had already, so that the program that wrote
`store.gz` could say what its states were.
"""

from __future__ import annotations

import hashlib

from cowfs.errors import DamagedRecordError
from cowfs.format import records
from cowfs.store.lineage import Lineage
from cowfs.store.snapshot import Reader, Snapshot


def states(reader: Reader) -> dict[str, str]:
    """By id of the checkpoint, and "@" for the present state."""
    lineages = {"@": reader.lineage(reader.branch("main").head)}
    for key, value in reader.scan("checkpoint"):
        epoch = records.decode(value, records.CheckpointRecord).epoch
        lineages[key.decode()] = reader.lineage(epoch)
    return {name: _digest(reader, lineage) for name, lineage in sorted(lineages.items())}


def _digest(reader: Reader, lineage: Lineage) -> str:
    snapshot = Snapshot(reader, lineage)
    found: list[object] = []
    waiting = [(b"", 1)]
    while waiting:
        path, ino = waiting.pop()
        record = snapshot.inode(ino)
        assert record is not None
        extents = list(snapshot.extents(record.content))
        blocks = [(number, _block(snapshot, digest)) for number, digest in extents]
        found.append(
            (
                path,
                ino,
                tuple(record),
                sorted(snapshot.xattrs(ino).items()),
                sorted(snapshot.links(ino)),
                blocks,
            )
        )
        if record.mode >> 12 == 4:
            waiting += [(path + b"/" + name, child) for name, child, _ in snapshot.entries(ino)]
    return hashlib.sha256(repr(found).encode()).hexdigest()


def _block(snapshot: Snapshot, digest: bytes) -> str:
    if not digest:
        return "hole"
    try:
        return hashlib.sha256(snapshot.block(digest)).hexdigest()
    except DamagedRecordError:
        return "lost"
