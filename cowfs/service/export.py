"""Reading a state out: one file, or the whole tree into a directory or a tar archive.

Threading: as the workspace.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from cowfs.errors import NotARegularFileError
from cowfs.service.content import Node, Tree
from cowfs.service.selectors import Point
from cowfs.service.workspace import ReadOnly

Progress = Callable[[int, int], None]
"""Told of (entries, bytes) done so far, now and then."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What could not be written as it is. what: owner, mode, xattr, special, content, ..."""

    path: bytes
    what: str
    detail: str

    def to_json(self) -> dict[str, Any]:
        return {
            "path": os.fsdecode(self.path) or ".",
            "what": self.what,
            "detail": self.detail,
        }


@dataclass(slots=True)
class Exported:
    """What an export wrote. bytes: content of files. links: further names of files written."""

    directories: int = 0
    files: int = 0
    symlinks: int = 0
    specials: int = 0
    links: int = 0
    bytes: int = 0
    problems: list[Problem] = field(default_factory=list)

    @property
    def entries(self) -> int:
        """Names written, the top directory included."""
        return self.directories + self.files + self.symlinks + self.specials + self.links

    def to_json(self) -> dict[str, Any]:
        return {
            "directories": self.directories,
            "files": self.files,
            "symlinks": self.symlinks,
            "specials": self.specials,
            "links": self.links,
            "bytes": self.bytes,
            "problems": [problem.to_json() for problem in self.problems],
        }


def read_file(workspace: ReadOnly, point: Point, path: bytes) -> tuple[Node, Iterator[bytes]]:
    """A file of a state and its content in pieces; of a symbolic link its target.

    Raises UnknownPathError, NotARegularFileError; the iterator ContentLostError,
    DamagedRecordError.
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
    progress: Progress = lambda entries, size: None,
) -> Exported:
    """Write a whole state out.

    dest: a directory that does not exist yet or is empty; with `tar` the archive's path, which
    must not exist, or a binary stream to write it to.
    Raises DestinationExistsError, PermissionDeniedError, ...
    """
    raise NotImplementedError
