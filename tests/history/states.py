"""Helpers of these tests: states as plain maps, and what a list of changes does to one."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cowfs.service.content import Node, Tree
from cowfs.service.diff import Change
from cowfs.service.selectors import Point
from cowfs.service.workspace import ReadOnly, reading
from tests.support.volumes import Rig


class Value(NamedTuple):
    """What one path shows, but for times and what depends on other names."""

    kind: int
    mode: int
    uid: int
    gid: int
    content: bytes
    xattrs: tuple[tuple[bytes, bytes], ...]


State = dict[bytes, Value]
"""By path; the root is b""."""


@contextlib.contextmanager
def history(rig: Rig) -> Iterator[ReadOnly]:
    """The rig's workspace, closed and opened for reading; the rig goes on afterwards."""
    rig.close()
    try:
        with reading(rig.store, rig.base_fd) as workspace:
            yield workspace
    finally:
        rig.start()


@contextlib.contextmanager
def replayed(rig: Rig, copy: Path) -> Iterator[Rig]:
    """A second volume on a copy of the closed rig's store and on the same base."""
    shutil.copytree(rig.store, copy)
    other = Rig(copy, rig.base)
    try:
        yield other
    finally:
        other.finish(check=False)
        shutil.rmtree(copy)


def live_state(rig: Rig) -> tuple[State, dict[bytes, int]]:
    """What the volume itself shows, every directory listed: values and inode numbers."""
    state, inodes = {}, {}
    for path, facts in rig.tree().items():
        state[path] = Value(
            stat.S_IFMT(facts.mode),
            stat.S_IMODE(facts.mode),
            facts.uid,
            facts.gid,
            facts.content,
            tuple(sorted(facts.xattrs.items())),
        )
        inodes[path] = facts.ino
    return state, inodes


def tree_state(workspace: ReadOnly, point: Point) -> State:
    """What `Tree` shows."""
    tree = Tree(workspace, point)
    return {node.path: value_of(node) for node in (tree.root(), *tree.walk())}


def value_of(node: Node) -> Value:
    content = node.target
    if node.is_file:
        content = node.read()
    return Value(
        stat.S_IFMT(node.mode),
        node.permissions,
        node.uid,
        node.gid,
        content,
        tuple(sorted(node.xattrs.items())),
    )


def native_state(top: Path) -> State:
    """What system calls show of a directory."""
    out = {}
    root = os.fsencode(top)
    pending = [b""]
    while pending:
        path = pending.pop()
        full = root + b"/" + path if path else root
        st = os.lstat(full)
        content = b""
        if stat.S_ISREG(st.st_mode):
            content = Path(os.fsdecode(full)).read_bytes()
        elif stat.S_ISLNK(st.st_mode):
            content = os.readlink(full)
        elif stat.S_ISDIR(st.st_mode):
            pending += [path + b"/" + n if path else n for n in os.listdir(full)]
        xattrs = os.listxattr(full, follow_symlinks=False)
        out[path] = Value(
            stat.S_IFMT(st.st_mode),
            stat.S_IMODE(st.st_mode),
            st.st_uid,
            st.st_gid,
            content,
            tuple(sorted((os.fsencode(n), os.getxattr(full, n)) for n in xattrs)),
        )
    return out


def below(path: bytes, top: bytes) -> bool:
    return path.startswith(top + b"/")


def replay(old: State, changes: list[Change]) -> State:
    """What a reader of the changes believes the new state to be.

    What is not mentioned stays where its directory is. No path may be taken or made twice.
    """
    taken: dict[bytes, Change] = {}
    made: dict[bytes, Change] = {}
    for change in changes:
        if change.old is not None:
            assert change.old.path not in taken, change
            taken[change.old.path] = change
            assert change.old.path == (change.old_path if change.old_path else change.path)
        if change.new is not None:
            assert change.new.path not in made, change
            assert change.new.path == change.path
            made[change.path] = change
    places: dict[bytes, bytes | None] = {b"": b""}
    for path in sorted(old):
        if not path:
            continue
        taking = taken.get(path)
        if taking is not None:
            places[path] = taking.path if taking.new is not None else None
            continue
        directory, _, name = path.rpartition(b"/")
        above = places[directory]
        assert above is not None, f"{path!r} is not mentioned, its directory is gone"
        places[path] = above + b"/" + name if above else name
    new: State = {}
    for path, place in places.items():
        if place is not None:
            assert place not in new, f"{place!r} would be there twice"
            new[place] = old[path]
    for path, change in made.items():
        assert change.new is not None
        if change.status == "A":
            assert path not in new, f"{path!r} was there already"
        new[path] = value_of(change.new)
    return new


def check_changes(
    old: tuple[State, dict[bytes, int]],
    new: tuple[State, dict[bytes, int]],
    changes: list[Change],
) -> None:
    """The changes lead from one state to the other, say what they are, and nothing too much."""
    (before, old_inodes), (after, new_inodes) = old, new
    assert replay(before, changes) == after
    old_numbers, new_numbers = set(old_inodes.values()), set(new_inodes.values())
    renamed = {c.old_path for c in changes if c.status == "R"}
    arrived = {c.path for c in changes if c.status == "R"}
    for change in changes:
        one = before[change.old.path] if change.old else None
        two = after[change.path] if change.new else None
        if change.old:
            assert value_of(change.old) == one
        if one is None:
            assert change.status == "A"
            assert change.path not in before or before_moved(change.path, changes), change
            number = new_inodes[change.path]
            if number in old_numbers and not two_is_dir(two):
                assert change.link_of is not None, change
        elif two is None:
            assert change.status == "D"
            number = old_inodes[change.path]
            if number in new_numbers:
                assert change.link_of is not None, change
        else:
            same_type = one.kind == two.kind
            different = [
                name
                for name, a, b in (
                    ("mode", one.mode, two.mode),
                    ("owner", one.uid, two.uid),
                    ("group", one.gid, two.gid),
                    ("xattrs", one.xattrs, two.xattrs),
                )
                if a != b
            ]
            assert list(change.attributes) == different, change
            assert change.modified == (one.content != two.content or not same_type), change
            if change.status == "R":
                assert old_inodes[change.old_path or b""] == new_inodes[change.path]
            elif change.status == "T":
                assert not same_type
            elif change.status == "M":
                assert same_type
                assert change.modified
            else:
                assert change.status == "P"
                assert same_type
                assert not change.modified
                assert different
    # A file that lost one name and won another was renamed.
    single_old = {n: p for p, n in old_inodes.items()}
    for path, number in new_inodes.items():
        if list(old_inodes.values()).count(number) != 1:
            continue
        if list(new_inodes.values()).count(number) != 1:
            continue
        source = single_old[number]
        if source.rpartition(b"/")[2] != path.rpartition(b"/")[2]:
            assert path in arrived, path
            assert source in renamed, source


def two_is_dir(value: Value | None) -> bool:
    return value is not None and value.kind == stat.S_IFDIR


def before_moved(path: bytes, changes: list[Change]) -> bool:
    """Whether what was at a path, or a directory above it, went away."""
    gone = {c.old.path for c in changes if c.old is not None and c.path != c.old.path}
    gone |= {c.path for c in changes if c.status == "D"}
    gone |= {c.path for c in changes if c.status == "R" and c.path == c.old_path}
    return path in gone or any(below(path, top) for top in gone)
