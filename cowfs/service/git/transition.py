"""From one state to the next as commands of fast-import: only what changed is sent.

Where a directory or a file was renamed, git is told to take what the parent commit has there. What
is ignored is left out, by the rules of each state: where rules changed, or a directory moved to
where others count, what lies below is looked through for what became ignored, or is not any more.

Threading: as the trees.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from cowfs.errors import CowfsError
from cowfs.service.content import Node, Tree
from cowfs.service.diff import Change, below
from cowfs.service.git import ignoring
from cowfs.service.git.ignoring import Rules
from cowfs.service.git.importing import FastImport, graft, remove, write

_SMALL = 1 << 20
"""Bytes. Smaller files are read before they are announced, of larger ones it is first seen that
they can be read."""
_IGNORABLE = dict.fromkeys(
    [*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF]
)
"""Characters that HFS+ does not see in a name (git, utf8.c)."""
_LISTED = 100

Command = bytes | Iterator[bytes]


@dataclass
class Report:
    """What could not be put into commits.

    unreadable: path and reason, the first hundred; unreadable_count: how many. special: paths of
    sockets, devices and the like that were passed over. files: how many contents were sent, bytes.
    """

    unreadable: list[tuple[bytes, str]] = field(default_factory=list)
    unreadable_count: int = 0
    special: int = 0
    files: int = 0
    bytes_sent: int = 0

    def failed(self, path: bytes, error: CowfsError) -> None:
        self.unreadable_count += 1
        if len(self.unreadable) < _LISTED:
            self.unreadable.append((path, str(error)))


def is_git(name: bytes) -> bool:
    """Whether git takes a name for that of its own directory, on any system: no commit has it."""
    if len(name) > 64:
        return False
    text = name.decode("utf-8", "replace").translate(_IGNORABLE).lower()
    return text.split(":")[0].rstrip(" .") in (".git", "git~1")


def _in_git(path: bytes) -> bool:
    return any(is_git(name) for name in path.split(b"/"))


class Everything:
    """All files of a state, for a commit without a parent."""

    def __init__(self, tree: Tree, rules: Rules | None, report: Report) -> None:
        self._sender = _Sender(rules, report)
        self._tree = tree

    def commands(self) -> Iterator[Command]:
        for node in self._sender.walk(self._tree.root()):
            yield from self._sender.send(node)


class Transition:
    """From the state of a commit to another one.

    old_rules, rules: what the two states ignore; None for nothing.
    """

    def __init__(
        self,
        new: Tree,
        changes: Sequence[Change],
        rules: tuple[Rules, Rules] | None,
        report: Report,
    ) -> None:
        self._new = new
        self._changes = [
            change
            for change in changes
            if not (_in_git(change.path) and (change.old is None or _in_git(change.old.path)))
        ]
        self._old_rules = rules[0] if rules is not None else None
        self._rules = rules[1] if rules is not None else None
        self._sender = _Sender(self._rules, report)
        moved = [c for c in self._changes if c.status == "R" and c.node.is_dir and c.old]
        self._moved = sorted(((c.old.path, c.path) for c in moved if c.old), key=lambda row: row[1])
        self._all_changes = changes

    def commands(self, importer: FastImport, parent: str) -> Iterator[Command]:
        """What makes the commit `parent`, which is of the old state, one of the new. Git is asked
        at once; files are read as the commands are taken."""
        files = [c for c in self._changes if c.new is not None and not c.new.is_dir]
        wanted = self._wanted(files)
        kept = {c.path: importer.find(parent, c.old.path) for c in wanted if c.old and _is_kept(c)}
        grafts = [(old, new, importer.find(parent, old)) for old, new in self._moved]
        return self._commands(files, {c.path for c in wanted}, kept, grafts)

    def _commands(
        self,
        files: list[Change],
        wanted: set[bytes],
        kept: dict[bytes, tuple[bytes, bytes] | None],
        grafts: list[tuple[bytes, bytes, tuple[bytes, bytes] | None]],
    ) -> Iterator[Command]:
        leaving = {c.old.path for c in self._changes if c.old and self._leaves(c)}
        taken = sorted(path for path in leaving if not _in_git(path))
        yield from map(remove, taken)
        for old, new, found in grafts:
            if found is not None and not _in_git(new):
                yield graft(*found, new)
                for path in taken:
                    if path.startswith(old + b"/"):
                        yield remove(new + path[len(old) :])
        for change in files:
            assert change.new is not None
            have = kept.get(change.path)
            if change.path not in wanted:
                if not _in_git(change.path):
                    yield remove(change.path)
            elif have is not None and have[1]:
                yield graft(_mode(change.new), have[1], change.path)
            else:
                yield from self._sender.send(change.new)
        yield from self._where_others_count({c.path for c in files})

    @staticmethod
    def _leaves(change: Change) -> bool:
        """Whether the old path has something else, or nothing, afterwards."""
        if change.new is None or change.old is None:
            return True
        return change.status in ("R", "T") or change.old.path != change.path

    def _wanted(self, files: list[Change]) -> list[Change]:
        """Those that belong into the commit."""
        here = [c for c in files if not _in_git(c.path)]
        ignored = self._sender.ignored([(c.path, False) for c in here])
        return [c for c in here if c.path not in ignored]

    def _where_others_count(self, done: set[bytes]) -> Iterator[Command]:
        """What was not changed, and became ignored, or is not any more."""
        tops = {new for old, new in self._moved if self._rules is not None or _in_git(old)}
        if self._rules is not None:
            tops |= self._with_other_rules()
        for top in sorted(tops):
            if any(below(top, other) for other in tops if other != top):
                continue
            directory = self._new.find(top)
            if directory is None or not directory.is_dir or _in_git(top):
                continue
            for batch in self._files_below(directory):
                yield from self._settle([n for n in batch if n.path not in done])

    def _settle(self, nodes: list[Node]) -> Iterator[Command]:
        before = {node.path: self._place_before(node.path) for node in nodes}
        places = [(path, False) for path in before.values()]
        was = self._old_rules.ignored(places) if self._old_rules is not None else set()
        now = self._sender.ignored([(path, False) for path in before])
        for node in nodes:
            had = before[node.path] not in was and not _in_git(before[node.path])
            has = node.path not in now
            if had and not has:
                yield remove(node.path)
            elif has and not had:
                yield from self._sender.send(node)

    def _files_below(self, top: Node) -> Iterator[list[Node]]:
        """All files below a directory, those of one directory at a time, ignored ones too."""
        stack = [top]
        while stack:
            found = [n for n in self._sender.entries(stack.pop()) if not is_git(n.name)]
            stack += [node for node in found if node.is_dir]
            yield [node for node in found if not node.is_dir]

    def _with_other_rules(self) -> set[bytes]:
        """Directories of the new state in or below which other rules count than before."""
        found: set[bytes] = set()
        for change in self._all_changes:
            for node, place in ((change.old, self._place_after), (change.new, None)):
                if node is None:
                    continue
                if node.path == ignoring.EXCLUDE:
                    found.add(b"")
                elif node.name == ignoring.NAME:
                    directory = node.path.rpartition(b"/")[0]
                    found.add(place(directory) if place is not None else directory)
                elif node.path in (b".git", b".git/info"):
                    found.add(b"")
        return found

    def _place_before(self, path: bytes) -> bytes:
        """Where a file that was not changed itself was in the old state."""
        return _mapped(path, [(new, old) for old, new in self._moved])

    def _place_after(self, path: bytes) -> bytes:
        return _mapped(path, self._moved)


def needs_other_rules(changes: Iterable[Change]) -> bool:
    """Whether the rules of the new state may differ from those of the old one."""
    return any(
        node is not None
        and (node.is_dir or node.name == ignoring.NAME or node.path == ignoring.EXCLUDE)
        for change in changes
        for node in (change.old, change.new)
    )


def _mapped(path: bytes, places: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A path after renames; the innermost one that it lies in counts."""
    best = max(
        (row for row in places if below(path, row[0])), key=lambda r: len(r[0]), default=None
    )
    return best[1] + path[len(best[0]) :] if best is not None else path


def _is_kept(change: Change) -> bool:
    """Whether the parent commit has the content already."""
    return not change.modified and change.old is not None and change.status in ("R", "P")


def _mode(node: Node) -> bytes:
    if node.is_symlink:
        return b"120000"
    return b"100755" if node.mode & stat.S_IXUSR else b"100644"


class _Sender:
    """Writes files of a state, but for those that are ignored."""

    def __init__(self, rules: Rules | None, report: Report) -> None:
        self._rules = rules
        self._report = report

    def ignored(self, paths: Sequence[tuple[bytes, bool]]) -> set[bytes]:
        return self._rules.ignored(paths) if self._rules is not None else set()

    def entries(self, directory: Node) -> Iterator[Node]:
        return directory.entries(self._report.failed)

    def walk(self, top: Node) -> Iterator[Node]:
        """All files below a directory that belong into a commit."""
        stack = [top]
        while stack:
            found = [node for node in self.entries(stack.pop()) if not is_git(node.name)]
            ignored = self.ignored([(node.path, node.is_dir) for node in found])
            for node in found:
                if node.path in ignored:
                    continue
                if node.is_dir:
                    stack.append(node)
                else:
                    yield node

    def send(self, node: Node) -> Iterator[Command]:
        """A file; nothing in its place if it cannot be read, or git has no such thing."""
        report = self._report
        if node.is_symlink:
            yield write(b"120000", node.path, len(node.target), iter((node.target,)))
            return
        if not node.is_file:
            report.special += 1
            yield remove(node.path)
            return
        try:
            if node.size <= _SMALL:
                pieces = iter((node.read(),))
            else:
                for _ in node.pieces():
                    pass
                pieces = node.stream()
        except CowfsError as error:
            report.failed(node.path, error)
            yield remove(node.path)
            return
        report.files += 1
        report.bytes_sent += node.size
        yield write(_mode(node), node.path, node.size, pieces)
