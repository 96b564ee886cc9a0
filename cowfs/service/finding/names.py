"""Where a name is or was: every file that was ever called so.

The names of all epochs are the keys of one table, sorted by directory. A name without wildcards is
sought in each directory that has entries; so is the beginning of a pattern. A pattern that begins
with a wildcard is compared with all names. What is found is a place, a name in a directory. Whether
a state has something there is asked of its snapshot; the answer can only change at an epoch that
wrote a version of that name, or of one of a directory above it.

Threading: as the workspace.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase, translate
from typing import Any

from cowfs.errors import DamagedRecordError, UsageError
from cowfs.format import keys, records
from cowfs.service.content import Node, Tree, join
from cowfs.service.finding.removals import Removal, Removals
from cowfs.service.finding.steps import Side
from cowfs.service.finding.versions import naming_epochs
from cowfs.service.selectors import Point
from cowfs.service.states import States
from cowfs.service.workspace import ReadOnly

Progress = Callable[[int], None]
"""Told how many names were compared so far."""

_STEP = 1 << 16
_TREES = 64
_MAGIC = re.compile(rb"[*?[]")
_LITERAL = re.compile(rb"[^*?[\]]+")


def silent(_: int) -> None:
    """No progress is wanted."""


class Pattern:
    """A name, or the end of a path, each component with the wildcards * ? []. Raises UsageError."""

    def __init__(self, text: bytes) -> None:
        parts = [part for part in text.split(b"/") if part not in (b"", b".")]
        if not parts or b".." in parts:
            detail = f"{os.fsdecode(text)!r} is no name"
            raise UsageError(detail=detail, command="find")
        name = parts[-1]
        magic = _MAGIC.search(name)
        self.exact = magic is None
        """Whether the last component has no wildcards."""
        self.start = name[: magic.start()] if magic else name
        """What every name begins with that matches."""
        literals = [] if b"[" in name else _LITERAL.findall(name)
        self.literal = max(literals, key=len, default=b"")
        """What every name has that matches: found more quickly than the pattern."""
        self.above = [os.fsdecode(part) for part in parts[:-1]]
        self._matches = re.compile(translate(os.fsdecode(name))).match

    def has_name(self, name: bytes) -> bool:
        """Whether the last component matches."""
        return self._matches(os.fsdecode(name)) is not None

    def has_path(self, path: bytes) -> bool:
        """Whether the directories match that stand above the last component."""
        if not self.above:
            return True
        parts = os.fsdecode(path).split("/")[:-1]
        ends = parts[len(parts) - len(self.above) :]
        return len(parts) >= len(self.above) and all(map(fnmatchcase, ends, self.above))


@dataclass(frozen=True, slots=True)
class Found:
    """One file that is or was called so.

    path: where it is, or was when it was last there. node: as it is or was there. checkpoint: the
    newest one that has it there, None when it is there now. moved_to: where the present state has
    the same file, if it is not there any more. earlier: checkpoints that last had other files at
    the path. removal: who removed it, if the audit log tells.
    """

    path: bytes
    node: Node
    checkpoint: records.CheckpointRecord | None
    moved_to: list[bytes]
    earlier: list[records.CheckpointRecord] = field(default_factory=list)
    removal: Removal | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data; a byte of a name that is not UTF-8 becomes a lone surrogate."""
        last = self.checkpoint
        return {
            "path": os.fsdecode(self.path),
            "there": last is None,
            **self.node.to_json(),
            "checkpoint": None if last is None else last.id,
            "last_seen": None if last is None else last.time,
            "moved_to": [os.fsdecode(path) for path in self.moved_to],
            "earlier": [record.id for record in self.earlier],
            "removed": None if self.removal is None else self.removal.to_json(),
        }


class Finder:
    """Looks for the names of one pattern in all states of a history.

    damaged: how many names could not be looked up so far, and were left out.
    """

    def __init__(self, workspace: ReadOnly, states: States) -> None:
        self._workspace = workspace
        self._reader = workspace.reader
        self._states = states
        self.damaged = 0
        self._removals = Removals(workspace.reader)
        self._trees: dict[int, Tree] = {}
        self._runs: list[tuple[int, int]] | None = None
        self._called: dict[int, bool] = {}

    def find(
        self, pattern: Pattern, *, deleted: bool = False, progress: Progress = silent
    ) -> Iterator[Found]:
        """Each file that was ever called so: first those that are gone, the last to go first, then
        those that are there, by path. Of several that were at one path the newest.

        deleted: only those that the present state does not have at all.
        """
        there: dict[bytes, Found] = {}
        gone: dict[bytes, list[Found]] = {}
        for directory, name in self._places(pattern, progress):
            try:
                node = self._at(self._states.head, pattern, directory, name)
                found = Found(node.path, node, None, []) if node else None
                found = found or self._last(pattern, directory, name)
            except DamagedRecordError:
                self.damaged += 1
                continue
            if found is None:
                continue
            if found.checkpoint is None:
                there[found.path] = found
            else:
                gone.setdefault(found.path, []).append(found)
        for same in gone.values():
            same.sort(key=_last_epoch, reverse=True)
        for path in there.keys() & gone.keys():
            there[path].earlier.extend(_checkpoints(gone.pop(path)))
        for first, *others in sorted(gone.values(), key=lambda same: _last_epoch(same[0]))[::-1]:
            if not (deleted and first.moved_to):
                first.earlier.extend(_checkpoints(others))
                yield first
        for path in () if deleted else sorted(there):
            yield there[path]

    # -- names ------------------------------------------------------------------------------

    def _places(self, pattern: Pattern, progress: Progress) -> Iterator[tuple[int, bytes]]:
        """(directory, name) of every name that matches."""
        found = self._starting(pattern) if pattern.start else self._matching(pattern, progress)
        for key in found:
            yield keys.unpack_id(key), keys.dirent_name(key)

    def _was_called(self, directory: int, pattern: Pattern) -> bool:
        """Whether a directory ever had the name that the pattern has before the last one."""
        if not pattern.above:
            return True
        known = self._called.get(directory)
        if known is None:
            links = self._reader.keys("link", keys.pack_id(directory))
            names = (os.fsdecode(keys.link_parts(key)[1]) for key in links)
            known = any(fnmatchcase(name, pattern.above[-1]) for name in names)
            self._called[directory] = known
        return known

    def _starting(self, pattern: Pattern) -> Iterator[bytes]:
        """The newest version of each name that matches: in each directory those are looked at that
        begin as the pattern does."""
        literal, last = pattern.literal, b""
        with self._reader.txn.cursor(db=self._reader.store.tables["dirent"]) as cursor:
            more = cursor.set_range(b"")
            while more:
                directory = keys.unpack_id(cursor.key())
                prefix = keys.pack_id(directory) + pattern.start + b"\0" * pattern.exact
                if self._was_called(directory, pattern) and cursor.set_range(prefix):
                    for key in cursor.following_keys():
                        if not key.startswith(prefix):
                            break
                        thing = key[:-8]
                        if literal in key and thing != last and pattern.has_name(key[8:-9]):
                            yield key
                        last = thing
                more = cursor.set_range(keys.pack_id(directory + 1))

    def _matching(self, pattern: Pattern, progress: Progress) -> Iterator[bytes]:
        """The same for a pattern that begins with a wildcard: all names are looked at."""
        literal, last = pattern.literal, b""
        with self._reader.txn.cursor(db=self._reader.store.tables["dirent"]) as cursor:
            if not cursor.set_range(b""):
                return
            for at, key in enumerate(cursor.following_keys()):
                if not at % _STEP:
                    progress(at)
                if literal not in key:
                    continue
                thing = key[:-8]
                if thing != last and pattern.has_name(key[8:-9]):
                    directory = keys.unpack_id(key)
                    if self._was_called(directory, pattern):
                        yield key
                last = thing

    # -- states -----------------------------------------------------------------------------

    def _tree(self, state: int) -> Tree:
        tree = self._trees.get(state)
        if tree is None:
            if len(self._trees) >= _TREES:
                self._trees.clear()
            point = Point("", self._states.lineage(state), None)
            tree = self._trees[state] = Tree(self._workspace, point)
        return tree

    def _at(self, state: int, pattern: Pattern, directory: int, name: bytes) -> Node | None:
        """What a state has at a place, if its path matches."""
        tree = self._tree(state)
        found = tree.snapshot.lookup(directory, name)
        above = tree.directory_path(directory) if found is not None else None
        if found is None or above is None:
            return None
        path = join(above, name)
        return tree.node(found[0], path) if pattern.has_path(path) else None

    def _last(self, pattern: Pattern, directory: int, name: bytes) -> Found | None:
        """The newest checkpoint that has something at a place."""
        prefix = keys.dirent_prefix(directory, name)
        epochs = {keys.epoch_of(k) for k in self._reader.keys("dirent", prefix)}
        turns = sorted(epochs | naming_epochs(self._reader, directory))
        for first, last in self._stretches(turns):
            checkpoint = self._newest(first, last)
            if checkpoint is None:
                continue
            node = self._at(checkpoint.epoch, pattern, directory, name)
            if node is not None:
                now = Side(self._tree(self._states.head)).paths(node.ino)
                removal = None if now else self._removals.of(last + 1, node.ino)
                return Found(node.path, node, checkpoint, now, removal=removal)
        return None

    def _stretches(self, turns: list[int]) -> Iterator[tuple[int, int]]:
        """The epochs of all lineages, newest first, in stretches (first, last) between turns: in
        each all states have the same at the place."""
        for start, end in self._all_runs():
            last = end
            while last >= start:
                at = bisect_right(turns, last)
                first = max(start, turns[at - 1]) if at else start
                yield first, last
                last = first - 1

    def _all_runs(self) -> list[tuple[int, int]]:
        """(first, last) epoch of each run, the newest first."""
        if self._runs is None:
            ends: dict[int, int] = {}
            for key, value in self._reader.backwards("epoch"):
                epoch = records.decode(value, records.EpochRecord)
                ends.setdefault(epoch.run_start, keys.unpack_id(key))
            self._runs = sorted(ends.items(), key=lambda run: -run[1])
        return self._runs

    def _newest(self, first: int, last: int) -> records.CheckpointRecord | None:
        """The newest checkpoint of a stretch."""
        for epoch in range(last, first - 1, -1):
            if epoch != self._states.head and (found := self._states.checkpoint(epoch)):
                return found
        return None


def _last_epoch(found: Found) -> int:
    return found.checkpoint.epoch if found.checkpoint else -1


def _checkpoints(found: list[Found]) -> list[records.CheckpointRecord]:
    return [one.checkpoint for one in found if one.checkpoint]
