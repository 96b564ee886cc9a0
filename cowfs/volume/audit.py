"""What the requests of processes change, for the table `audit`.

The mount tells of each request that changed something, with the pid that made it; here it becomes
one operation of that process, folded with what the process did to the same thing before in the same
transaction group. `freeze` hands them to the group, so they are stored together with the changes.

Threading: owned by the volume's thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from cowfs.errors import DamagedRecordError
from cowfs.format import audit as codes
from cowfs.format import keys
from cowfs.format.audit import OUTSIDE, UNKNOWN, encode_audit
from cowfs.store.env import LmdbError
from cowfs.store.group import TransactionGroup
from cowfs.types import ROOT_INO
from cowfs.volume.audit_processes import Processes
from cowfs.volume.posix import PosixError

if TYPE_CHECKING:
    from cowfs.volume.history import Author
    from cowfs.volume.inode import Inode
    from cowfs.volume.view import View
    from cowfs.volume.volume import Volume

_AT_ONCE = 512
"""Operations in one record."""
_MOST_NAMES = 1 << 14
"""Names of things that are kept in memory because the store may not have them yet."""
_LOOK_NS = 10_000_000
"""How long what is known of processes counts at least: a program that calls fsync again and again
closes a group each time, and two looks at /proc take longer than all else that the log does."""
_COUNT, _SIZE, _WHAT = 8, 9, 10
"""Places in an operation."""
_DIRECTORY = 4
_DEEPEST = 4096
_NO_NAME = b"?"
"""Of a directory that is damaged, or below one."""
_KINDS = {"restore": codes.RESTORED, "undo": codes.UNDONE, "redo": codes.REDONE}

_Entry = list[Any]
"""The fields of an `Operation`."""


class _Batch:
    """What one process did since the last group."""

    __slots__ = ("entries", "folded", "places", "time")

    def __init__(self, moment: int) -> None:
        self.time = moment
        self.places: dict[bytes, int] = {}
        self.entries: list[_Entry] = []
        self.folded: dict[int, _Entry] = {}


class Audit:
    """Collects operations. `processes`: who makes them. `outside`: operations by processes of no
    session while one was going on, in this life of the volume, as far as they were stored."""

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self.processes = Processes(volume.reader)
        self._last = keys.unpack_id(volume.reader.last_key("audit") or bytes(8))
        self.outside = 0
        self._batches: dict[int, _Batch] = {}
        self._openers: dict[int, list[int]] = {}
        self._paths: dict[int, bytes] = {ROOT_INO: b""}
        self._names: dict[int, tuple[int, bytes]] = {}
        self._next_look = 0

    # -- requests ---------------------------------------------------------------------------------

    def opened(self, pid: int, ino: int) -> None:
        """A process opened a file for writing: what the kernel writes to it later is its work. A
        pid of -1 is the daemon's own, which writes nothing itself."""
        openers = self._openers.get(ino)
        if pid >= 0:
            process = self.processes.number(pid)
        else:
            process = openers[-1] if openers else UNKNOWN
        if openers is None:
            self._openers[ino] = [process]
        else:
            openers.append(process)

    def closed(self, ino: int) -> None:
        """One of the handles went that can write; nobody says which one: that of a process that
        ended or, if none did, the last one."""
        openers = self._openers.get(ino)
        if openers is None:
            return
        if len(openers) == 1:
            del self._openers[ino]
            return
        different = set(openers)
        ended = different if len(different) == 1 else filter(self.processes.has_ended, different)
        process = next(iter(ended), openers[-1])
        del openers[len(openers) - 1 - openers[::-1].index(process)]

    def made(self, pid: int, directory: int, name: bytes, inode: Inode) -> None:
        """A new file, directory, link or special file."""
        ino = inode.ino
        names = self._names
        if len(names) >= _MOST_NAMES:
            names.clear()
        names[ino] = directory, name
        batch = self._batch(self.processes.number(pid))
        batch.folded[ino] = self._add(batch, codes.MADE, ino, inode.kind, directory, name)

    def wrote(self, inode: Inode, size: int) -> None:
        """The kernel wrote back: of whoever opened the file last."""
        openers = self._openers.get(inode.ino)
        process = openers[-1] if openers else UNKNOWN
        batch = self._batches.get(process)
        entry = batch.folded.get(inode.ino) if batch is not None else None
        if entry is None:
            if inode.orphan_epoch:
                return
            entry = self._entry(process, inode, codes.WROTE)
        elif entry[0] == codes.ATTRIBUTES:
            entry[0] = codes.WROTE
        entry[_COUNT] += 1
        entry[_SIZE] += size
        if process in self.processes.fresh:
            self.processes.writes(process)

    def changed(self, pid: int, inode: Inode, what: int) -> None:
        """The size (`CUT`) or attributes were set; `what` has the bits of `Operation.what`."""
        if inode.orphan_epoch:
            return
        code = codes.WROTE if what & codes.CUT else codes.ATTRIBUTES
        entry = self._entry(self.processes.number(pid), inode, code)
        if what & codes.CUT and entry[0] == codes.ATTRIBUTES:
            entry[0] = codes.WROTE
        entry[_COUNT] += 1
        entry[_WHAT] |= what

    def removed(self, pid: int, directory: int, name: bytes, inode: Inode) -> None:
        """A name is gone."""
        batch = self._batch(self.processes.number(pid))
        self._add(batch, codes.REMOVED, inode.ino, inode.kind, directory, name)
        self._moved(inode.ino, inode.kind, None)

    def linked(self, pid: int, inode: Inode, directory: int, name: bytes) -> None:
        """Another name for a file."""
        batch = self._batch(self.processes.number(pid))
        old_directory, old_name = self._place(inode)
        entry = self._add(batch, codes.LINKED, inode.ino, inode.kind, directory, name)
        entry[6], entry[7] = self._directory(batch, old_directory), old_name

    def renamed(
        self,
        pid: int,
        directory: int,
        name: bytes,
        to_directory: int,
        to_name: bytes,
        replaced: Inode | None,
    ) -> None:
        """rename(2) was done. Two names of one file, and a name and itself, are no change."""
        entries = self._view.directory(to_directory).entries or {}
        left = (self._view.directory(directory).entries or {}).get(name)
        packed = entries.get(to_name, 0)
        if not packed or left == packed:
            return
        batch = self._batch(self.processes.number(pid))
        code = codes.EXCHANGED if left is not None else codes.RENAMED
        entry = self._add(batch, code, packed >> 4, packed & 15, directory, name)
        entry[6], entry[7] = self._directory(batch, to_directory), to_name
        if replaced is not None:
            entry[_WHAT] = codes.REPLACED
            self._moved(replaced.ino, replaced.kind, None)
        self._moved(packed >> 4, packed & 15, (to_directory, to_name))
        if left is not None:
            self._moved(left >> 4, left & 15, (directory, name))

    # -- what is no request -----------------------------------------------------------------------

    def adopted(self, code: int, path: bytes, inode: Inode) -> None:
        """Something was changed in the base directory itself."""
        directory, _, name = path.rpartition(b"/")
        batch = self._batch(OUTSIDE)
        after = max(time.time_ns() - batch.time, 0)
        place = batch.places.setdefault(directory, len(batch.places))
        kind = inode.kind
        batch.entries.append([code, after, inode.ino, kind, place, name, 0, b"", 1, 0, 0])

    def restored(
        self,
        author: Author,
        operation: str,
        target: str,
        paths: Iterable[bytes],
        epoch: int,
    ) -> None:
        """A restore, undo or redo, of the whole tree (b"") or of paths, goes with the next group.
        epoch: that shows what it did."""
        group = self._volume.extra
        process = self.processes.of(author.pid, author.uid, author.user, author.command)
        places: dict[bytes, int] = {}
        entries = []
        for path in paths:
            directory, _, name = path.rpartition(b"/")
            place = places.setdefault(directory, len(places))
            entries.append((_KINDS[operation], 0, 0, 0, place, name, 0, b"", 1, 0, 0))
        self.processes.put(process, group)
        row = encode_audit(epoch, time.time_ns(), process, list(places), entries, target)
        group.put("audit", keys.pack_id(self._number()), row)

    # -- groups -----------------------------------------------------------------------------------

    def freeze(self, group: TransactionGroup) -> None:
        """Put everything into the group that has the changes themselves."""
        if not self._batches:
            return
        now = time.monotonic_ns()
        due = now >= self._next_look
        if due:
            self._next_look = now + _LOOK_NS
            for process in self.processes.fresh & self._batches.keys():
                self.processes.refresh(process)
        for process, batch in self._batches.items():
            self.processes.put(process, group)
            places, entries = list(batch.places), batch.entries
            if self.processes.is_outside(process):
                self.outside += len(entries)
            for at in range(0, len(entries), _AT_ONCE):
                some = entries[at : at + _AT_ONCE]
                named = places if len(entries) <= _AT_ONCE else _only_used(places, some)
                row = encode_audit(group.epoch, batch.time, process, named, some)
                group.put("audit", keys.pack_id(self._number()), row)
        self._batches = {}
        if due:
            self.processes.next_round(self._writing)

    def writers(self) -> dict[int, set[int]]:
        """Inodes that are open for writing, to the pids of those who opened them, as far as
        anybody can name them."""
        found: dict[int, set[int]] = {}
        for ino, openers in self._openers.items():
            if pids := {self.processes.pid(number) for number in openers} - {UNKNOWN}:
                found[ino] = pids
        return found

    def path_of(self, inode: Inode) -> bytes:
        """The path of a thing as it is now, b"" of the top and when nobody knows."""
        directory, name = self._place(inode)
        above = self._path(directory)
        return above + b"/" + name if above and name else above or name

    def _writing(self) -> set[int]:
        """Processes that have a file open for writing."""
        return {process for openers in self._openers.values() for process in openers}

    def forget_places(self) -> None:
        """Names changed otherwise than by requests."""
        self._paths = {ROOT_INO: b""}
        self._names.clear()
        for batch in self._batches.values():
            batch.folded.clear()

    def _number(self) -> int:
        self._last = max(time.time_ns(), self._last + 1)
        return self._last

    # -- operations -------------------------------------------------------------------------------

    @property
    def _view(self) -> View:
        return self._volume.main

    def _batch(self, process: int) -> _Batch:
        batch = self._batches.get(process)
        if batch is None:
            batch = self._batches[process] = _Batch(time.time_ns())
        return batch

    def _add(
        self, batch: _Batch, code: int, ino: int, kind: int, directory: int, name: bytes
    ) -> _Entry:
        path = self._paths.get(directory)
        if path is None:
            path = self._path(directory)
        place = batch.places.get(path)
        if place is None:
            place = batch.places[path] = len(batch.places)
        after = time.time_ns() - batch.time
        if after < 0:
            after = 0  # the clock went back
        entry = [code, after, ino, kind, place, name, 0, b"", 1, 0, 0]
        batch.entries.append(entry)
        return entry

    def _entry(self, process: int, inode: Inode, code: int) -> _Entry:
        """What a process did to a thing in this group, new with a count of 0."""
        batch = self._batch(process)
        entry = batch.folded.get(inode.ino)
        if entry is None:
            directory, name = self._place(inode)
            entry = self._add(batch, code, inode.ino, inode.kind, directory, name)
            entry[_COUNT] = 0
            batch.folded[inode.ino] = entry
        return entry

    def _directory(self, batch: _Batch, directory: int) -> int:
        return batch.places.setdefault(self._path(directory), len(batch.places))

    def _moved(self, ino: int, kind: int, place: tuple[int, bytes] | None) -> None:
        """A thing has another name, or (None) has lost one: nothing is folded over that."""
        for batch in self._batches.values():
            batch.folded.pop(ino, None)
        if place is not None:
            self._names[ino] = place
        else:
            self._names.pop(ino, None)
        if kind == _DIRECTORY:
            if place is None:
                self._paths.pop(ino, None)
            else:
                self._paths = {ROOT_INO: b""}

    # -- paths ------------------------------------------------------------------------------------

    def _path(self, directory: int) -> bytes:
        """The path of a directory as it is now."""
        trail: list[tuple[int, bytes]] = []
        at = directory
        while (path := self._paths.get(at)) is None:
            above, name = self._above(at)
            if len(trail) > _DEEPEST:
                above, name = ROOT_INO, _NO_NAME  # damaged directories lead in a circle
            trail.append((at, name))
            at = above
        for ino, name in reversed(trail):
            path = self._paths[ino] = path + b"/" + name if path else name
        return path

    def _place(self, inode: Inode) -> tuple[int, bytes]:
        """(directory, name) of a thing, (root, b"") when the store does not know it yet: whoever
        reads the log finds it by its number then."""
        if inode.ino == ROOT_INO:
            return ROOT_INO, b""
        if inode.is_dir:
            return self._above(inode.ino)
        known = self._names.get(inode.ino)
        if known is not None and self._leads_to(*known, inode):
            return known
        for place in self._links(inode.ino):
            if self._leads_to(*place, inode):
                self._names[inode.ino] = place
                return place
        return ROOT_INO, b""

    def _links(self, ino: int) -> list[tuple[int, bytes]]:
        """The names that the store knows. What was done is done: damage is for others to report."""
        try:
            return self._view.snapshot.links(ino)
        except DamagedRecordError:
            return []
        except LmdbError as error:
            self._volume.met_damaged_page(error)
            return []

    def _above(self, ino: int) -> tuple[int, bytes]:
        """(directory above, name) of a directory."""
        try:
            inode = self._view.directory(ino)
            above = self._view.parent_of(inode)
            return above, self._name(inode, above)
        except (PosixError, DamagedRecordError):
            return ROOT_INO, _NO_NAME
        except LmdbError as error:
            self._volume.met_damaged_page(error)
            return ROOT_INO, _NO_NAME

    def _name(self, directory: Inode, above: int) -> bytes:
        """The name of a directory in the one above it."""
        known = self._names.get(directory.ino)
        if known is not None and self._leads_to(*known, directory):
            return known[1]
        packed = directory.ino << 4 | _DIRECTORY
        for place in self._links(directory.ino):
            if self._leads_to(*place, directory):
                return place[1]
        entries = self._view.directory(above).entries or {}
        return next((name for name, found in entries.items() if found == packed), _NO_NAME)

    def _leads_to(self, directory: int, name: bytes, inode: Inode) -> bool:
        """Whether a name is one of an inode. A directory that is not in memory has no changes."""
        parent = self._view.inodes.get(directory)
        if parent is None or parent.entries is None:
            return True
        return parent.entries.get(name) == inode.ino << 4 | inode.kind


def _only_used(places: list[bytes], entries: list[_Entry]) -> list[bytes]:
    """The directories that some of the entries of a batch name; their places become those."""
    moved: dict[int, int] = {}
    for entry in entries:
        entry[4] = moved.setdefault(entry[4], len(moved))
        entry[6] = moved.setdefault(entry[6], len(moved)) if entry[7] else 0
    return [places[old] for old in moved]
