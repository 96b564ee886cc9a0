"""What watchers of directories and files should hear of a restore.

inotify(7) reports what goes through system calls; a restore changes names and contents below the
kernel. The mount layer causes the events (mount/watchers.py); here is decided which.

Threading: pure functions on snapshots of the calling thread.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass, field

from cowfs.store.snapshot import Snapshot
from cowfs.tree.changes import Touched

_DIRECTORY = 4


@dataclass(frozen=True, slots=True)
class Gone:
    """A name that is not there any more, or is another inode's."""

    path: bytes
    ino: int
    is_directory: bool


@dataclass(frozen=True, slots=True)
class Appeared:
    """A name that is there now. `target`: of a symbolic link."""

    path: bytes
    parent: int
    name: bytes
    ino: int
    mode: int
    target: bytes


@dataclass(frozen=True, slots=True)
class Modified:
    """A file that has other content or attributes now; sizes in bytes, times in ns."""

    path: bytes
    parent: int
    name: bytes
    mode: int
    size: int
    atime: int
    mtime: int


@dataclass(slots=True)
class Announcement:
    """gone: files before the directories they were in. directories: (path, mode) of watched
    directories, when single names would be too many."""

    gone: list[Gone] = field(default_factory=list)
    appeared: list[Appeared] = field(default_factory=list)
    modified: list[Modified] = field(default_factory=list)
    directories: list[tuple[bytes, int]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.gone) + len(self.appeared) + len(self.modified)


def announcement(
    before: Snapshot, after: Snapshot, touched: Touched, watched: set[int], limit: int
) -> Announcement:
    """What the watchers of the inodes in `watched` should hear.

    Above `limit` names only the directories in which something changed are announced.
    """
    found = Announcement()
    changed: set[int] = set()
    for parent, name in sorted(touched.names):
        if parent not in watched:
            continue
        old, new = before.lookup(parent, name), after.lookup(parent, name)
        above = before.directory_path(parent)
        moved = old is not None and old[1] == _DIRECTORY and after.inode(old[0]) is not None
        if old is not None and above is not None and not moved:
            # (A directory that only moved is alive; rmdir(2) would kill the kernel's inode.)
            found.gone.append(Gone(_join(above, name), old[0], old[1] == _DIRECTORY))
        if new is not None:
            _add_appeared(found, after, parent, name, new[0])
        changed.add(parent)
    found.gone.sort(key=lambda row: (-row.path.count(b"/"), row.path))
    found.appeared.sort(key=lambda row: (row.path.count(b"/"), row.path))
    for ino in sorted(touched.inodes):
        changed.update(_add_modified(found, after, touched, watched, ino))
    if len(found) > limit:
        return Announcement(directories=_paths(after, changed))
    return found


def _join(above: bytes, name: bytes) -> bytes:
    return above + b"/" + name if above else name


def _add_appeared(found: Announcement, after: Snapshot, parent: int, name: bytes, ino: int) -> None:
    above, record = after.directory_path(parent), after.inode(ino)
    if above is not None and record is not None:
        path = _join(above, name)
        found.appeared.append(Appeared(path, parent, name, ino, record.mode, record.target))


def _add_modified(
    found: Announcement, after: Snapshot, touched: Touched, watched: set[int], ino: int
) -> set[int]:
    """Announce a changed file under the names that stayed; returns the directories concerned."""
    record = after.inode(ino)
    if record is None or stat.S_ISDIR(record.mode) or stat.S_ISLNK(record.mode):
        return set()
    directories = set()
    for parent, name in after.links(ino):
        if (parent, name) in touched.names or not (parent in watched or ino in watched):
            continue
        above = after.directory_path(parent)
        if above is None:
            continue
        found.modified.append(
            Modified(
                _join(above, name),
                parent,
                name,
                record.mode,
                record.size,
                record.atime,
                record.mtime,
            )
        )
        directories.add(parent)
    return directories


def _paths(after: Snapshot, inodes: set[int]) -> list[tuple[bytes, int]]:
    rows = []
    for ino in sorted(inodes):
        path, record = after.directory_path(ino), after.inode(ino)
        if path is not None and record is not None:
            rows.append((path or b".", record.mode))
    return rows
