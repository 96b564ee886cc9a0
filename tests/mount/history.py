"""Looking into checkpoints without the mount: read-only, from the store."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cowfs.service.content import Tree
from cowfs.service.workspace import ReadOnly, reading
from cowfs.store.snapshot import Snapshot
from cowfs.types import ROOT_INO
from tests.support.mounting import Mounted


@contextmanager
def looking(mounted: Mounted) -> Iterator[ReadOnly]:
    """The store of a live mount as of now, opened for reading as the commands do."""
    with mounted.client() as client:
        client.call("flush")
        base_fd = client.take_fd()
    try:
        with reading(Path(mounted.store), base_fd) as workspace:
            yield workspace
    finally:
        if base_fd is not None:
            os.close(base_fd)


def file_in(mounted: Mounted, checkpoint: str, path: str) -> bytes | None:
    """The content of a file in a checkpoint, None when the checkpoint does not have it."""
    with looking(mounted) as workspace:
        node = Tree(workspace, workspace.point(checkpoint)).find(os.fsencode(path))
        return None if node is None else node.read()


def stored_ctimes(mounted: Mounted) -> dict[str, int]:
    """The ctime of every path that is stored now, without the root."""
    found = {}
    with looking(mounted) as workspace:
        snapshot = Snapshot(workspace.reader, workspace.reader.lineage(workspace.branch.head))
        waiting = [("", int(ROOT_INO))]
        while waiting:
            above, directory = waiting.pop()
            for name, ino, _ in snapshot.entries(directory, lambda name, fault: None):
                path = os.path.join(above, os.fsdecode(name))
                record = snapshot.inode(ino)
                assert record is not None
                found[path] = record.ctime
                if stat.S_ISDIR(record.mode):
                    waiting.append((path, ino))
    return found


def names_in(mounted: Mounted, checkpoint: str) -> set[str]:
    """Every path in a checkpoint, without the root."""
    with looking(mounted) as workspace:
        tree = Tree(workspace, workspace.point(checkpoint))
        return {os.fsdecode(node.path) for node in tree.walk() if node.path}
