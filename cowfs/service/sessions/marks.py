"""What a tool call really changed: the state at its beginning against the one at its end.

The state at the beginning is that of a checkpoint: of the one that was made then, or of the last
one if nothing had changed since. So a mark costs nothing.

Threading: for the threads that an `Engine` is for.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from cowfs.errors import CowfsError
from cowfs.format import keys
from cowfs.format.records import CheckpointRecord
from cowfs.service.diff import Change, diff
from cowfs.service.engine import Engine, commit
from cowfs.service.selectors import Point
from cowfs.service.workspace import ReadOnly
from cowfs.store.lineage import Lineage
from cowfs.store.snapshot import Reader

_MOST_MARKS = 500
_MOST_TOUCHED = 3000
"""With more change records than that nothing is compared: a hook has to answer soon. A thing has
three at most, when it was renamed: so these are more than a thousand things."""
_MOST_LISTED = 20
_LISTS = {"A": "created", "M": "modified", "T": "modified", "P": "attributes", "D": "deleted"}


@dataclass(slots=True)
class Mark:
    """The state before a tool call. checkpoint: id of its checkpoint. epoch: which that sealed.
    others: how many other calls were under way at some time."""

    checkpoint: str
    epoch: int
    others: int = 0


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call. session: id of the agent's. subagent: that makes it, "". id: of the call, or
    what stands for it."""

    session: str
    subagent: str
    id: str


class Marks:
    """The tool calls that are under way."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._marks: OrderedDict[Call, Mark] = OrderedDict()

    def begin(self, call: Call, checkpoint: CheckpointRecord) -> None:
        """A call begins; `checkpoint` shows the state before it."""
        with self._lock:
            if call in self._marks:
                return
            same = [mark for known, mark in self._marks.items() if known.session == call.session]
            for mark in same:
                mark.others += 1
            self._marks[call] = Mark(checkpoint.id, checkpoint.epoch, len(same))
            while len(self._marks) > _MOST_MARKS:
                self._marks.popitem(last=False)

    def end(self, call: Call) -> Mark | None:
        """A call has ended; None when nobody knows its beginning."""
        with self._lock:
            return self._marks.pop(call, None)

    def drop(self, session: str, subagent: str) -> None:
        """Calls that were broken off: no end of theirs comes any more."""
        with self._lock:
            for call in [c for c in self._marks if (c.session, c.subagent) == (session, subagent)]:
                del self._marks[call]


@dataclass(slots=True)
class Changes:
    """What differs from the state before a call, for a hook's answer.

    since: id of the checkpoint of that state. created, modified, attributes, deleted: rows of
    {"path", "inside"}; inside: how many further things below a directory it stands for.
    renamed: {"path", "old_path"}. aside: below what is not listed one by one, and how many: git's
    directory, volatile paths. more: how many rows were left out. many: too much to be compared.
    others: how many other calls were under way meanwhile, whose changes cannot be told apart.
    """

    since: str
    created: list[dict[str, Any]] = field(default_factory=list)
    modified: list[dict[str, Any]] = field(default_factory=list)
    attributes: list[dict[str, Any]] = field(default_factory=list)
    deleted: list[dict[str, Any]] = field(default_factory=list)
    renamed: list[dict[str, Any]] = field(default_factory=list)
    aside: dict[str, int] = field(default_factory=dict)
    more: int = 0
    many: bool = False
    others: int = 0

    def __bool__(self) -> bool:
        rows = (self.created, self.modified, self.attributes, self.deleted, self.renamed)
        return self.many or bool(self.aside) or any(rows)

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def since(engine: Engine, mark: Mark, named: bytes, volatile: Iterable[str]) -> Changes:
    """What has changed since a mark. named: the path that the call is meant to change, relative to
    the top: it is no news, and neither are new directories above it. Raises CowfsError."""
    engine.flush()
    commit(engine)
    found = Changes(mark.checkpoint, others=mark.others)
    store, base = engine.volume.store, engine.volume.base
    with Reader(store) as reader:
        workspace = ReadOnly(store, reader, base.fd if base is not None else None)
        if reader.get("checkpoint", mark.checkpoint.encode()) is None:
            return found  # it was removed, and what it showed perhaps, too
        before, now = reader.lineage(mark.epoch), reader.lineage(workspace.branch.head)
        if _is_much(reader, before, now):
            found.many = True
            return found
        try:
            changes = diff(workspace, Point("", before, None), Point("@", now, None), failed=_skip)
        finally:
            if workspace.base is not None:
                workspace.base.forget()
    _sort(found, [c for c in changes if not _is_expected(c, named)], {".git", *volatile})
    return found


def _skip(_path: bytes, _error: CowfsError) -> None:
    """What cannot be read is told by others."""


def _is_much(reader: Reader, before: Lineage, now: Lineage) -> bool:
    left = _MOST_TOUCHED
    for start, end in before.minus(now) + now.minus(before):
        with reader.txn.cursor(db=reader.store.tables["change"]) as cursor:
            found = cursor.set_range(keys.pack_id(max(start, 1)))
            while found and keys.unpack_id(cursor.key()) <= end:
                left -= 1
                if left < 0:
                    return True
                found = cursor.next()
    return False


def _is_expected(change: Change, named: bytes) -> bool:
    if not named:
        return False
    if change.path == named:
        return change.status in "AMP"
    return change.status == "A" and change.node.is_dir and named.startswith(change.path + b"/")


def _sort(found: Changes, changes: list[Change], apart: set[str]) -> None:
    """Put the changes where they belong. What is in a directory that came or went as a whole is
    told with that."""
    whole: dict[str, dict[bytes, dict[str, Any]]] = {"A": {}, "D": {}}
    listed = 0
    for change in changes:
        path = os.fsdecode(change.path)
        if aside := _aside(path, apart):
            found.aside[aside] = found.aside.get(aside, 0) + 1
            continue
        row: dict[str, Any] = {"path": path or "."}
        tops = whole.get(change.status)
        if tops is not None:
            above = next((tops[top] for top in _above(change.path) if top in tops), None)
            if above is not None:
                above["inside"] += 1
                continue
        if change.status == "R":
            rows, row["old_path"] = found.renamed, os.fsdecode(change.old_path or b"")
        else:
            rows = getattr(found, _LISTS[change.status])
            if change.node.is_dir:
                row["path"] = path + "/" if path else "."
            row["inside"] = 0
        if tops is not None and change.node.is_dir:
            tops[change.path] = row
        if listed < _MOST_LISTED:
            listed += 1
            rows.append(row)
        else:
            found.more += 1


def _aside(path: str, apart: set[str]) -> str:
    """The directory whose changes are only counted that a path is or lies in, "" for none. A
    pattern of one name means every directory of that name."""
    names = path.split("/")
    for at in range(1, len(names) + 1):
        here = "/".join(names[:at])
        if here in apart or names[at - 1] in apart:
            return here
    return ""


def _above(path: bytes) -> Iterable[bytes]:
    """The directories that a path lies in, the nearest first."""
    while b"/" in path:
        path = path.rpartition(b"/")[0]
        yield path
