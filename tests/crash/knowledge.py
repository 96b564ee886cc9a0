"""What is known of a workspace from outside, compared with what is found after a crash."""

from __future__ import annotations

import os
from collections.abc import Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from cowfs.format import records
from cowfs.service.content import Tree as StoredTree
from cowfs.service.workspace import ReadOnly, reading
from cowfs.store.snapshot import Reader
from tests.crash.states import DURABLE, Call, Node, Shown, State, View, after, differences, view_of
from tests.support.listing import listing


class CrashError(AssertionError):
    """What was found after a crash is not what it has to be."""


@dataclass
class Knowledge:
    """What a crash may have left, and what was reported.

    states: one of them must be found; the first is the state of the last durable fact. ids: by
    index those of the checkpoints that were reported.
    """

    states: list[State]
    ids: dict[int, str] = field(default_factory=dict)

    @property
    def surely(self) -> State:
        return self.states[0]


class Progress:
    """Follows the reports of one life.

    begun: how many calls were. calling: whether the last one has not returned. facts: how many
    durable facts were reported; at_fact: whether the last report was one.
    """

    def __init__(
        self, state: State, calls: list[Call], ids: dict[int, str], *, paged: bool
    ) -> None:
        self._calls = calls
        self._states = [state]
        self._paged = paged
        self._durable = 0
        self._ids = ids
        self.begun = self.facts = 0
        self.calling = self.at_fact = False

    def note(self, report: list[Any]) -> None:
        """Take a report: ["begin"], ["done", {index: id}], ["closed"], or another word."""
        if report[0] == "begin":
            self._begin()
        elif report[0] == "done":
            self._done({int(index): id_ for index, id_ in report[1].items()})
        elif report[0] == "closed":
            self._durable = len(self._states) - 1

    def _begin(self) -> None:
        """The next call was begun."""
        call = self._calls[self.begun]
        self._states += after(self._states[-1], call, paged=self._paged)
        self.begun += 1
        self.calling = True

    def _done(self, ids: dict[int, str]) -> None:
        """The last call returned; `ids` of new checkpoints by index."""
        self.calling = False
        self.at_fact = self._calls[self.begun - 1][0] in DURABLE
        if self.at_fact:
            self._durable = len(self._states) - 1
            self._ids |= ids
            self.facts += 1

    def knowledge(self) -> Knowledge:
        return Knowledge(self._states[self._durable :], dict(self._ids))


class Found(NamedTuple):
    """What a workspace shows when it was opened again. ids: of all checkpoints, oldest first."""

    view: View
    base: View
    ids: list[str]
    undo: tuple[str, ...]
    redo: tuple[str, ...]

    def indexes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        number = {id_: index for index, id_ in enumerate(self.ids)}
        return tuple(number[i] for i in self.undo), tuple(number[i] for i in self.redo)


def checkpoint_ids(reader: Reader) -> list[str]:
    """The ids of all checkpoints, oldest first."""
    rows = (
        records.decode(value, records.CheckpointRecord) for _, value in reader.scan("checkpoint")
    )
    return [record.id for record in sorted(rows, key=lambda record: record.epoch)]


def directory_view(top: str) -> View:
    """What a directory shows, by system calls."""
    entries = listing(top)
    read = {}
    for path, entry in entries.items():
        if entry.kind == "file":
            read[path.encode()] = (Path(top) / path).read_bytes()
    return view_of(entries, read)


def matching(known: Knowledge, found: Found) -> State:
    """The last possible state that is the one found. Raises CrashError when none is."""
    undo, redo = found.indexes()
    for state in reversed(known.states):
        if (
            len(state.checkpoints) == len(found.ids)
            and (state.undo, state.redo) == (undo, redo)
            and state.tree.view() == found.view
            and state.applied.view() == found.base
        ):
            return state
    raise CrashError("\n".join(_why(known, found, undo, redo)))


def _why(known: Knowledge, found: Found, undo: Any, redo: Any) -> list[str]:
    lines = ["what was found is none of the states that may be"]
    views = [state.tree.view() for state in known.states]
    trees = [number for number, view in enumerate(views) if view == found.view]
    bases = [n for n, state in enumerate(known.states) if state.applied.view() == found.base]
    lines.append(f"of {len(known.states)} states the tree is that of {trees}, the base of {bases}")
    lines.append(f"{len(found.ids)} checkpoints, undo {undo}, redo {redo}; the states have")
    lines += [f"  {len(s.checkpoints)}, {s.undo}, {s.redo}" for s in known.states[:10]]
    if not trees:
        right = min(views, key=lambda view: len(differences(found.view, view)))
        lines += ["the tree and the nearest state:", *differences(found.view, right)[:10]]
    if not bases:
        right = known.surely.applied.view()
        lines += ["the base and the last reported state:", *differences(found.base, right)[:10]]
    return lines


def check_closed(store: Path, base_fd: int, known: Knowledge, *, recent: int = 4) -> None:
    """`verify` finds nothing, and checkpoints show what they showed: those that were reported,
    the last `recent` ones and the first. For a store that no process has open for writing."""
    with reading(store, base_fd) as workspace:
        check_workspace(workspace, known, recent=recent)


def check_workspace(workspace: ReadOnly, known: Knowledge, *, recent: int = 4) -> None:
    """See `check_closed`."""
    from cowfs.service.verify import verify

    report = verify(workspace)
    if report.problems:
        raise CrashError("verify found:\n" + "\n".join(map(str, report.problems)))
    ids, trees = checkpoint_ids(workspace.reader), known.states[-1].checkpoints
    for index, id_ in known.ids.items():
        if index >= len(ids) or ids[index] != id_:
            raise CrashError(f"checkpoint {id_} (number {index}) was reported and is not there")
    for index in {0, *range(max(len(ids) - recent, 1), len(ids))}:
        tree = StoredTree(workspace, workspace.point(ids[index]))
        if lines := differences(_stored_view(tree), trees[index].view()):
            text = "\n".join(lines[:10])
            raise CrashError(
                f"checkpoint {ids[index]} (number {index}) is not what it was:\n{text}"
            )


def _stored_view(tree: StoredTree) -> View:
    first: dict[Hashable, bytes] = {}
    out: View = {}
    for node in sorted([tree.root(), *tree.walk()], key=lambda node: node.path):
        mode, content = node.permissions, b""
        if node.is_file:
            content = node.read()
        elif node.is_symlink:
            mode, content = 0o777, node.target
        known = first.setdefault(node.identity, node.path)
        out[node.path] = Shown(Node(node.kind, mode, content), known)
    return out


def view_of_base(base_fd: int) -> View:
    """What a base directory shows, also when it is mounted over."""
    return directory_view(f"/proc/{os.getpid()}/fd/{base_fd}/.")
