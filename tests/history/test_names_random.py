"""Random histories: `find` must say what a search of all states finds.

The model is that of test_tracking_random: every state as a plain map.
"""

from __future__ import annotations

import os
from fnmatch import fnmatchcase

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cowfs.service.finding.names import Finder, Found, Pattern
from cowfs.service.states import States
from tests.history.states import history
from tests.history.test_diff_random import Edit, edits, filled
from tests.history.test_tracking_random import State, forget, record

PATTERNS = [b"a", b"b", b"c\xff", b"plain", b"*", b"l*k", b"?", b"[ab]", b"c*", b"a/b", b"?/a"]
PATTERNS += [b"b/*", b"a/a/b", b"nothing", b"./a/a", b"*\xff"]

Told = tuple[bytes, str, list[bytes], list[str]]
"""Path, newest checkpoint that has it ("@" if it is there now), where it is now, earlier ones."""


def matches(pattern: bytes, path: bytes) -> bool:
    wanted = [os.fsdecode(part) for part in pattern.split(b"/") if part != b"."]
    parts = [os.fsdecode(part) for part in path.split(b"/")][-len(wanted) :]
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


def search(states: dict[str, State], pattern: bytes, *, deleted: bool) -> list[Told]:
    """By looking at everything. Names of states are in the order of their making."""
    newest: dict[tuple[int, bytes], tuple[str, bytes, int]] = {}
    for name, state in states.items():
        for path, ino in state.inodes.items():
            if path and matches(pattern, path):
                directory, _, last = path.rpartition(b"/")
                newest[state.inodes[directory], last] = (name, path, ino)
    order = list(states)
    by_path: dict[bytes, list[tuple[str, bytes, int]]] = {}
    for place in sorted(newest.values(), key=lambda place: -order.index(place[0])):
        by_path.setdefault(place[1], []).append(place)
    gone: list[Told] = []
    there: list[Told] = []
    for path, ((name, _, ino), *others) in sorted(by_path.items()):
        now = [] if name == "@" else states["@"].paths.get(ino, [])
        told = (path, name, now, [other[0] for other in others])
        (there if name == "@" else gone).append(told)
    if deleted:
        return [told for told in gone if not told[2]]
    return gone + there


def shown(found: Found) -> Told:
    last = found.checkpoint.id if found.checkpoint else "@"
    return found.path, last, found.moved_to, [record.id for record in found.earlier]


@given(st.lists(edits, min_size=1, max_size=40), st.sets(st.integers(1, 12), max_size=4))
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_where_each_name_is_or_was(steps: list[Edit], removed: set[int]) -> None:
    """removed: which checkpoints are not kept."""
    with filled() as rig:
        states = record(rig, steps)
        forget(rig, states, removed)
        order = list(states)
        with history(rig) as workspace:
            for pattern in PATTERNS:
                for deleted in (False, True):
                    finder = Finder(workspace, States(workspace.reader, workspace.branch.head))
                    found = [*map(shown, finder.find(Pattern(pattern), deleted=deleted))]
                    wanted = search(states, pattern, deleted=deleted)
                    assert sorted(found) == sorted(wanted), pattern
                    gone = [order.index(told[1]) for told in found if told[1] != "@"]
                    assert gone == sorted(gone, reverse=True), "the last to go first"
                    there = [told[0] for told in found if told[1] == "@"]
                    assert there == sorted(there)
                    assert finder.damaged == 0
