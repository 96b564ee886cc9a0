"""What became of a path: the states that changed it, through renames.

A file's identity is its inode. Followed is what was ever at the path, and from there back in time:
what was renamed to it is followed to where it was before, and a file that was replaced at its place
in one step (as editors and git save) is the same file to people, so it is followed, too. What left
the path is followed no further than to where it went.

The history is a tree. Each state is compared with the one that it was made from, for what led to a
state that has something at the path.

Only states are looked at whose epochs wrote a version of something that is followed; for
directories also those whose change records name something that was ever below them.

Threading: as the workspace.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from cowfs.errors import CowfsError, DamagedRecordError
from cowfs.format import keys
from cowfs.service.content import Tree
from cowfs.service.finding.steps import Event, Side, Step
from cowfs.service.finding.versions import (
    DIRECTORY,
    Below,
    Places,
    at,
    epochs_of,
    naming_epochs,
)
from cowfs.service.selectors import Point
from cowfs.service.states import States
from cowfs.service.workspace import ReadOnly
from cowfs.store.lineage import Lineage

_TREES = 8
"""States whose trees are kept for the next step."""


class PathHistory:
    """The history of one path, relative to the top (b"" is the top itself).

    damaged: told the epochs of states that cannot be compared, which are left out. Without it they
    raise DamagedRecordError.
    """

    def __init__(
        self,
        workspace: ReadOnly,
        states: States,
        path: bytes,
        damaged: Callable[[int], None] | None = None,
    ) -> None:
        self.path = path
        self._workspace = workspace
        self._reader = workspace.reader
        self._states = states
        self._damaged = damaged
        self._places = Places(self._reader, path)
        self._below = Below(self._reader)
        self._few: set[int] = set()
        self._scanning = False
        self._followed: list[tuple[int, Lineage]] = []
        self._due: list[int] = []
        self._queued: set[int] = set()
        self._trees: dict[int, Tree] = {}
        self._push(self._places.epochs)
        for ino, kind in self._places.inodes.items():
            self._push(epochs_of(self._reader, ino))
            if kind == DIRECTORY:
                self._look_below(ino)

    def events(self) -> Iterator[tuple[int, list[Event]]]:
        """(epoch of a state, what it did) for the states that changed it, newest first."""
        for state in self._order():
            try:
                found = self._compare(state)
            except DamagedRecordError:
                if self._damaged is None:
                    raise
                self._damaged(state)
                continue
            if found:
                yield state, found

    def at_start(self) -> list[bytes]:
        """The paths at which the base directory had at first what was followed. To be asked when
        the events are through."""
        tree = self._tree(0)
        if at(tree.snapshot, self.path) is not None:
            return [self.path]
        side = Side(tree)
        return sorted({path for ino, _ in self._followed for path in side.paths(ino)[:1]})

    def is_there(self) -> bool:
        """Whether the present state has something at the path, be it in a base directory that
        nobody looked into yet."""
        try:
            return self._tree(self._states.head).find(self.path) is not None
        except CowfsError:
            return False

    # -- which states -----------------------------------------------------------------------

    def _push(self, epochs: Iterable[int]) -> None:
        for epoch in epochs:
            for state in self._states.showing(epoch) if epoch else ():
                if state not in self._queued:
                    self._queued.add(state)
                    heapq.heappush(self._due, -state)

    def _look_below(self, directory: int) -> None:
        """Look at what is below a directory, too: at the versions of it if it is not much, else at
        the change records of all states."""
        if self._below.add(directory) and not self._scanning:
            few = self._below.few(directory)
            if few is None:
                self._scanning = True
            else:
                self._few |= few
                for ino in few:
                    self._push(epochs_of(self._reader, ino))

    def _order(self) -> Iterator[int]:
        """The states to compare, newest first. Meanwhile others become due, older ones."""
        passed = self._states.head + 1
        while self._due and not self._scanning:
            passed = -heapq.heappop(self._due)
            yield passed
        for state in self._states.all() if self._scanning else ():
            if state < passed and (state in self._queued or self._touches(state)):
                yield state

    def _touches(self, state: int) -> bool:
        """Whether a state changed something that was ever below one of the directories."""
        return any(map(self._below.has, self._touched(state)))

    def _touched(self, state: int) -> Iterator[int]:
        """The inodes that a state changed, by its change records, the greatest number first."""
        epochs = map(self._of_epoch, self._states.written(state))
        return (ino for ino, _ in itertools.groupby(heapq.merge(*epochs, reverse=True)))

    def _of_epoch(self, epoch: int) -> Iterator[int]:
        start = keys.pack_id(epoch)
        inodes, names = (start + bytes((kind,)) for kind in (keys.KIND_INODE, keys.KIND_DIRENT))
        for key in self._reader.keys_backwards("change", inodes, names):
            yield keys.change_parts(key)[1]

    def _touched_below(self, state: int) -> Iterator[int]:
        """Those that were ever below one of the directories. A state that changed more than there
        is is asked for each of them."""
        touched = self._touched(state)
        if self._scanning:
            return filter(self._below.has, touched)
        found = list(itertools.islice(touched, len(self._few) + 1))
        if len(found) <= len(self._few):
            return filter(self._few.__contains__, found)
        written = self._states.written(state)
        return (ino for ino in sorted(self._few, reverse=True) if self._is_touched(written, ino))

    def _is_touched(self, epochs: list[int], ino: int) -> bool:
        cursor = self._reader.cursor("change")
        found = (keys.change_inode_key(epoch, ino) for epoch in epochs)
        return any(cursor.set_range(key) and cursor.key() == key for key in found)

    def _tree(self, state: int) -> Tree:
        tree = self._trees.get(state)
        if tree is None:
            if len(self._trees) >= _TREES:
                self._trees.clear()
            point = Point("", self._states.lineage(state), self._states.checkpoint(state))
            tree = self._trees[state] = Tree(self._workspace, point)
        return tree

    # -- comparing --------------------------------------------------------------------------

    def _compare(self, state: int) -> list[Event]:
        parent = self._states.parent(state)
        step = Step(self._tree(parent), self._tree(state))
        before, now = at(step.old.snapshot, self.path), at(step.new.snapshot, self.path)
        events, told = [], set()
        for ino in self._here(state, now):
            names = step.new.paths(ino)
            if not names:
                continue
            path = self.path if ino == now else step.best_name(ino, names)
            event, origin = step.is_there(ino, path)
            told.add(origin)
            if origin is None:
                event = replace(event, again=ino == now and self._was_there(parent))
            elif origin != before:
                self._follow(origin, self._states.lineage(parent))
            events.append(self._with_inside(step, state, ino, event))
        if before is not None and before not in told:
            event = step.left(before, self.path)
            events.append(self._with_inside(step, state, before, event))
        return [event for event in events if event.happened or event.inside]

    def _here(self, state: int, now: int | None) -> list[int]:
        """The inodes to compare a state for: what it has at the path, and what is at the path in a
        state that was made from it."""
        followed = {ino for ino, lineage in self._followed if lineage.visible(state)} - {now}
        return [*([] if now is None else [now]), *sorted(followed)]

    def _follow(self, ino: int, lineage: Lineage) -> None:
        """Look at an inode in all states of a lineage, too."""
        for known, line in self._followed:
            if known == ino and line.visible(lineage.head):
                return
        self._followed.append((ino, lineage))
        epochs = {*epochs_of(self._reader, ino), *naming_epochs(self._reader, ino)}
        self._push(epoch for epoch in epochs if lineage.visible(epoch))

    def _with_inside(self, step: Step, state: int, ino: int, event: Event) -> Event:
        """An event of a directory with what happened below it."""
        if not step.is_directory(ino):
            return event
        self._look_below(ino)
        return step.inside(self._touched_below(state), event)

    def _was_there(self, state: int) -> bool:
        """Whether a state, or one that it came from, has something at the path."""
        lineage = self._states.lineage(state)
        return any(
            at(self._states.snapshot(epoch), self.path) is not None
            for epoch in sorted(self._places.epochs, reverse=True)
            if lineage.visible(epoch)
        )
