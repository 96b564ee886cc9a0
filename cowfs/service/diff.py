"""What differs between two states.

The work is that of the changes: only what the epochs between the two states touched is looked at,
never the tree. A file's identity is its inode, so a rename is known, not guessed.

How names are matched. Every name that only one state has is *gone* or *new* (a name is a place
in a directory and the inode there). First a gone and a new name of one inode are paired: at equal
paths it is the same file, at different ones it was renamed (R). Then a gone and a new name at
one path are paired: the file was replaced, as editors and git do it (M, P, T, or no change).
What is left was deleted (D) or added (A). So each path of the old state is taken away by one
change at most, and each path of the new state is made by one at most; a file that was
overwritten by a rename is a D beside the R. Directories are matched before what is in them: where
a directory moved away and a new one took its path, nothing in the two is paired by path (a file
that stayed at its path while its directory moved is an R with two equal paths).

Threading: as the workspace.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from cowfs.errors import CowfsError, DamagedRecordError, UnknownPathError
from cowfs.service.content import Failed, Node, Tree, join, same_content
from cowfs.service.selectors import Point
from cowfs.service.workspace import ReadOnly
from cowfs.tree.changes import touched_between

STATUSES = {
    "A": "added",
    "D": "deleted",
    "M": "modified",
    "P": "attributes",
    "R": "renamed",
    "T": "type changed",
}
_ORDER = "DRTMPA"


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that differs.

    status: a key of `STATUSES`. P: only attributes differ.
    path: in the new state; for D in the old one; b"" is the top directory.
    old_path: in the old state when that is another one (R, or a directory above was renamed).
    old, new: the file in the two states; None for A and D respectively.
    modified: the content differs (always for A, D, M and T).
    attributes: which of mode, owner, group, xattrs, mtime differ (mtime only if it was asked for).
    link_of: another path of the same file, which accounts for its content: for A a hard link was
    made, for D one of several names went, for M the change is listed there too.
    """

    status: str
    path: bytes
    old_path: bytes | None
    old: Node | None
    new: Node | None
    modified: bool
    attributes: tuple[str, ...] = ()
    link_of: bytes | None = None

    @property
    def node(self) -> Node:
        """The file as it is in the new state, in the old one if it was deleted."""
        node = self.new or self.old
        assert node is not None
        return node

    def to_json(self) -> dict[str, Any]:
        """Plain data; a byte of a name that is not UTF-8 becomes a lone surrogate."""
        return {
            "status": self.status,
            "path": os.fsdecode(self.path) or ".",
            "old_path": None if self.old_path is None else os.fsdecode(self.old_path),
            "type": self.node.kind,
            "modified": self.modified,
            "attributes": list(self.attributes),
            "link_of": None if self.link_of is None else os.fsdecode(self.link_of),
            "old": self.old.to_json() if self.old else None,
            "new": self.new.to_json() if self.new else None,
        }


@dataclass(frozen=True, slots=True)
class _Name:
    """A name that only one of the states has."""

    path: bytes
    node: Node


def diff(
    workspace: ReadOnly,
    a: Point,
    b: Point,
    paths: Iterable[bytes] = (),
    *,
    times: bool = False,
    failed: Failed | None = None,
) -> list[Change]:
    """What must happen to state `a` to become state `b`, sorted by path.

    paths: only what is at or below these, in either state; relative to the top.
    times: also report files and directories of which only the mtime differs.
    failed: told of what cannot be listed or is damaged, which is then left out; without it that is
    an error.
    A renamed directory is one R; what changed in it is listed at its new path. Added and deleted
    directories are listed with everything in them. Names of a hard-linked file in base directories
    that nobody looked into yet are not known, and so not listed.
    Raises UnknownPathError for a path that neither state has, ContentLostError when an added or
    deleted base directory cannot be listed any more, DamagedRecordError.
    """
    old, new = Tree(workspace, a), Tree(workspace, b)
    wanted = [_check_path(old, new, path) for path in paths]
    changes = _Comparison(old, new, times, failed).run()
    if wanted and b"" not in wanted:
        changes = _restrict(old, new, changes, wanted)
    changes.sort(key=lambda change: (change.path, _ORDER.index(change.status)))
    return changes


def count(changes: Iterable[Change]) -> dict[str, int]:
    """How many changes there are of each status, in words (`STATUSES`)."""
    counts = dict.fromkeys(STATUSES.values(), 0)
    for change in changes:
        counts[STATUSES[change.status]] += 1
    return counts


# -- finding the changes -------------------------------------------------------------------------


class _Comparison:
    """Compares two trees by what was touched between them."""

    def __init__(self, old: Tree, new: Tree, times: bool, failed: Failed | None) -> None:
        self.old = old
        self.new = new
        self.times = times
        self.failed = failed
        self.changes: list[Change] = []
        self._gone: dict[bytes, Node] = {}
        self._made: dict[bytes, Node] = {}

    def run(self) -> list[Change]:
        touched = touched_between(
            self.old.reader, self.old.snapshot.lineage, self.new.snapshot.lineage
        )
        for parent, name in touched.names:
            try:
                self._compare_name(parent, name)
            except DamagedRecordError as error:
                self._report(name, error)
        kept = self._kept(touched.inodes)
        self._match()
        for before, after, link_of in kept:
            self._pair(before, after, link_of)
        return self.changes

    def _report(self, path: bytes, error: CowfsError) -> None:
        if self.failed is None:
            raise error
        self.failed(path, error)

    # names

    def _compare_name(self, parent: int, name: bytes) -> None:
        before = self._there(self.old, parent, name)
        after = self._there(self.new, parent, name)
        if before is not None and after is not None and before.ino == after.ino:
            return
        if before is not None:
            _collect(before, self._gone, self.new, self.failed)
        if after is not None:
            _collect(after, self._made, self.old, self.failed)

    @staticmethod
    def _there(tree: Tree, parent: int, name: bytes) -> Node | None:
        above = tree.directory_path(parent)
        if above is None:
            return None
        found = tree.snapshot.lookup(parent, name)
        return tree.node(found[0], join(above, name)) if found else None

    def _match(self) -> None:
        """Pair the names that are gone with those that are new; the rest is D and A."""
        gone, made = self._gone, self._made
        by_inode = _same_inode(gone, made)
        place = _Places(gone, {before.path: after.path for before, after in by_inode})
        pairs: list[tuple[Node, Node]] = []
        for before, after in by_inode:
            del gone[before.path], made[after.path]
            if before.path == after.path and place.stays(before.path):
                pairs.append((before, after))
            else:
                self._renamed(before, after)
        for path in sorted(made.keys() & gone.keys()):
            # What was in a directory that moved away is not what is in a new one in its place.
            if place.stays(path):
                pairs.append((gone.pop(path), made.pop(path)))
                place.known[path] = path
        for before, after in pairs:
            self._pair(before, after, None)
        self._deleted(gone)
        self._added(made, {after.ino: after.path for _, after in (*pairs, *by_inode)})

    def _deleted(self, gone: dict[bytes, Node]) -> None:
        for path in sorted(gone):
            node = gone[path]
            link = None
            if not node.is_dir and node.ino and node.nlink > 1:
                left = self.new.names(node.ino)
                link = left[0][2] if left else None
            self.changes.append(Change("D", path, None, node, None, True, (), link))

    def _added(self, made: dict[bytes, Node], first: dict[int, bytes]) -> None:
        for path in sorted(made):
            node = made[path]
            link = None
            if not node.is_dir and node.ino and node.nlink > 1:
                if node.ino not in first:
                    others = [p for _, _, p in self.new.names(node.ino) if p not in made]
                    if others:
                        first[node.ino] = others[0]
                link = first.setdefault(node.ino, path)
                link = None if link == path else link
            self.changes.append(Change("A", path, None, None, node, True, (), link))

    # inodes

    def _kept(self, touched: set[int]) -> list[tuple[Node, Node, bytes | None]]:
        """The names that touched inodes have in both states: (old node, new node, first path)."""
        out: list[tuple[Node, Node, bytes | None]] = []
        for ino in sorted(touched):
            try:
                if self.old.snapshot.inode(ino) is None or self.new.snapshot.inode(ino) is None:
                    continue
            except DamagedRecordError as error:
                names = self.new.names(ino) or self.old.names(ino)
                self._report(names[0][2] if names else b"", error)
                continue
            if ino == 1:
                out.append((self.old.root(), self.new.root(), None))
                continue
            before = {(parent, name): path for parent, name, path in self.old.names(ino)}
            first: bytes | None = None
            for parent, name, path in self.new.names(ino):
                if (parent, name) in before:
                    one = self.old.node(ino, before[parent, name])
                    out.append((one, self.new.node(ino, path), first))
                    first = first or path
        return out

    # pairs

    def _pair(self, before: Node, after: Node, link_of: bytes | None) -> None:
        """Two states of what is the same thing to the user."""
        old_path = before.path if before.path != after.path else None
        attributes = changed_attributes(before, after, times=self.times)
        if stat.S_IFMT(before.mode) != stat.S_IFMT(after.mode):
            status, modified = "T", True
        else:
            modified = is_modified(before, after)
            if modified:
                status = "M"
            elif attributes:
                status = "P"
            else:
                return
        self.changes.append(
            Change(status, after.path, old_path, before, after, modified, attributes, link_of)
        )

    def _renamed(self, before: Node, after: Node) -> None:
        self.changes.append(
            Change(
                "R",
                after.path,
                before.path,
                before,
                after,
                is_modified(before, after),
                changed_attributes(before, after, times=self.times),
            )
        )


def _same_inode(gone: dict[bytes, Node], made: dict[bytes, Node]) -> list[tuple[Node, Node]]:
    """Pairs of a gone and a new name of one inode, those at equal paths first."""
    leaving: dict[int, dict[bytes, Node]] = {}
    for path in sorted(gone):
        if ino := gone[path].ino:
            leaving.setdefault(ino, {})[path] = gone[path]
    coming = [made[path] for path in sorted(made) if made[path].ino in leaving]
    pairs = []
    rest = []
    for after in coming:
        before = leaving[after.ino].pop(after.path, None)
        if before is not None:
            pairs.append((before, after))
        else:
            rest.append(after)
    for after in rest:
        names = leaving[after.ino]
        if names:
            pairs.append((names.pop(next(iter(names))), after))
    return pairs


class _Places:
    """Where the paths of the old state lead in the new one.

    known: old path to new path of what was matched; it grows while matching goes on.
    """

    def __init__(self, gone: dict[bytes, Node], known: dict[bytes, bytes]) -> None:
        self._gone = gone
        self.known = known

    def stays(self, path: bytes) -> bool:
        """Whether the directory that a path is in has the same path in the new state."""
        directory = path.rpartition(b"/")[0]
        return self._of(directory) == directory

    def _of(self, path: bytes) -> bytes | None:
        rest = b""
        at = path
        while at:
            found = self.known.get(at)
            if found is not None:
                return found + rest
            if at in self._gone:
                return None
            at, _, name = at.rpartition(b"/")
            rest = b"/" + name + rest
        return rest[1:]


def _collect(top: Node, into: dict[bytes, Node], other: Tree, failed: Failed | None) -> None:
    """A name that only one state has, and everything below it that moved with it.

    The entries of a directory that the other state has too stay entries of it there.
    """
    stack = [top]
    while stack:
        node = stack.pop()
        if node.path in into:
            continue
        into[node.path] = node
        if node.is_dir and not (node.ino and other.has(node.ino)):
            stack.extend(node.entries(failed))


def changed_attributes(before: Node, after: Node, *, times: bool = False) -> tuple[str, ...]:
    """Which attributes differ: mode, owner, group, xattrs; with `times` mtime, too."""
    out = []
    if before.permissions != after.permissions:
        out.append("mode")
    if before.uid != after.uid:
        out.append("owner")
    if before.gid != after.gid:
        out.append("group")
    if before.xattrs != after.xattrs:
        out.append("xattrs")
    if times and before.mtime != after.mtime:
        out.append("mtime")
    return tuple(out)


def is_modified(before: Node, after: Node) -> bool:
    """Whether the content of a file, link or device changed; a directory has none."""
    if before.is_dir:
        return False
    try:
        return not same_content(before, after)
    except CowfsError:
        return True  # what cannot be read any more is not known to be the same


# -- restricting ---------------------------------------------------------------------------------


def _check_path(old: Tree, new: Tree, path: bytes) -> bytes:
    clean = b"/".join(part for part in path.split(b"/") if part not in (b"", b"."))
    if clean and new.find(clean) is None and old.find(clean) is None:
        where = f"{old.point.name} and {new.point.name}"
        raise UnknownPathError(path=os.fsdecode(clean), where=where)
    return clean


def below(path: bytes, top: bytes) -> bool:
    """Whether a path is `top` or lies below it."""
    return path == top or not top or path.startswith(top + b"/")


def _restrict(old: Tree, new: Tree, changes: list[Change], wanted: list[bytes]) -> list[Change]:
    out = [
        change
        for change in changes
        if any(
            below(change.path, top) or (change.old_path is not None and below(change.old_path, top))
            for top in wanted
        )
    ]
    listed = {change.path for change in out}
    for change in changes:
        # What was asked for may lie inside a renamed directory: then it was renamed with it.
        if change.status != "R" or not change.node.is_dir:
            continue
        assert change.old_path is not None
        for top in wanted:
            for place in (change.path, change.old_path):
                if place == top or not below(top, place):
                    continue
                rest = top[len(place) :]
                before, after = old.find(change.old_path + rest), new.find(change.path + rest)
                if before is None or after is None or before.ino != after.ino:
                    continue
                if after.path not in listed:
                    listed.add(after.path)
                    modified = is_modified(before, after)
                    out.append(Change("R", after.path, before.path, before, after, modified))
    return out
