"""Random histories: `log PATH` must say what a comparison of all states finds.

The model keeps every state as a plain map and knows nothing of epochs, versions or change records.
"""

from __future__ import annotations

import itertools
import stat
from collections import Counter
from unittest import mock

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cowfs.service.finding import versions
from cowfs.service.finding.steps import Event
from cowfs.service.finding.tracking import PathHistory
from cowfs.service.selectors import get_checkpoint
from cowfs.service.timeline import Timeline
from cowfs.volume.removing import remove
from tests.collecting.looking import collect_garbage
from tests.history.states import Value, below, history, live_state
from tests.history.test_diff_random import PATHS, Edit, apply_edit, edits, filled
from tests.support.volumes import START, Rig

Found = tuple[tuple[str, ...], bytes, bytes | None, tuple[tuple[str, int], ...]]
"""What happened, path, old path, numbers of what happened inside."""


class State:
    """One state: the value and the inode of each path."""

    def __init__(self, rig: Rig) -> None:
        self.values, self.inodes = live_state(rig)
        self.paths: dict[int, list[bytes]] = {}
        for path in sorted(self.inodes):
            self.paths.setdefault(self.inodes[path], []).append(path)

    def value(self, ino: int) -> Value:
        return self.values[self.paths[ino][0]]


class Pair:
    """A state and the one it was made from."""

    def __init__(self, old: State, new: State) -> None:
        self.old = old
        self.new = new

    def before(self, ino: int) -> int | None:
        """What an inode of the new state was: itself, or what was at its place and is gone."""
        if ino in self.old.paths:
            return ino
        for path in self.new.paths[ino]:
            directory, _, name = path.rpartition(b"/")
            above = self.before(self.new.inodes[directory])
            if above is None:
                continue
            place = self.old.paths[above][0]
            found = self.old.inodes.get(place + b"/" + name if place else name)
            if found is None or found in self.new.paths:
                continue
            if self.old.value(found).kind == self.new.value(ino).kind:
                return found
        return None

    def differences(self, before: int, after: int) -> list[str]:
        one, two = self.old.value(before), self.new.value(after)
        words = []
        if one.content != two.content:
            words.append("modified")
        if one._replace(content=b"") != two._replace(content=b""):
            words.append("attributes")
        return words

    def stayed(self, names: set[Name]) -> set[Name]:
        """Names as they would have been before: what moved with its directory stayed."""
        return {(self.before(directory), name) for directory, name in names if directory}

    def inside(self, old: bytes | None, new: bytes | None) -> Counter[str]:
        """What happened below a directory."""
        found: Counter[str] = Counter()
        before, after = _under(self.old, old), _under(self.new, new)
        everywhere = _under(self.old, b""), _under(self.new, b"")
        continued = set()
        for ino in sorted(before.keys() | after.keys()):
            if ino not in self.new.paths:
                continue
            origin = self.before(ino)
            if origin is None:
                found["created"] += 1
                continue
            continued.add(origin)
            found.update(self.differences(origin, ino))
            if origin != ino:
                continue
            had, has = everywhere[0][ino], self.stayed(everywhere[1][ino])
            if self.stayed(after.get(ino, set())) - had:
                found["renamed" if had - has else "created"] += 1
            elif before.get(ino, set()) - has:
                found["renamed" if has - had else "deleted"] += 1
        for ino in before:
            if ino not in self.new.paths and ino not in continued:
                found["deleted"] += 1
        return found


Name = tuple[int | None, bytes]
"""A directory and a name in it."""


def _under(state: State, top: bytes | None) -> dict[int, set[Name]]:
    out: dict[int, set[Name]] = {}
    if top is not None:
        for path, ino in state.inodes.items():
            if path != top and (not top or below(path, top)):
                directory, _, name = path.rpartition(b"/")
                out.setdefault(ino, set()).add((state.inodes[directory], name))
    return out


class Model:
    """All states, by name; what each was made from. Names are in the order of their making."""

    def __init__(self, states: dict[str, State], parents: dict[str, str]) -> None:
        self.states = states
        self.parents = parents

    def events(self, path: bytes) -> dict[str, list[Found]]:
        """What `log PATH` must say, by state."""
        followed: dict[str, set[int]] = {name: set() for name in self.states}
        out: dict[str, list[Found]] = {}
        for name in reversed(self.states):
            if name not in self.parents:
                continue
            parent = self.parents[name]
            pair = Pair(self.states[parent], self.states[name])
            now, before = pair.new.inodes.get(path), pair.old.inodes.get(path)
            used, found = set(), []
            for ino in sorted({now, *followed[name]} - {None}, key=lambda i: (i != now, i)):
                assert ino is not None
                where = path if ino == now else self._best(pair, ino)
                origin = pair.before(ino)
                if origin is not None:
                    used.add(origin)
                    if origin != before:
                        followed[parent].add(origin)
                found.append(_there(pair, ino, origin, where))
            if before is not None and before not in used:
                found.append(_left(pair, before, path))
            found = [row for row in found if row[0] or row[3]]
            if found:
                out[name] = found
        return out

    @staticmethod
    def _best(pair: Pair, ino: int) -> bytes:
        names = pair.new.paths[ino]
        known = pair.old.paths.get(ino, [])
        return next((name for name in names if name in known), names[0])


def _there(pair: Pair, ino: int, origin: int | None, path: bytes) -> Found:
    if origin is None:
        return _with_inside(pair, ino, ("created",), path, None, None)
    names = pair.old.paths[origin]
    old = path if path in names else names[0]
    words = pair.differences(origin, ino)
    if old != path:
        linked = origin == ino and old in pair.new.paths[ino]
        words.insert(0, "created" if linked else "renamed")
    return _with_inside(pair, ino, tuple(words), path, old if old != path else None, old)


def _left(pair: Pair, ino: int, path: bytes) -> Found:
    known = pair.old.paths[ino]
    fresh = [name for name in pair.new.paths.get(ino, []) if name not in known]
    if fresh:
        words = ("renamed", *pair.differences(ino, ino))
        return _with_inside(pair, ino, words, fresh[0], path, path)
    return _with_inside(pair, ino, ("deleted",), path, None, path)


def _with_inside(
    pair: Pair,
    ino: int,
    words: tuple[str, ...],
    path: bytes,
    old_path: bytes | None,
    old: bytes | None,
) -> Found:
    state = pair.new if ino in pair.new.paths else pair.old
    counts: Counter[str] = Counter()
    if state.value(ino).kind == stat.S_IFDIR:
        counts = pair.inside(old, None if words == ("deleted",) else path)
    return words, path, old_path, tuple(sorted(counts.items()))


def shown(event: Event) -> Found:
    inside = tuple(sorted(event.inside.items())) if event.inside else ()
    return event.happened, event.path, event.old_path, inside


def record(rig: Rig, steps: list[Edit]) -> dict[str, State]:
    """Make the edits; each state that became a checkpoint, by its id, and the last one as "@"."""
    states = {START: State(rig)}
    made = [rig.checkpoint()]
    states[made[0].id] = states[START]
    for edit in steps:
        before = State(rig) if edit[0] in ("checkpoint", "restore", "restore path") else None
        count = len(made)
        apply_edit(rig, made, edit)
        if len(made) > count:
            assert before is not None
            states[made[-1].id] = before
    states["@"] = State(rig)
    return states


def forget(rig: Rig, states: dict[str, State], removed: set[int]) -> None:
    """Remove checkpoints, by their place in the order, but for the first; take out what no kept one
    needs."""
    names = [name for at, name in enumerate(states) if at in removed and name != "@"]
    rig.volume.sync()
    remove(rig.volume, [get_checkpoint(rig.volume.reader, name) for name in names])
    rig.volume.sync()
    for name in names:
        del states[name]
    collect_garbage(rig)


@given(
    st.lists(edits, min_size=1, max_size=40),
    st.sets(st.integers(1, 12), max_size=4),
    st.sampled_from([0, 4, 1000]),
)
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_what_became_of_each_path(steps: list[Edit], removed: set[int], few: int) -> None:
    """removed: which checkpoints are not kept; what they did is that of the next ones. few: names
    below a directory above which change records are asked."""
    with filled() as rig:
        states = record(rig, steps)
        forget(rig, states, removed)
        with history(rig) as workspace, mock.patch.object(versions, "FEW", few):
            line = Timeline(workspace)
            rows = [line.head(), *line.checkpoints()]
            assert [row.id for row in rows] == list(reversed(states))
            parents = {row.id: row.parent for row in rows if row.parent is not None}
            model = Model(states, parents)
            names = {row.epoch: row.id for row in rows}
            for path in itertools.chain([b""], PATHS):
                found = PathHistory(workspace, line.states, path)
                events = [(names[e], list(map(shown, told))) for e, told in found.events()]
                wanted = model.events(path)
                assert events == [(n, wanted[n]) for n in reversed(states) if n in wanted], path
