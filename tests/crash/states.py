"""What a workspace shows, in memory: written from POSIX and the contracts, not from cowfs.

A workload is a list of calls; `after` says which states a call leads through. What a crash may
leave is one of the states between the last durable fact and the last call that was begun.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from cowfs.volume.base import STAGING
from tests.support.listing import Listing

Call = tuple[Any, ...]
"""The name of a call and its arguments; paths are bytes, checkpoints are indexes."""

PAGE = 4096
DURABLE = frozenset(
    ("fsync", "checkpoint", "restore", "restore-paths", "undo", "redo", "apply", "unmount")
)
"""Calls whose return is a durable fact (contracts 2, 3, 4 and 6)."""


class Node(NamedTuple):
    """kind: "file", "directory", "symlink". content: bytes of a file, target of a link."""

    kind: str
    mode: int
    content: bytes


class Shown(NamedTuple):
    """One path: its node, and the first path of the same file (hard links)."""

    node: Node
    first: bytes


View = dict[bytes, Shown]
"""By path; the top is b""."""


@dataclass(frozen=True, eq=False)
class Tree:
    """Names and what they lead to. Never changed."""

    names: dict[bytes, int]
    nodes: dict[int, Node]

    def at(self, path: bytes) -> Node:
        return self.nodes[self.names[path]]

    def below(self, path: bytes) -> list[bytes]:
        """A path and all below it, sorted."""
        return sorted(p for p in self.names if p == path or p.startswith(path + b"/"))

    def view(self) -> View:
        first: dict[int, bytes] = {}
        for path in sorted(self.names):
            first.setdefault(self.names[path], path)
        return {path: Shown(self.nodes[n], first[n]) for path, n in self.names.items()}

    def add(self, path: bytes, node: Node) -> Tree:
        number = max(self.nodes) + 1
        return Tree({**self.names, path: number}, {**self.nodes, number: node})

    def change(self, path: bytes, **fields: Any) -> Tree:
        number = self.names[path]
        return Tree(self.names, {**self.nodes, number: self.nodes[number]._replace(**fields)})

    def drop(self, path: bytes) -> Tree:
        return Tree({p: n for p, n in self.names.items() if p != path}, self.nodes)

    def move(self, path: bytes, new: bytes) -> Tree:
        names = {p: n for p, n in self.names.items() if p != new}
        for old in self.below(path):
            names[new + old[len(path) :]] = names.pop(old)
        return Tree(names, self.nodes)

    def graft(self, path: bytes, other: Tree) -> Tree:
        """This tree with what `other` has at and below a path, which shares no file with the
        rest."""
        names = {p: n for p, n in self.names.items() if p not in self.below(path)}
        nodes, number = dict(self.nodes), max(self.nodes)
        for old in other.below(path):
            number += 1
            names[old], nodes[number] = number, other.at(old)
        return Tree(names, nodes)


@dataclass(frozen=True, eq=False)
class State:
    """A workspace at one moment.

    checkpoints: the trees of all checkpoints, oldest first; the first is that of the base. undo,
    redo: indexes of checkpoints. applied: what the base shows. changed: whether the open epoch has
    changes (for certain; `plan` makes an apply only where that is known).
    """

    tree: Tree
    checkpoints: tuple[Tree, ...]
    undo: tuple[int, ...]
    redo: tuple[int, ...]
    applied: Tree
    changed: bool = False

    def seal(self) -> State:
        return replace(self, checkpoints=(*self.checkpoints, self.tree), changed=False)


def first_state(base: Tree) -> State:
    """A workspace that was just made."""
    return State(base, (base,), (), (), base)


def after(state: State, call: Call, *, paged: bool = False) -> list[State]:
    """The states that a call leads through, the last one is that when it returned.

    paged: a write may arrive page by page, as the kernel sends it.
    """
    name, *arguments = call
    newest = len(state.checkpoints)
    if name == "fsync" or call == ("unmount", False):
        return [state]
    if name == "checkpoint":
        return [state.seal()]
    if name == "restore":
        sealed = replace(state.seal(), undo=(*state.undo, newest), redo=())
        return [replace(sealed, tree=state.checkpoints[arguments[0]])]
    if name == "restore-paths":
        index, path = arguments
        sealed = replace(state.seal(), undo=(*state.undo, newest), redo=())
        grafted = state.tree.graft(path, state.checkpoints[index])
        return [sealed, replace(sealed, tree=grafted, changed=True)]
    if name == "undo":
        tree = state.checkpoints[state.undo[-1]]
        redo = (*state.redo, newest)
        return [replace(state.seal(), tree=tree, undo=state.undo[:-1], redo=redo)]
    if name == "redo":
        tree = state.checkpoints[state.redo[-1]]
        undo = (*state.undo, newest)
        return [replace(state.seal(), tree=tree, undo=undo, redo=state.redo[:-1])]
    if name in ("apply", "unmount"):
        sealed = state.seal() if state.changed else state
        return [sealed, replace(sealed, applied=state.tree)]
    trees = _edited(state.tree, name, arguments, paged)
    return [replace(state, tree=tree, changed=True) for tree in trees]


def _edited(tree: Tree, name: str, arguments: list[Any], paged: bool) -> list[Tree]:
    path = arguments[0]
    if name == "create":
        return [tree.add(path, Node("file", 0o644, b""))]
    if name == "mkdir":
        return [tree.add(path, Node("directory", 0o755, b""))]
    if name == "symlink":
        return [tree.add(path, Node("symlink", 0o777, arguments[1]))]
    if name == "link":
        return [Tree({**tree.names, arguments[1]: tree.names[path]}, tree.nodes)]
    if name in ("unlink", "rmdir"):
        return [tree.drop(path)]
    if name == "rename":
        return [tree.move(path, arguments[1])]
    if name == "chmod":
        return [tree.change(path, mode=arguments[1])]
    old = tree.at(path).content
    if name == "truncate":
        size = arguments[1]
        return [tree.change(path, content=old[:size].ljust(size, b"\0"))]
    assert name == "write"
    offset, data = arguments[1:]
    ends = [len(data)]
    if paged:
        ends = [*range(PAGE - offset % PAGE, len(data), PAGE), len(data)]
    out = []
    for end in ends:
        head = old[:offset].ljust(offset, b"\0")
        out.append(tree.change(path, content=head + data[:end] + old[offset + end :]))
    return out


def view_of(entries: Listing, read: dict[bytes, bytes]) -> View:
    """What a listing of a directory shows; `read`: contents of its files, by path."""
    first: dict[int, bytes] = {}
    out: View = {}
    for text, entry in entries.items():
        path = b"" if text == "." else text.encode()
        if path == STAGING or path.startswith(STAGING + b"/"):
            continue
        content = entry.content.encode() if entry.kind == "symlink" else read.get(path, b"")
        mode = 0o777 if entry.kind == "symlink" else stat.S_IMODE(entry.mode)
        known = min(first.setdefault(entry.ino, path), path)
        first[entry.ino] = known
        out[path] = Shown(Node(entry.kind, mode, content), path)
    return {
        path: Shown(shown.node, first[entries[path.decode() or "."].ino])
        for path, shown in out.items()
    }


def differences(found: View, right: View) -> list[str]:
    """One line for each path that differs."""
    lines = []
    for path in sorted(found.keys() | right.keys()):
        one, two = found.get(path), right.get(path)
        if one != two:
            lines.append(f"{path!r}: {_text(one)}, should be {_text(two)}")
    return lines


def _text(shown: Shown | None) -> str:
    if shown is None:
        return "not there"
    node = shown.node
    return (
        f"{node.kind} {node.mode:o} {len(node.content)} bytes {node.content[:12]!r} {shown.first!r}"
    )
