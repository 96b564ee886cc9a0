"""Looking into checkpoints without the mount: read-only, from the store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cowfs.service.content import Tree
from cowfs.service.workspace import ReadOnly, reading
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


def names_in(mounted: Mounted, checkpoint: str) -> set[str]:
    """Every path in a checkpoint, without the root."""
    with looking(mounted) as workspace:
        tree = Tree(workspace, workspace.point(checkpoint))
        return {os.fsdecode(node.path) for node in tree.walk() if node.path}
