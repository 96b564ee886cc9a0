"""Reading a state out: one file, or the whole tree into a directory or a tar archive.

Threading: as the workspace.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from cowfs.errors import NotARegularFileError
from cowfs.service.content import Node, Tree
from cowfs.service.exporting import archive, directory
from cowfs.service.exporting.report import Exported, Problem, Progress, silent
from cowfs.service.selectors import Point
from cowfs.service.workspace import ReadOnly

__all__ = ["Exported", "Problem", "Progress", "export_tree", "read_file"]


def read_file(workspace: ReadOnly, point: Point, path: bytes) -> tuple[Node, Iterator[bytes]]:
    """A file of a state and its content in pieces; of a symbolic link its target.

    Raises UnknownPathError, NotARegularFileError; the iterator ContentLostError,
    DamagedRecordError, PermissionDeniedError.
    """
    node = Tree(workspace, point).lookup(path)
    if node.is_symlink:
        return node, iter((node.target,))
    if not node.is_file:
        raise NotARegularFileError(
            path=os.fsdecode(node.path) or ".", where=point.name, kind=node.kind
        )
    return node, node.stream()


def export_tree(
    workspace: ReadOnly,
    point: Point,
    dest: Path | BinaryIO,
    *,
    tar: bool = False,
    durable: bool = True,
    progress: Progress = silent,
) -> Exported:
    """Write a whole state out; what cannot be written as it is, is in the answer's `problems`.

    dest: a directory that does not exist yet or is empty; with `tar` the archive's path, which
    must not exist, or a binary stream to write it to (`tar` is understood then). durable: a
    directory survives a crash of the machine when this returns.
    Raises DestinationExistsError, NotADirectoryPathError (the directory it shall be in does not
    exist), PermissionDeniedError, ExportFailedError (nothing is left behind then), and for a stream
    OSError.
    """
    tree = Tree(workspace, point)
    if not isinstance(dest, Path):
        return archive.write_archive(tree, dest, progress)
    if tar:
        return archive.write_archive_file(tree, dest, progress)
    return directory.write_directory(tree, dest, progress, durable=durable)
