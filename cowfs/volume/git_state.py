"""What git's files in a workspace say: the commit and branch of HEAD, and the state of the index.

The files are read where the volume has them, as they are at that moment; git is not run. A few
look-ups, whatever the size of the repository: no directory is listed, and no file is read beyond
`_MOST`. Anything out of the ordinary is left empty: a checkpoint never fails for it, and nothing is
imported, adopted or reported.

A `.git` that is a file or a link may lead out of the workspace (a worktree, a submodule). What lies
there is not read by the volume's owner, who would wait for ever if it were a path into its own
mount, but by who asks for a checkpoint, just before it (`Elsewhere.look`).

Threading: owned by the volume's thread, but for `Elsewhere.look`, which any other one may call.
"""

from __future__ import annotations

import os
import posixpath
import re
import stat
import time
from typing import TYPE_CHECKING

from cowfs.errors import DamagedRecordError
from cowfs.format import records
from cowfs.store.env import LmdbError
from cowfs.types import ROOT_INO
from cowfs.volume import data
from cowfs.volume.importing import recorded_fingerprint
from cowfs.volume.inode import Inode
from cowfs.volume.posix import PosixError, storable

if TYPE_CHECKING:
    from cowfs.volume.volume import Volume

_NOTHING = records.GitState()
_SMALL = 4096
"""Bytes of a file with one line in it."""
_MOST = 1 << 20
"""Bytes of `packed-refs`; a greater one is not searched."""
_DEEPEST = 5
"""Symbolic references to symbolic references: as many as git follows."""
_COMMIT = re.compile(rb"[0-9a-f]{40}|[0-9a-f]{64}")
_BRANCH = b"refs/heads/"


_FRESH_SECONDS = 2.0
"""How long what was read elsewhere is taken for the present state."""


class Elsewhere:
    """The repository of a workspace whose `.git` leads out of it.

    known: whether it was looked where `.git` leads. place: git's directory, absolute; None when it
    is in the workspace, or there is none.
    """

    def __init__(self) -> None:
        self.known = False
        self.place: bytes | None = None
        self._seen: tuple[float, records.GitState] = (-_FRESH_SECONDS, _NOTHING)

    def look(self) -> None:
        """Read the state there. It may block as long as that file system does."""
        if self.place is not None:
            self._seen = time.monotonic(), _state_of(_Outside(self.place))

    @property
    def state(self) -> records.GitState:
        """What was read last, if that was just now."""
        moment, state = self._seen
        return state if time.monotonic() - moment < _FRESH_SECONDS else _NOTHING


def git_state(volume: Volume) -> records.GitState:
    """The state of the repository at the top of the volume's head; empty where there is none."""
    elsewhere = volume.git_elsewhere
    try:
        inside = _Inside(volume)
        inside.find_directory()
        elsewhere.known, elsewhere.place = True, inside.outside
        return elsewhere.state if inside.outside is not None else _state_of(inside)
    except (PosixError, DamagedRecordError, OSError, ValueError):  # a path with a NUL
        return _NOTHING
    except LmdbError as error:
        volume.met_damaged_page(error)
        return _NOTHING


def _state_of(repository: _Repository) -> records.GitState:
    try:
        return repository.state()
    except (OSError, ValueError):
        return _NOTHING


class _Repository:
    """git's layout of files, wherever they lie.

    own: the directory of the working tree, where HEAD and the index are; None if there is none.
    """

    def __init__(self) -> None:
        self.own: bytes | None = None

    def state(self) -> records.GitState:
        own = self.own
        head = self._line(own, b"HEAD") if own is not None else None
        if own is None or head is None:
            return _NOTHING
        common: bytes | None = own
        if (elsewhere := self._line(own, b"commondir")) is not None:
            common = self._join(own, elsewhere)
        if common is None:
            return _NOTHING
        branch = head[5:].strip() if head.startswith(b"ref:") else b""
        if branch.startswith(_BRANCH + b"."):
            return _NOTHING  # "refs/heads/.invalid": references are kept in another way (reftable)
        mtime, size = self._index(own)
        name = branch.removeprefix(_BRANCH).decode("utf-8", "replace")[: records.LONGEST_BRANCH]
        return records.GitState(self._commit(own, common, head), name, mtime, size)

    def _commit(self, own: bytes, common: bytes, head: bytes) -> str:
        value: bytes | None = head
        for _ in range(_DEEPEST):
            if value is None or not value.startswith(b"ref:"):
                break
            name = value[4:].strip()
            value = self._reference(own, common, name)
        return value.decode("ascii") if value and _COMMIT.fullmatch(value) else ""

    def _reference(self, own: bytes, common: bytes, name: bytes) -> bytes | None:
        if not name.startswith(b"refs/") or _below(b"", name) != name or b"\0" in name:
            return None
        for place in {own: None, common: None}:  # a worktree has some of its own
            if (found := self._line(place, name)) is not None:
                return found
        packed = self._read(common + b"/packed-refs", _MOST)
        if packed is None:
            return None
        found_at = packed.find(b" " + name + b"\n")
        return packed[packed.rfind(b"\n", 0, found_at) + 1 : found_at] if found_at > 0 else None

    def _line(self, directory: bytes, name: bytes) -> bytes | None:
        """The content of a small file, without white space at its end; None when there is none."""
        content = self._read(directory + b"/" + name, _SMALL)
        return content.rstrip() if content is not None else None

    def _join(self, directory: bytes, path: bytes) -> bytes | None:
        """Where a path leads from a directory; None when it cannot be read."""
        raise NotImplementedError

    def _index(self, own: bytes) -> tuple[int, int]:
        """(mtime in ns, size); zeros when there is no index."""
        raise NotImplementedError

    def _read(self, path: bytes, most: int) -> bytes | None:
        """The content of a regular file; None when there is none, or it is longer than `most`."""
        raise NotImplementedError


class _Outside(_Repository):
    """Files of the system. Raises OSError where they cannot be read."""

    def __init__(self, own: bytes) -> None:
        super().__init__()
        self.own = own

    def _join(self, directory: bytes, path: bytes) -> bytes | None:
        return posixpath.normpath(posixpath.join(directory, path))

    def _index(self, own: bytes) -> tuple[int, int]:
        try:
            st = os.stat(own + b"/index")
        except (FileNotFoundError, NotADirectoryError):
            return 0, 0
        return storable(st.st_mtime_ns), st.st_size

    def _read(self, path: bytes, most: int) -> bytes | None:
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):
                return None
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            return os.pread(fd, most, 0) if os.fstat(fd).st_size <= most else None
        finally:
            os.close(fd)


class _Inside(_Repository):
    """Files of a volume, relative to its top.

    outside: where `.git` leads when that is out of the workspace, absolute.
    """

    def __init__(self, volume: Volume) -> None:
        super().__init__()
        self.outside: bytes | None = None
        self._volume = volume
        self._view = volume.main
        self._known: dict[tuple[int, bytes], Inode | None] = {}

    def find_directory(self) -> None:
        """See where `.git` is, or leads."""
        dot_git = self._find(b".git")
        if dot_git is None:
            return
        if isinstance(dot_git, Inode) and dot_git.target:
            self._lead(dot_git.target)
            return
        line = self._line(b"", b".git")
        if line is None:
            self.own = b".git"  # whether it is a directory is told by what is found in it
        elif line.startswith(b"gitdir:") and (place := line[7:].strip()) and b"\0" not in place:
            self._lead(place)

    def _lead(self, place: bytes) -> None:
        base = self._volume.base
        top = os.readlink(b"/proc/self/fd/%d" % base.fd) if base is not None else b""
        if place.startswith(b"/"):
            inside = place.startswith(top.rstrip(b"/") + b"/") if top else False
            self.own = _below(b"", place[len(top.rstrip(b"/")) + 1 :]) if inside else None
        else:
            self.own = _below(b"", place)
        if self.own is None and top:
            self.outside = posixpath.normpath(posixpath.join(top, place))

    def _join(self, directory: bytes, path: bytes) -> bytes | None:
        return _below(directory, path)

    def _index(self, own: bytes) -> tuple[int, int]:
        found = self._find(own + b"/index")
        if isinstance(found, bytes):
            assert self._volume.base is not None
            st = self._volume.base.stat(found)
            return (storable(st.st_mtime_ns), st.st_size) if st is not None else (0, 0)
        return (found.mtime, found.size) if found is not None and found.is_file else (0, 0)

    # -- files ----------------------------------------------------------------------------------

    def _find(self, path: bytes) -> Inode | bytes | None:
        """What a path leads to: an inode, or its path in the base where nobody has looked yet; None
        when there is nothing. Links are not followed."""
        view, importer = self._view, self._volume.importer
        at: Inode | None = self._inode(ROOT_INO)
        parts = [part for part in path.split(b"/") if part]
        for number, name in enumerate(parts):
            if at is None or not at.is_dir:
                return None
            if at.entries is not None:
                packed = at.entries.get(name)
                at = self._inode(packed >> 4) if packed is not None else None
                continue
            origin = importer.origin(at.ino)
            if origin is not None and origin.state == records.ORIGIN_UNLISTED:
                if self._volume.base is None:
                    return None
                return b"/".join([importer.base_path(origin), *parts[number:]]).lstrip(b"/")
            key = at.ino, name
            if key not in self._known:
                found = view.snapshot.lookup(at.ino, name)
                self._known[key] = self._inode(found[0]) if found is not None else None
            at = self._known[key]
        return at

    def _inode(self, ino: int) -> Inode | None:
        """An inode as it is now; it does not enter the cache."""
        known = self._view.inodes.get(ino)
        if known is not None:
            return None if known.damaged else known
        record = self._view.snapshot.inode(ino)
        return Inode(ino, record) if record is not None else None

    def _read(self, path: bytes, most: int) -> bytes | None:
        """None also for a file that was changed in the base by others."""
        found = self._find(path)
        if isinstance(found, bytes):
            return self._read_base(found, most)
        if found is None or not found.is_file or found.size > most or not self._is_there(found):
            return None
        return data.read(self._view, found, 0, most)

    def _read_base(self, path: bytes, most: int) -> bytes | None:
        assert self._volume.base is not None
        try:
            fd = self._volume.base.open_file(path)
        except OSError:
            return None
        try:
            st = os.fstat(fd)
            regular = stat.S_ISREG(st.st_mode) and st.st_size <= most
            return os.pread(fd, most, 0) if regular else None
        finally:
            os.close(fd)

    def _is_there(self, inode: Inode) -> bool:
        """Whether what a file has of the base is still what it was: reading it would report that as
        a loss, and opening it, which comes first, would adopt the change."""
        importer, base = self._volume.importer, self._volume.base
        origin = importer.origin(inode.content) if inode.base_size else None
        if origin is None or origin.state == records.ORIGIN_DONE:
            return True
        entry = importer.base_entry(origin.parent, origin.name)
        if origin.state == records.ORIGIN_LOST or base is None or entry is None:
            return False
        path = importer.base_path(origin)
        return base.cached_file(inode.content, path, recorded_fingerprint(entry)) is not None


def _below(directory: bytes, path: bytes) -> bytes | None:
    """A path inside the workspace, relative to its top; None for one outside."""
    joined = posixpath.normpath(posixpath.join(b"/" + directory, path))
    up = posixpath.normpath(posixpath.join(directory or b".", path))
    if path.startswith(b"/") or up == b".." or up.startswith(b"../"):
        return None
    return joined.lstrip(b"/")
