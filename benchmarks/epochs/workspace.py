"""A mounted tree of a given size and history, and the files that are edited in it."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cowfs_command import Cowfs, Document, Mount
from benchmarks.system import BenchError, poll, settle

FILES_PER_DIRECTORY = 50
HOT = 100
"""How many files, spread over the tree, are edited by history and measurements."""
IMPORT_SECONDS = 3600.0
"""When work in the background counts as stuck."""


@dataclass(frozen=True, order=True)
class Scale:
    """The two dimensions."""

    files: int
    checkpoints: int

    def __str__(self) -> str:
        return f"{self.files:,} files, {self.checkpoints:,} checkpoints"


def make_tree(base: Path, files: int) -> list[Path]:
    """Make *files* small files below *base*, 50 in a directory; return their paths."""
    paths = []
    for number in range(files):
        directory = number // FILES_PER_DIRECTORY
        parent = base / f"part{directory // FILES_PER_DIRECTORY}" / f"dir{directory}"
        if number % FILES_PER_DIRECTORY == 0:
            parent.mkdir(parents=True)
        path = parent / f"file{number}.txt"
        path.write_text(f"This is file {number}.\n" * 8)
        paths.append(path)
    return paths


@dataclass
class Workspace:
    """A mounted tree of one scale, and the files that are edited in it."""

    scale: Scale
    cowfs: Cowfs
    mount: Mount
    hot: list[Path]
    """Spread over the tree. History and measurements edit the same files, as people do."""
    import_seconds: float = 0.0
    edits: int = 0

    def call(self, command: str, *arguments: str) -> Document:
        """One command in this workspace, not timed."""
        return self.cowfs.call(self.mount.base, command, *arguments)

    def edit(self) -> None:
        """Give all hot files a content that they never had."""
        self.edits += 1
        for path in self.hot:
            path.write_text(self._content(path, self.edits))

    def expect(self, edits: int) -> None:
        """Check that every hot file holds what the edit of that number wrote."""
        for path in self.hot:
            if path.read_text() != self._content(path, edits):
                raise BenchError(f"{path} was not restored")

    def _content(self, path: Path, edits: int) -> str:
        return f"{path.name}, edit {edits}\n" * 8

    def checkpoint(self) -> str:
        """Make one, not timed; returns its id."""
        return str(self.call("checkpoint")["checkpoint"]["id"])

    def settle(self) -> None:
        """Let what came before end, so that it is not charged to what is timed next."""
        if not settle(self.mount.base, [self.mount.pid], seconds=IMPORT_SECONDS):
            raise BenchError(f"the daemon of {self.scale} does not become idle")

    def await_import(self) -> None:
        """Wait until the whole tree is in the store and the daemon is idle."""
        start = time.monotonic()

        def complete() -> bool:
            return bool(self.call("status")["import"]["complete"])

        if not poll(complete, seconds=IMPORT_SECONDS, interval=0.2):
            raise BenchError(f"the import of {self.scale} did not end")
        self.import_seconds = time.monotonic() - start
        self.settle()

    def make_history(self) -> None:
        """Make the checkpoints that are there before anything is measured, one edit in each."""

        def edit(number: int) -> None:
            path = self.hot[number % len(self.hot)]
            path.write_text(f"{path.name}, history {number}\n" * 8)

        self.mount.checkpoints(edit, self.scale.checkpoints)


def open_workspace(
    stack: ExitStack, directory: Path, cowfs: Cowfs, scale: Scale, hot: int = HOT
) -> Workspace:
    """Make and mount one workspace, and wait until it is imported; its history is still empty.

    *hot*: how many of its files are to be edited.
    """
    print(f"preparing {scale}", file=sys.stderr, flush=True)
    base = directory / "base"
    base.mkdir(parents=True)
    paths = make_tree(base, scale.files)
    mount = stack.enter_context(cowfs.mounted(base, directory / "store"))
    step = max(1, len(paths) // hot)
    space = Workspace(scale, cowfs, mount, paths[::step][:hot])
    space.await_import()
    return space
