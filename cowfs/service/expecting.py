"""A restore that was planned against one state, and must not be done to another.

The present state has a name: "@" and the number of the newest record of the audit log, which says
the last thing that anybody changed. Somebody may also say which checkpoint the present state should
be; then the two are compared first, and named so.

Threading: an `Expectation` is made in the threads that an `Engine` is for; its `check` belongs to
the thread that owns the volume, since nothing may come between it and the restore.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence

from cowfs.errors import StateMovedError, UsageError
from cowfs.service.audit.log import Log
from cowfs.service.audit.stories import TEMPORARY, Story
from cowfs.service.audit.telling import Paths, later
from cowfs.service.diff import Change, diff
from cowfs.service.engine import Engine, commit
from cowfs.service.selectors import resolve
from cowfs.service.volatile import matches
from cowfs.service.workspace import ReadOnly
from cowfs.store.snapshot import Reader
from cowfs.volume.volume import Volume

_MOST_STORIES = 200
_TOLD = 20
_FEW = 3
_STATE = re.compile(r"@(\d{1,19})")


def state_of(reader: Reader) -> str:
    """The name of the state that a reader sees."""
    return f"@{Log(reader).last}"


def present_state(volume: Volume) -> str | None:
    """The name of a volume's present state, None while changes are on their way to the store. For
    the thread that owns it."""
    volume.reap()
    return state_of(volume.reader) if volume.settled else None


class Expectation:
    """What the present state has to be: `text` is its name or a checkpoint. What lies outside of
    `paths` (none: everything), or matches `exclude`, may be anything."""

    def __init__(
        self, engine: Engine, text: str, paths: Sequence[bytes], exclude: Sequence[bytes]
    ) -> None:
        """Raises StateMovedError, UnknownCheckpointError, AmbiguousCheckpointError, UsageError."""
        self._volume = engine.volume
        self._name = text
        self._paths = [path for path in paths if path]
        self._exclude = list(exclude)
        named = _STATE.fullmatch(text)
        self._number = int(named[1]) if named else self._compare(engine, text)

    def _compare(self, engine: Engine, selector: str) -> int:
        """See that the present state is a checkpoint; the number that it has."""
        engine.flush()
        commit(engine)
        volume = self._volume
        base = volume.base.fd if volume.base is not None else None
        with Reader(volume.store) as reader:
            workspace = ReadOnly(volume.store, reader, base)
            try:
                lineage = reader.lineage(workspace.branch.head)
                point = resolve(reader, lineage, selector, time.time_ns())
                if point.checkpoint is None:
                    raise UsageError(detail="--expect @ says nothing", command="restore")
                self._name = point.name
                changes = [
                    change
                    for change in diff(workspace, point, workspace.point("@"))
                    if self._matters([change.path, change.old_path])
                ]
                if changes:
                    log = Log(reader)
                    told = self._stories(reader, log.before(point.checkpoint.epoch + 1))
                    raise self._moved(list(told), changes)
            finally:
                if workspace.base is not None:
                    workspace.base.forget()
            return Log(reader).last

    def check(self) -> None:
        """Raises StateMovedError if somebody has changed something that matters. All must be
        committed."""
        if Log(self._volume.reader).last > self._number:
            stories = list(self._stories(self._volume.reader, self._number))
            if stories:
                raise self._moved(stories, [])

    def _stories(self, reader: Reader, number: int) -> Iterator[Story]:
        """What was done after a record, as far as it matters; what was made and removed again does
        not."""
        count = 0
        found = later(Log(reader), Paths(reader), number, (), None, whole=True)
        for _, stories in found:
            for story in stories:
                touched = [path for pair in story.paths for path in pair]
                if story.verb != TEMPORARY and self._matters(touched):
                    yield story
                    count += 1
            if count >= _MOST_STORIES:
                return

    def _matters(self, paths: Sequence[bytes | None]) -> bool:
        """Whether any of some paths may not change."""
        return any(
            (not self._paths or any(_is_related(path, top) for top in self._paths))
            and not matches(path, self._exclude)
            for path in paths
            if path is not None
        )

    def _moved(self, stories: list[Story], changes: list[Change]) -> StateMovedError:
        paths = [os.fsdecode(change.path) or "." for change in changes]
        paths += [os.fsdecode(path) or "." for story in stories for path, _ in story.paths]
        told = list(dict.fromkeys(f"{story.who()} {story.what()}" for story in stories))
        different = list(dict.fromkeys(paths))
        return StateMovedError(
            expected=self._name,
            what="; ".join(told[-_FEW:]) or ", ".join(different[:_FEW]),
            changes=told[-_TOLD:],
            paths=different[:_TOLD],
            count=len(different),
        )


def _is_related(path: bytes, top: bytes) -> bool:
    """Whether one of two paths is the other one, or below it; everything is below b""."""
    return not path or path == top or path.startswith(top + b"/") or top.startswith(path + b"/")
