"""Checkpoints that somebody looks into while the workspace goes on: sealed views.

A checkpoint is found by its id; other names of it, labels and prefixes of the id, are links to that
(`Visits.find_name`). Its tree is a `SealedView`: the store seen through the checkpoint's lineage,
without anything that is not committed. A base directory that nobody listed yet is listed when
somebody looks for its entries, in the head if that has it (`SealedView.bring`); they are shown when
they are committed (`NotStoredError`).

The kernel's references and open handles are counted for each checkpoint, not for each inode:
everything else can be read again, so what is kept in memory is bounded. When both are gone the
number of the view is used for another one. When there are many the kernel is asked to let go of
those that were looked into longest ago (`Visits.let_go`).

A checkpoint that was removed meanwhile is gone (ESTALE) as soon as its record is: who removes one
must remove its record before, or together with, what it shows. Who removes one that nobody named
leaves out what somebody looks into (`Visits.browsed`).

Threading: owned by the volume's thread.
"""

from __future__ import annotations

import errno
import math
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from cowfs.errors import DamagedRecordError
from cowfs.format import records
from cowfs.store.lineage import Lineage
from cowfs.store.snapshot import Reader, Snapshot
from cowfs.types import NAME_MAX
from cowfs.volume.inode import Inode
from cowfs.volume.posix import PosixError
from cowfs.volume.view import View

if TYPE_CHECKING:
    from cowfs.volume.volume import Volume

_ID = re.compile(rb"[0-9a-f]{12}")
_PREFIX = re.compile(rb"[0-9a-f]{4,11}")

_LONGEST = 500
"""Bytes; no key of the store is longer (511, LMDB)."""

_RECENT_SECONDS = 600.0
"""For so long who looked into a checkpoint is taken to go on: a tool or a person does not hold
anything between two looks."""
_HELD_SECONDS = 86_400.0
"""For so long who may hold something of it is. After that the kernel may only have failed to let
go: what was held while it was asked stays in its cache until the path is looked up again."""

CHECKPOINT, LINK, DIRECTORY = "checkpoint", "link", "directory"


class NotStoredError(Exception):
    """The entries of a directory are not committed: `bring` it and commit, then they are."""


class SealedView(View):
    """The tree of a checkpoint, which never changes.

    Its directories keep no entries: a name is looked up in the store, and who lists one keeps the
    list.
    """

    def __init__(self, volume: Volume, checkpoint: str, lineage: Lineage) -> None:
        super().__init__(volume, 0, "", lineage)
        self.checkpoint = checkpoint
        self._whole: set[int] = set()

    @property
    def snapshot(self) -> Snapshot:
        if self._snapshot is None or self._snapshot.reader is not self.volume.reader:
            self._snapshot = Snapshot(self.volume.reader, self.lineage)
            self._whole.clear()
        return self._snapshot

    def is_thinned(self, inode: Inode) -> bool:
        snapshot = self.snapshot
        if inode.content in self._whole:
            return False
        try:
            if snapshot.is_thinned(inode.content):
                return True
        except DamagedRecordError:
            return False  # who reads what is damaged is told
        self._whole.add(inode.content)
        return False

    def is_listed(self, directory: int) -> bool:
        """Whether the store has the entries of a directory, as far as it ever will, in a commit
        that is seen."""
        importer = self.volume.importer
        if importer.is_fresh(directory):
            return False
        origin = importer.origin(directory)
        return origin is None or origin.state != records.ORIGIN_UNLISTED

    def _require_stored(self, directory: int, *, brought: bool) -> None:
        inode = self.inode(directory)
        if not inode.is_dir:
            raise PosixError(errno.ENOTDIR)
        if not brought and not self.is_listed(directory):
            raise NotStoredError
        origin = self.volume.importer.origin(directory)
        if origin is not None and origin.state == records.ORIGIN_LOST:
            path = self.snapshot.directory_path(directory) or b""
            detail = f"checkpoint {self.checkpoint[:8]} cannot show it: it was removed outside"
            self.volume.problem("lost", path, f"{detail} before it was read")
            raise PosixError(errno.EIO)

    def find(self, directory: int, name: bytes, *, brought: bool = False) -> Inode | None:
        """The inode of a name, None when there is none; it may be `damaged`.

        brought: `bring` was called, and what it found is committed. Raises NotStoredError,
        PosixError.
        """
        if len(name) > NAME_MAX:
            raise PosixError(errno.ENAMETOOLONG)
        self._require_stored(directory, brought=brought)
        try:
            found = self.snapshot.lookup(directory, name)
            packed = found[0] << 4 | found[1] if found is not None else None
        except DamagedRecordError:
            packed = self.stored_entries(directory).get(name)
        return self.named(packed) if packed is not None else None

    def listing(self, directory: int, *, brought: bool = False) -> list[tuple[bytes, int]]:
        """(name, ino << 4 | kind) of a directory. `brought` and errors as of `find`."""
        self._require_stored(directory, brought=brought)
        return list(self.stored_entries(directory).items())

    def bring(self, directory: int) -> None:
        """List the base directory behind one, if that was not done. Raises PosixError."""
        main = self.volume.main
        try:
            lives = not main.inode(directory).orphan_epoch
        except PosixError:
            lives = False
        if lives:
            main.directory(directory)
        else:
            self.volume.importer.list_directory(self, self.inode(directory))
        self.inodes.clear()  # its link count is known now, and others are not committed


class Visit:
    """A checkpoint that somebody looks into.

    number: of its view. turn: another one for each use of a number. uses: references of the kernel
    to inodes below its root, and open handles. seen: the reader in which its record was there.
    looked: when its tree was last asked for, by the clock of `Visits`. thinned: as of its record.
    """

    __slots__ = ("checkpoint", "epoch", "looked", "number", "seen", "thinned", "turn", "uses")

    def __init__(self, number: int, turn: int, checkpoint: str, epoch: int, seen: Reader) -> None:
        self.number = number
        self.turn = turn
        self.checkpoint = checkpoint
        self.epoch = epoch
        self.uses = 0
        self.seen = seen
        self.looked = -math.inf
        self.thinned = False


class Name(NamedTuple):
    """What a path below `checkpoints` is. target: of a checkpoint its id; of a link, the path that
    it leads to."""

    kind: str
    target: bytes = b""


class Visits:
    """The checkpoints that somebody looks into.

    let_go: told the id of a checkpoint whose inodes the kernel should forget, if nobody holds them.
    most_numbers: how many views there can be. most_used: above this many that the kernel has
    references to, `let_go` is told of one. most_unused, most_views, most_inodes: what is kept in
    memory for the next look: visits, views, inodes in each view. clock: seconds.
    """

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self._numbered: dict[int, Visit] = {}
        self._used: OrderedDict[str, Visit] = OrderedDict()
        self._unused: OrderedDict[str, Visit] = OrderedDict()
        self._views: OrderedDict[str, SealedView] = OrderedDict()
        self._free: list[int] = []
        self._turns = 0
        self.let_go: Callable[[str], None] = lambda checkpoint: None
        self.most_numbers = 0xFF00
        self.most_used = 512
        self.most_unused = 64
        self.most_views = 16
        self.most_inodes = 1 << 13
        self.clock: Callable[[], float] = time.monotonic

    # -- names ------------------------------------------------------------------------------

    def find_name(self, path: bytes) -> Name | None:
        """What a path below `checkpoints` is, None for nothing: the id of a checkpoint, a label
        (those with slashes lie in directories), or the beginning of an id, at least 4 digits, that
        only one has."""
        reader = self._volume.reader
        if len(path) > _LONGEST:
            return None
        if _ID.fullmatch(path) and reader.get("checkpoint", path) is not None:
            return Name(CHECKPOINT, path)
        target = reader.get("label", path)
        if target is not None and _ID.fullmatch(target):
            return Name(LINK, b"../" * path.count(b"/") + target)
        if next(reader.keys("label", path + b"/"), None) is not None:
            return Name(DIRECTORY)
        if _PREFIX.fullmatch(prefix := path.lower()):
            found = reader.keys("checkpoint", prefix)
            only, second = next(found, None), next(found, None)
            if only is not None and second is None:
                return Name(LINK, only)
        return None

    def names(self, path: bytes = b"") -> Iterator[tuple[bytes, str]]:
        """(name, kind) of what is listed below a path: ids at the top, and labels."""
        reader = self._volume.reader
        if not path:
            yield from (
                (key, CHECKPOINT) for key in reader.keys("checkpoint") if _ID.fullmatch(key)
            )
        below = path + b"/" if path else b""
        seen = {b"", b".", b".."}  # labels that are no path: those checkpoints have an id
        for key in reader.keys("label", below):
            name, slash, _ = key[len(below) :].partition(b"/")
            if name in seen or len(name) > NAME_MAX:
                continue
            seen.add(name)
            if path or not (_ID.fullmatch(name) and reader.get("checkpoint", name)):
                yield name, DIRECTORY if slash else LINK

    # -- visits -----------------------------------------------------------------------------

    def visit(self, checkpoint: str) -> Visit:
        """Raises PosixError: ESTALE when there is no such checkpoint, ENFILE when more than can be
        are looked into."""
        visit = self._used.get(checkpoint)
        if visit is not None:
            self._used.move_to_end(checkpoint)
            return visit
        visit = self._unused.get(checkpoint)
        if visit is not None:
            self._unused.move_to_end(checkpoint)
            return visit
        record = self._record(checkpoint)
        if record is None:
            raise PosixError(errno.ESTALE)
        self._end_unused(min(self.most_unused, self.most_numbers - len(self._used)) - 1)
        if not self._free and len(self._numbered) >= self.most_numbers:
            raise PosixError(errno.ENFILE)
        number = self._free.pop() if self._free else len(self._numbered) + 1
        self._turns = (self._turns + 1) & 0x7FFF_FFFF
        visit = Visit(number, self._turns, checkpoint, record.epoch, self._volume.reader)
        visit.thinned = bool(record.thinned)
        self._numbered[number] = self._unused[checkpoint] = visit
        return visit

    def numbered(self, number: int) -> Visit:
        """The visit with a view's number. Raises PosixError(ESTALE)."""
        visit = self._numbered.get(number)
        if visit is None:
            raise PosixError(errno.ESTALE)
        return visit

    def use(self, visit: Visit) -> None:
        """One more reference or handle."""
        if not visit.uses:
            del self._unused[visit.checkpoint]
            self._used[visit.checkpoint] = visit
            if len(self._used) > self.most_used:
                oldest = next(iter(self._used))
                self._used.move_to_end(oldest)  # if it is held, others are asked for first
                self.let_go(oldest)
        visit.uses += 1

    def leave(self, visit: Visit, count: int = 1) -> None:
        """References or a handle went."""
        if not visit.uses:
            return
        visit.uses = max(visit.uses - count, 0)
        if not visit.uses:
            del self._used[visit.checkpoint]
            self._unused[visit.checkpoint] = visit
            self._end_unused(self.most_unused)

    def _end_unused(self, most: int) -> None:
        """Keep no more than so many that nobody refers to, the newest ones."""
        while self._unused and len(self._unused) > most:
            checkpoint, visit = self._unused.popitem(last=False)
            del self._numbered[visit.number]
            self._free.append(visit.number)
            self._views.pop(checkpoint, None)

    def epochs(self) -> set[int]:
        """The epochs of checkpoints that the kernel or an open handle refers to; without those that
        were removed, which only show errors."""
        return {visit.epoch for visit in self._used.values() if self._is_there(visit)}

    def browsed(self) -> set[str]:
        """The checkpoints that somebody looks into: a moment ago, or on the last day, and something
        below their root is open, mapped, or the directory of a process.

        What the kernel refers to may only be in its cache. It is asked to let go of what nobody
        looked at for a while; until it has, that counts, too.
        """
        now = self.clock()
        found = set()
        for visit in [*self._used.values(), *self._unused.values()]:
            if visit.looked > now - _RECENT_SECONDS:
                found.add(visit.checkpoint)
            elif visit.uses and visit.looked > now - _HELD_SECONDS:
                found.add(visit.checkpoint)
                self.let_go(visit.checkpoint)
        return found

    def _is_there(self, visit: Visit) -> bool:
        """Whether its checkpoint was not removed, as of the commit that is seen."""
        reader = self._volume.reader
        if visit.seen is not reader:
            record = self._record(visit.checkpoint)
            if record is None or record.epoch != visit.epoch:
                return False
            visit.seen = reader
            visit.thinned = bool(record.thinned)
        return True

    def __len__(self) -> int:
        return len(self._numbered)

    def _record(self, checkpoint: str) -> records.CheckpointRecord | None:
        """The checkpoint with an id, None when there is none."""
        value = self._volume.reader.get("checkpoint", checkpoint.encode())
        return records.decode(value, records.CheckpointRecord) if value else None

    def view(self, visit: Visit) -> SealedView:
        """The tree. Raises PosixError(ESTALE) when the checkpoint was removed."""
        if not self._is_there(visit):
            raise PosixError(errno.ESTALE)
        visit.looked = self.clock()
        view = self._views.get(visit.checkpoint)
        if view is None:
            view = SealedView(
                self._volume, visit.checkpoint, self._volume.reader.lineage(visit.epoch)
            )
            self._views[visit.checkpoint] = view
            if len(self._views) > self.most_views:
                self._views.popitem(last=False)
        else:
            self._views.move_to_end(visit.checkpoint)
            if len(view.inodes) > self.most_inodes:
                view.inodes.clear()
        view.thinned = visit.thinned
        return view
