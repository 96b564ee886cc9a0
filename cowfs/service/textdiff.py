"""Changes as text: counted lines, and a patch that other tools apply.

Threading: as the workspace.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cowfs.errors import CowfsError
from cowfs.service.content import Node, Tree, join
from cowfs.service.diff import Change, is_modified
from cowfs.service.selectors import Point
from cowfs.service.workspace import ReadOnly
from cowfs.tree import patch as patching


@dataclass(frozen=True, slots=True)
class Stat:
    """How much a change changed.

    added, removed: lines; None when it is not text or too large to be compared by line.
    old_size, new_size: bytes of content, 0 where there is none.
    """

    added: int | None
    removed: int | None
    old_size: int
    new_size: int

    @property
    def binary(self) -> bool:
        """Whether only the sizes are known."""
        return self.added is None

    def to_json(self) -> dict[str, Any]:
        return {
            "added": self.added,
            "removed": self.removed,
            "old_size": self.old_size,
            "new_size": self.new_size,
        }


# -- how much ------------------------------------------------------------------------------------

TEXT_LIMIT = 8 << 20
"""Files larger than this (bytes) are not compared by line."""


def stat_of(change: Change) -> Stat:
    """Lines and bytes of one change. A link or a renamed file without changes counts nothing."""
    old, new = _counted(change.old), _counted(change.new)
    if change.link_of is not None or not change.modified:
        return Stat(0, 0, _size(change.old), _size(change.new))
    before, after = _text(old), _text(new)
    if before is None or after is None:
        return Stat(None, None, _size(change.old), _size(change.new))
    added, removed = patching.count_lines(before, after)
    return Stat(added, removed, _size(change.old), _size(change.new))


def _counted(node: Node | None) -> Node | None:
    return node if node is not None and (node.is_file or node.is_symlink) else None


def _size(node: Node | None) -> int:
    return node.size if node is not None and (node.is_file or node.is_symlink) else 0


def _text(node: Node | None) -> bytes | None:
    """The content if it is text, None when it is not or cannot be read."""
    if node is None:
        return b""
    if node.is_symlink:
        return node.target
    if node.size > TEXT_LIMIT:
        return None
    try:
        data = node.read()
    except CowfsError:
        return None
    return None if patching.is_binary(data) else data


# -- as a patch ----------------------------------------------------------------------------------

PATCH_LIMIT = 64 << 20
"""Files larger than this (bytes) are only named in a patch."""

Omitted = Callable[[bytes, str], None]


def patch(
    workspace: ReadOnly,
    a: Point,
    b: Point,
    changes: Sequence[Change],
    *,
    omitted: Omitted = lambda path, why: None,
) -> Iterator[bytes]:
    """The changes as a git-style patch, file by file.

    `git apply` makes state `b` of state `a` with it; so does `patch -p1` as far as text files go.
    omitted: called with a path and the reason for each change that a patch cannot carry:
    directories, special files, owners, permissions other than the executable bit, extended
    attributes, files that are too large or cannot be read.
    """
    old, new = Tree(workspace, a), Tree(workspace, b)
    for before, after in _file_pairs(old, new, changes, omitted):
        yield _patch_of(before, after, omitted)


_Pair = tuple[Node | None, Node | None]


def _file_pairs(
    old: Tree, new: Tree, changes: Sequence[Change], omitted: Omitted
) -> Iterator[_Pair]:
    """What must happen to each file, sorted by path: git's view of the changes.

    A pair with two paths is a rename. It is only kept as one where the old path is free
    afterwards and the new one was before; else both paths are written as what happens there.
    """
    pairs: list[_Pair] = []
    for change in changes:
        pairs.append((change.old, change.new))
        _tell_omitted(change, omitted)
    pairs.extend(_moved_along(old, new, changes, omitted))
    pairs = [(_carried(before), _carried(after)) for before, after in pairs]
    left = {one.path for one, two in pairs if one and (two is None or one.path != two.path)}
    taken = {two.path for one, two in pairs if two and (one is None or one.path != two.path)}
    # Where a file takes a directory's place, or the other way round, a rename is none for git.
    above_left = {top for path in left for top in _above(path)}
    above_taken = {top for path in taken for top in _above(path)}
    renames: list[_Pair] = []
    gone: dict[bytes, Node] = {}
    made: dict[bytes, Node] = {}
    for one, two in pairs:
        if (
            one
            and two
            and one.path != two.path
            and one.path not in taken
            and one.path not in above_taken
            and taken.isdisjoint(_above(one.path))
            and two.path not in left
            and two.path not in above_left
            and left.isdisjoint(_above(two.path))
            and _same_type(one, two)
        ):
            renames.append((one, two))
            continue
        if one:
            gone[one.path] = one
        if two:
            made[two.path] = two
    rows: list[tuple[bytes, _Pair]] = [(two.path, (one, two)) for one, two in renames if two]
    late: list[tuple[bytes, _Pair]] = []
    blocked = {top for path in gone for top in _above(path)}
    for path in gone.keys() | made.keys():
        before, after = gone.get(path), made.get(path)
        if before and after and not _same_type(before, after):
            rows.append((path, (before, None)))
            rows.append((path, (None, after)))
        elif before is None and path in blocked:
            late.append((path, (before, after)))  # a file where a directory was
        else:
            rows.append((path, (before, after)))
    rows.sort(key=lambda row: row[0])
    late.sort(key=lambda row: row[0])
    for _, pair in (*rows, *late):
        yield pair


def _above(path: bytes) -> Iterator[bytes]:
    """The paths of the directories above a path."""
    while b"/" in path:
        path = path.rpartition(b"/")[0]
        yield path


def _same_type(one: Node, two: Node) -> bool:
    return stat.S_IFMT(one.mode) == stat.S_IFMT(two.mode)


def _carried(node: Node | None) -> Node | None:
    """The node if git can hold it."""
    return node if node is not None and patching.git_mode(node.mode) is not None else None


def _moved_along(
    old: Tree, new: Tree, changes: Sequence[Change], omitted: Omitted
) -> Iterator[_Pair]:
    """The files in renamed directories that have no change of their own: git knows no directories.

    A renamed directory is walked in the new state; what is listed there by itself is left out, and
    so is what cannot be read.
    """

    def unreadable(path: bytes, error: CowfsError) -> None:
        omitted(path, f"cannot be read: {error}")

    listed = {change.new.path: change for change in changes if change.new is not None}
    for top in changes:
        if top.status != "R" or top.new is None or top.old is None or not top.new.is_dir:
            continue
        stack = [(top.old, top.new)]
        while stack:
            before, after = stack.pop()
            for node in after.entries(unreadable):
                change = listed.get(node.path)
                if change is not None and not (node.is_dir and change.status == "P"):
                    continue
                name = node.path.rpartition(b"/")[2]
                try:
                    twin = old.find(join(before.path, name))
                except CowfsError as error:
                    unreadable(join(before.path, name), error)
                    continue
                if twin is None or twin.ino != node.ino:
                    continue
                if node.is_dir:
                    stack.append((twin, node))
                else:
                    yield twin, node


def _tell_omitted(change: Change, omitted: Omitted) -> None:
    """Report what a patch cannot say of a change."""
    node = change.node
    if node.is_dir:
        _tell_of_directory(change, node, omitted)
    elif _carried(node) is None:
        omitted(change.path, f"a {node.kind}")
        return
    lacking = list(change.attributes)
    if "mode" in lacking and change.old and change.new and not node.is_dir:
        one, two = change.old.permissions, change.new.permissions
        if (one ^ two) & ~0o111 == 0 and one & 0o111 in (0, 0o111) and two & 0o111 in (0, 0o111):
            lacking.remove("mode")
    if lacking:
        omitted(change.path, ", ".join(lacking))


def _tell_of_directory(change: Change, node: Node, omitted: Omitted) -> None:
    """Report a directory that git does not know: it has nothing in it, or cannot be read."""
    failed: list[CowfsError] = []
    if change.status in "AD":
        empty = next(node.entries(lambda path, error: failed.append(error)), None) is None
        if failed:
            omitted(change.path, f"cannot be read: {failed[0]}")
        elif empty:
            omitted(change.path, "an empty directory")


def _patch_of(before: Node | None, after: Node | None, omitted: Omitted) -> bytes:
    """The text of one file's change."""
    node = after or before
    if node is None:
        return b""
    unchanged = before is not None and after is not None and not is_modified(before, after)
    one = _blob(before, unchanged)
    two = _blob(after, unchanged)
    if (before and one is None) or (after and two is None):
        omitted(node.path, "too large or unreadable")
        return patching.differs((before or node).path, (after or node).path)
    return patching.file_patch(one, two)


def _blob(node: Node | None, unchanged: bool) -> patching.Blob | None:
    """A side of a change; None when its content is too large or cannot be read."""
    if node is None:
        return None
    mode = patching.git_mode(node.mode)
    assert mode is not None
    if unchanged:
        return patching.Blob(node.path, mode, b"")  # only whether it is equal matters
    if node.is_symlink:
        return patching.Blob(node.path, mode, node.target)
    if node.size > PATCH_LIMIT:
        return None
    try:
        return patching.Blob(node.path, mode, node.read())
    except CowfsError:
        return None
