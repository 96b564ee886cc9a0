"""One step of the history: a state beside the one that it was made from, thing by thing.

Only what is asked about is compared; nothing lists a tree.

Threading: as the workspace.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from cowfs.service.content import Node, Tree
from cowfs.service.diff import below, changed_attributes, is_modified
from cowfs.types import ROOT_INO

CREATED, MODIFIED, RENAMED, DELETED, ATTRIBUTES = (
    "created",
    "modified",
    "renamed",
    "deleted",
    "attributes",
)


@dataclass(frozen=True, slots=True)
class Event:
    """What a step did to one file or directory.

    happened: created, modified, renamed, deleted, attributes, in this order; none of them when only
    something below a directory changed. path: where it is in the new state, of a deleted one where
    it was. old_path: where it was before, if that is another place; of a created one a path that it
    had before and still has (a hard link was made). attributes: which of them differ: mode, owner,
    group, xattrs. again: created, though an earlier state had another file at the path. inside: of
    a directory, how many things below it were created, modified and so on. inside_more: these are
    not all (`INSIDE_COUNTED`).
    """

    happened: tuple[str, ...]
    path: bytes
    old_path: bytes | None = None
    attributes: tuple[str, ...] = ()
    again: bool = False
    inside: Counter[str] | None = None
    inside_more: bool = False

    def to_json(self) -> dict[str, Any]:
        """Plain data; a byte of a name that is not UTF-8 becomes a lone surrogate."""
        return {
            "happened": list(self.happened),
            "path": os.fsdecode(self.path) or ".",
            "old_path": None if self.old_path is None else os.fsdecode(self.old_path),
            "attributes": list(self.attributes),
            "again": self.again,
            "inside": None if self.inside is None else dict(self.inside),
            "inside_more": self.inside_more,
        }


INSIDE_COUNTED = 200
"""Things below a directory that are counted; of more it is only said that there are more."""

_Name = tuple[int | None, bytes]
"""A directory, None for one that was created, and a name in it."""


class Side:
    """One of two states. What names an inode has is asked once."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.snapshot = tree.snapshot
        self._names: dict[int, list[tuple[int, bytes, bytes]]] = {}

    def names(self, ino: int) -> list[tuple[int, bytes, bytes]]:
        """(directory, name, path) of each of its names, by path."""
        found = self._names.get(ino)
        if found is None:
            found = self._names[ino] = self.tree.names(ino)
        return found

    def has(self, ino: int) -> bool:
        """Whether an inode has a name."""
        return ino == ROOT_INO or bool(self.names(ino))

    def paths(self, ino: int) -> list[bytes]:
        """All paths of an inode, sorted."""
        return [b""] if ino == ROOT_INO else [path for _, _, path in self.names(ino)]

    def below(self, ino: int, top: bytes | None) -> set[_Name]:
        """The names of an inode below a directory."""
        if top is None:
            return set()
        return {
            (directory, name)
            for directory, name, path in self.names(ino)
            if path != top and below(path, top)
        }


class Step:
    """Two states."""

    def __init__(self, old: Tree, new: Tree) -> None:
        self.old = Side(old)
        self.new = Side(new)
        self._before: dict[int, int | None] = {}

    # -- one thing --------------------------------------------------------------------------

    def before(self, ino: int) -> int | None:
        """The inode of the old state that one of the new state continues: itself, or the one that
        it replaced at its place; None when it was created."""
        if ino not in self._before:
            self._before[ino] = ino if self.old.has(ino) else self._replaced(ino)
        return self._before[ino]

    def _replaced(self, ino: int) -> int | None:
        """What was where an inode is now, and is gone; of the same type. In a directory that was
        replaced itself it may be, too."""
        self._before[ino] = None  # in a damaged store a directory may be above itself
        for directory, name, _ in self.new.names(ino):
            above = self.before(directory)
            found = self.old.snapshot.lookup(above, name) if above is not None else None
            if found is None or self.new.has(found[0]):
                continue
            record = self.new.snapshot.inode(ino)
            if record is not None and found[1] == record.mode >> 12:
                return found[0]
        return None

    def is_there(self, ino: int, path: bytes) -> tuple[Event, int | None]:
        """What happened to an inode that the new state has at a path, and the inode that it was
        before."""
        new = self.new.tree.node(ino, path)
        before = self.before(ino)
        if before is None:
            return Event((CREATED,), path), None
        names = self.old.paths(before)
        old = self.old.tree.node(before, path if path in names else names[0])
        event = _compare(old, new)
        if before == ino and old.path != path and old.path in self.new.paths(ino):
            others = tuple(word for word in event.happened if word != RENAMED)
            event = replace(event, happened=(CREATED, *others))
        return event, before

    def left(self, ino: int, path: bytes) -> Event:
        """What happened to an inode that the new state does not have at a path any more."""
        before = set(self.old.paths(ino))
        fresh = [name for name in self.new.paths(ino) if name not in before]
        if fresh:
            return _compare(self.old.tree.node(ino, path), self.new.tree.node(ino, fresh[0]))
        return Event((DELETED,), path)

    def best_name(self, ino: int, names: list[bytes]) -> bytes:
        """One of the names that the new state has for an inode: one that it had before, if it
        can be."""
        before = self.old.paths(ino)
        return next((name for name in names if name in before), names[0])

    def is_directory(self, ino: int) -> bool:
        """Whether an inode that one of the states has is a directory."""
        record = self.new.snapshot.inode(ino) or self.old.snapshot.inode(ino)
        return record is not None and stat.S_ISDIR(record.mode)

    # -- what is below a directory --------------------------------------------------------------

    def inside(self, touched: Iterable[int], event: Event) -> Event:
        """The event of a directory with what happened below it.

        touched: what may have changed, the greatest number first, so that what replaced something
        is met before that. What came from elsewhere, or went there, was renamed.
        """
        old = None if CREATED in event.happened else event.old_path or event.path
        new = None if DELETED in event.happened else event.path
        found: Counter[str] = Counter()
        gone: set[int] = set()
        replaced: set[int] = set()
        for ino in touched:
            if found.total() + len(gone) >= INSIDE_COUNTED:
                event = replace(event, inside_more=True)
                break
            before, after = self.old.below(ino, old), self.new.below(ino, new)
            if not before and not after:
                continue
            if not self.new.has(ino):
                gone.add(ino)
            elif (origin := self.before(ino)) is None:
                found[CREATED] += 1
            else:
                replaced.add(origin)
                found.update(self._inside_words(origin, ino, before, after))
        found[DELETED] += len(gone - replaced)
        return replace(event, inside=+found)

    def _inside_words(
        self, origin: int, ino: int, before: set[_Name], after: set[_Name]
    ) -> set[str]:
        """What happened to an inode, before `origin`, that was or is below a directory under these
        names."""
        words = set(
            _compare(self.old.tree.node(origin, b""), self.new.tree.node(ino, b"")).happened
        )
        if origin == ino:
            had, has = self.old.below(ino, b""), self._stayed(self.new.below(ino, b""))
            if self._stayed(after) - had:
                words.add(RENAMED if had - has else CREATED)
            elif before - has:
                words.add(RENAMED if has - had else DELETED)
        return words

    def _stayed(self, names: set[_Name]) -> set[_Name]:
        """Names of the new state as they would be in the old one: what moved with its directory
        stayed where it was."""
        return {(self.before(directory), name) for directory, name in names if directory}


def _compare(old: Node, new: Node) -> Event:
    """What happened to one thing."""
    happened = [RENAMED] if old.path != new.path else []
    attributes = changed_attributes(old, new)
    if stat.S_IFMT(old.mode) != stat.S_IFMT(new.mode) or is_modified(old, new):
        happened.append(MODIFIED)
    if attributes:
        happened.append(ATTRIBUTES)
    old_path = old.path if old.path != new.path else None
    return Event(tuple(happened), new.path, old_path, attributes)
